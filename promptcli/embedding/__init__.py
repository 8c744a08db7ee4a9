"""Files of sentences to vector files, or to folders of parts; cosines of pairs.

The input is checked before torch loads.
"""

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from promptcli.data.given import check_arguments
from promptcli.errors import UsageError, if_interrupted, look_up, require, unknown
from promptcli.notes import is_offline, note, stage

if TYPE_CHECKING:
    from promptcli.data.dialect import ColumnChoice
    from promptcli.data.rows import Rows
    from promptcli.data.vectors import EmbedReport
    from promptcli.data.vectors.part_folder import PartsManifest
    from promptcli.encoder.sentence_encoder import SentenceEncoder
    from promptcli.models.loading import Model

#: What makes the parts of a folder.
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Embedded:
    """The result of ``embed``."""

    output: Path | None  #: the vector file; None: a stream
    encoder: "SentenceEncoder"
    report: "EmbedReport"
    seconds: float | None  #: None: the same call had made the file before


@check_arguments
def embed(
    file: str | Path | BinaryIO,
    output: str | Path | BinaryIO | None = None,
    model: "Model" = "mini",
    *,
    text_field: str | None = None,
    id_field: str | None = None,
    split: bool = False,
    normalize: bool = False,
    precision: str = "float32",
    batch_size: int | None = None,
    force: bool = False,
    bad_lines: str | Path | None = None,
) -> Embedded:
    """Encode the sentences of a file.

    Row i of the output is line i of the input, from 0; blank lines keep their row.

    OUTPUT.manifest.json says which model and input the vectors come from, and how int8 is read. A
    file appears complete or not at all; if the same call has made it before, from the same bytes,
    it stays unchanged.

    Args:
        file: Text (a sentence a line), CSV, TSV, JSONL, JSON (each also compressed) or Parquet,
            also FILE:COLUMN; or a stream of text, of a table if a field is named.
        output: Vector file: .npy, .parquet or .jsonl; a stream gets JSONL. Default: FILE.npy, or
            FILE.COLUMN.npy if the column is named, next to the input.
        model: An encoder, or what ``load`` takes.
        text_field: Column of the sentence, by name or number. Default: ``text``, else ``sentence``,
            else the only one.
        id_field: Column of the id, by name or number; - for row numbers. Default: ``id``, else row
            numbers.
        split: Split texts longer than the model's window at paragraph and sentence ends; part 2 of
            row 7 has the id 7#2.
        normalize: Scale every vector to length 1.
        precision: float32, float16, int8 (256 steps between a dimension's extremes), binary or
            ubinary (packed signs). The loss is measured and printed.
        batch_size: Largest batch. Default: as many sentences as fit a budget of tokens.
        force: Replace the output.
        bad_lines: File that gets the rows that cannot be read, as JSON lines with number, reason
            and line; they are blank rows. Default: the first one is refused.

    Raises:
        NotFoundError: The file or the model is missing.
        UsageError: A file, field or output that cannot be read or written.
        PromptcliError: A vector that is not finite, or a full disk.
    """
    from promptcli.data.bad_lines import bad_rows
    from promptcli.data.dialect import ColumnChoice, split_text_column
    from promptcli.data.files import STANDARD
    from promptcli.data.rows import open_rows
    from promptcli.data.vectors import EmbedSettings, kind_of, output_of, written_before
    from promptcli.data.vectors.formats import open_sink
    from promptcli.data.vectors.precision import PRECISIONS
    from promptcli.storage.files import check_output

    ranged = look_up("precision", precision, PRECISIONS).ranged
    path = STANDARD
    stdin = None
    if isinstance(file, str | Path):
        (name,), text_field = split_text_column([str(file)], text_field)
        path = Path(name)
    else:
        stdin = file
    settings = EmbedSettings(
        text_field=text_field,
        id_field=id_field,
        normalize=normalize,
        precision=precision,
        split=split,
    )
    before = target = stream = None
    if output is None or isinstance(output, str | Path):
        target = output_of(
            path,
            None if output is None else Path(output),
            text_field=text_field,
            id_field=id_field,
        )
        if target is None:
            raise UsageError("`output` is missing: give a file, or a stream")
        before = None
        if not force:
            before = written_before(target, path, settings)
        if split and kind_of(target) == ".npy":
            raise UsageError(
                f"`split` needs ids, which {target} cannot hold; give a .parquet or .jsonl file as"
                " output"
            )
    elif ranged:
        raise UsageError(f"precision {precision} needs a manifest; give a file as output")
    else:
        stream = output
    fields = ColumnChoice(text_field, id_field)
    if target is not None and bad_lines is not None and target == Path(bad_lines):
        raise UsageError(f"`bad_lines` {bad_lines} is the output; give another file")
    with bad_rows(bad_lines) as bad, open_rows(path, fields, stdin=stdin, bad=bad) as source:
        _check_target(target, force=force or before is not None)
        source = _telling_of_wrapping(source)
        from promptcli.embedding.writing import embed_file, embed_stream
        from promptcli.models import loading

        rows = source.total()
        texts: Iterable[str] = ()
        if path.is_file():
            texts = _texts(path, fields)
        encoder = loading.open_encoder(model, dtype="auto", rows=rows, calibration=texts)
        if before is not None and target is not None:
            if (before.fingerprint, before.model) == (encoder.fingerprint, encoder.provenance):
                if bad.skips:
                    for _ in source:  # all bad rows are written
                        pass
                return Embedded(target, encoder, before.report, None)
            check_output(target, force=False)  # another encoder made it
        start = time.perf_counter()
        if split:
            from promptcli.embedding.splitting import Splitter

            source = replace(source, batches=Splitter(encoder).batches(source))
            rows = None
        with stage("embed", rows) as advance:
            if target is not None:
                report = embed_file(
                    encoder,
                    source,
                    target,
                    settings,
                    batch_size=batch_size,
                    force=force,
                    progress=advance,
                )
            else:
                assert stream is not None
                with open_sink(stream, ".jsonl", encoder.width) as sink:
                    report = embed_stream(
                        encoder, source, sink, settings, batch_size=batch_size, progress=advance
                    )
        return Embedded(target, encoder, report, time.perf_counter() - start)


def _check_target(target: "Path | None", *, force: bool) -> None:
    """Refuse an output, after the input was found to be right: a wrong column is named first."""
    from promptcli.storage.files import check_output

    if target is not None:
        check_output(target, force=force)


def _telling_of_wrapping(source: "Rows") -> "Rows":
    """Return the rows of a file; a note says that lines which look wrapped are a row each."""
    from promptcli.data.dialect import TEXT
    from promptcli.embedding.passages import look_wrapped

    if source.columns != {TEXT: ""}:  # a table
        return source
    first = next(source.batches)
    if look_wrapped(first.column(TEXT).to_pylist()):
        note(
            f"{source.name} looks wrapped: each line is a row; `index build` and `search` read its"
            " passages"
        )
    return replace(source, batches=itertools.chain([first], source.batches))


def _texts(path: Path, fields: "ColumnChoice") -> Iterator[str]:
    """Yield a file's sentences, which are read once they are asked for."""
    from promptcli.data.bad_lines import IGNORED
    from promptcli.data.rows import open_rows

    with open_rows(path, fields, bad=IGNORED) as rows:
        yield from rows.texts()


@dataclass(frozen=True)
class EmbeddedParts:
    """The result of ``embed_parts``."""

    folder: Path
    manifest: "PartsManifest"
    made: list[int]  #: the shards made by this call
    parts: int  #: that exist
    seconds: float

    @property
    def finished(self) -> bool:
        """Whether every part exists."""
        return self.parts == self.manifest.shards


@check_arguments
def embed_parts(
    files: Sequence[str | Path],
    folder: str | Path,
    shards: int,
    model: "Model" = "mini",
    *,
    shard: int | None = None,
    workers: int | None = None,
    engine: str = "local",
    address: str | None = None,
    text_field: str | None = None,
    id_field: str | None = None,
    normalize: bool = False,
    precision: str = "float32",
    force: bool = False,
    bad_lines: str | Path | None = None,
) -> EmbeddedParts:
    """Encode files into a folder of Parquet parts, by one process or many.

    Parts that exist are not made again.

    Args:
        files: Files, globs, folders of Parquet files and URLs (hf://, s3://).
        folder: Of the parts.
        shards: Split the output into this many Parquet files, in the folder OUTPUT; the same
            command resumes it.
        model: See ``embed``.
        shard: Make this part only, from 0.
        workers: Worker processes. Default: one per GPU, without GPUs this process only; with Ray as
            many as its CPUs or GPUs.
        engine: local, or ray: each part is a task of a Ray cluster (extra ``ray``).
        address: The Ray cluster, HOST:PORT, or auto on one of its nodes. Default: one that is
            started for this call, on this machine alone.
        text_field: See ``embed``.
        id_field: See ``embed``.
        normalize: See ``embed``.
        precision: float32 or float16.
        force: Delete the folder's parts and begin again.
        bad_lines: See ``embed``; written when the inputs are counted, which is once.

    Raises:
        UsageError: Options that do not go together, or a folder that was begun with others.
        PromptcliError: A part could not be made; those that exist stay.
    """
    from promptcli.data.bad_lines import bad_rows
    from promptcli.data.dialect import TEXT, split_text_column
    from promptcli.data.files import find_inputs, needs_network
    from promptcli.data.rows import read_range
    from promptcli.data.vectors import EmbedSettings
    from promptcli.data.vectors import part_folder as parts_of
    from promptcli.storage.files import remove_leftovers
    from promptcli.storage.locks import in_use

    folder = Path(folder)
    given, text_field = split_text_column([str(file) for file in files], text_field)
    settings = EmbedSettings(
        text_field=text_field, id_field=id_field, normalize=normalize, precision=precision
    )
    _check_engine(engine, address)
    if shard is not None:
        _check_shard(shard, shards, others=(workers, engine, force) != (None, "local", False))
    parts_of.check_folder(folder, precision)
    remote = needs_network(given)
    if remote is not None:
        if is_offline():
            raise UsageError(
                f"{remote} is on another machine, which `offline` forbids; copy it here"
            )
        note(f"reading {remote} over the network")
    names = find_inputs(given)
    if engine == "ray":
        require("ray", extra="ray")
        from promptcli.embedding import ray_engine

        ray_engine.check_address(address)
    if force and parts_of.is_part_folder(folder):
        parts_of.remove_parts(folder)
    if bad_lines is not None and parts_of.is_part_folder(folder):
        note(f"`bad_lines`: the rows of {folder} were counted before; {bad_lines} stays as it is")
        bad_lines = None
    with bad_rows(bad_lines) as bad:
        inputs = parts_of.counted_inputs(folder, names, settings, shards, bad)

    from promptcli.embedding import parts
    from promptcli.embedding.writing import manifest_of
    from promptcli.models import loading

    rows = sum(file.rows for file in inputs)
    first = (
        text
        for batch in read_range(inputs, 0, rows, str(folder))
        for text in batch.column(TEXT).to_pylist()
    )
    encoder = loading.open_model(model, dtype="auto", rows=rows, calibration=first)
    manifest = parts_of.PartsManifest(
        **vars(manifest_of(encoder, settings)), shards=shards, rows=rows, inputs=inputs
    )
    manifest = parts_of.begin_folder(folder, manifest)
    wanted: Sequence[int] = range(shards)
    if shard is not None:
        wanted = [shard]
    missing = [
        number for number in wanted if parts_of.read_report(folder, manifest, number) is None
    ]
    start = time.perf_counter()
    if missing:
        devices = parts.worker_devices(model, workers)[: len(missing)]
        alone = engine == "local" and (shard is not None or len(devices) == 1)
        entry = loading.entry_of(model)
        job = parts.PartJob(
            folder, manifest, inputs, entry, devices[0], is_offline(), encoder if alone else None
        )
        del encoder  # the workers need its memory
        with (
            in_use(folder / parts_of.MANIFEST),
            if_interrupted("finished parts are kept; run the same command to continue"),
            stage(
                "embed", sum(stop - first for first, stop in map(manifest.bounds, missing))
            ) as advance,
        ):
            if alone:
                for number in missing:
                    job.make(number, advance)
            elif engine == "ray":
                job.device = parts.wanted_device(model)
                ray_engine.make_by_ray(job, missing, advance, address=address, workers=workers)
            else:
                parts.make_by_processes(job, missing, devices, advance)
    if shard is None:
        remove_leftovers(folder)  # of processes that were killed
    existing = len(parts_of.parts_in(folder, shards))
    return EmbeddedParts(folder, manifest, missing, existing, time.perf_counter() - start)


def _check_engine(engine: str, address: str | None) -> None:
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if engine != "ray" and address is not None:
        raise UsageError("`address` is that of a Ray cluster; give `engine` ray, too")


def _check_shard(shard: int, shards: int, *, others: bool) -> None:
    """Refuse a number that no shard has, and ``others``, the options of several processes."""
    if not 0 <= shard < shards:
        raise UsageError(
            f"`shard` {shard} is out of range; of `shards` {shards} it is 0 to {shards - 1}"
        )
    if others:
        raise UsageError(
            "`shard` makes one part in this process; leave out `workers`, `engine` and `force`"
        )


@check_arguments
def embed_dataset(
    dataset: Any,
    model: "Model" = "mini",
    *,
    text_field: str | None = None,
    column: str = "embedding",
) -> Any:
    """Return a data set with the vectors of its sentences as one more column, float32.

    What streams stays a stream: it is encoded while it is read.

    Args:
        dataset: A ``ray.data.Dataset``, ``datasets.Dataset`` or ``IterableDataset``,
            ``pyarrow.Table``, ``RecordBatchReader`` or ``pyarrow.dataset.Dataset``. The result is
            of the same kind; the last becomes a reader. Ray opens an encoder in each of its
            actors: one a GPU, else one a CPU and a CPU left free.
        model: An encoder, or what ``load`` takes.
        text_field: Column of the sentence. Default: ``text``, else ``sentence``, else the only one.
        column: Name of the new column.

    Raises:
        UsageError: Another kind of data set, no such column, or a name that is taken.

    Example:
        >>> import pyarrow as pa
        >>> import promptcli as pc
        >>> pc.embed_dataset(pa.table({"text": ["A cat sleeps."]}), "mini").column_names
        ['text', 'embedding']
    """
    from promptcli.embedding import datasets

    return datasets.embed_dataset(dataset, model, text_field=text_field, column=column)


@check_arguments
def similarities(
    first: str | Path, second: str | Path, model: "Model" = "mini", *, text_field: str | None = None
) -> Iterator[tuple[str, str, float]]:
    """Compare two sentences, or row i of a file with row i of another: each pair with its cosine,
    -1 to 1.

    Two words that name files are files; a sentence that is also the name of a file is compared from
    another folder.

    Args:
        first: A sentence, or a file (or pipe) if one of that name exists.
        second: A sentence if the first is one, else a file of as many rows.
        model: An encoder, or what ``load`` takes.
        text_field: Column of the sentence. Default: ``text``, else ``sentence``, else the only one.
    """
    from promptcli.data.dialect import ColumnChoice, names_file
    from promptcli.data.files import check_sentence
    from promptcli.data.rows import open_rows

    names = [str(first), str(second)]
    sides = list[list[str]]()
    are_files = [names_file(name) for name in names]
    for name, is_file in zip(names, are_files, strict=True):
        if not is_file:
            check_sentence(name)
        if not is_file and any(are_files):
            raise UsageError(f"{name!r} is not a file; give two files or two sentences")
    for name in names:
        if any(are_files):
            with open_rows(name, ColumnChoice(text=text_field)) as rows:
                sides.append(list(rows.texts()))
        else:
            sides.append([name])
    counts = list(map(len, sides))
    if counts[0] != counts[1]:
        raise UsageError(
            f"{first} has {counts[0]:,} rows and {second} has {counts[1]:,}; give the same number"
        )

    from promptcli.embedding.writing import WINDOW
    from promptcli.encoder.unknown_letters import note_unknown_letters
    from promptcli.models import loading

    encoder = loading.open_encoder(model)
    note_unknown_letters(encoder, [*sides[0], *sides[1]])
    with stage("similarity", sum(counts)) as advance:
        for start in range(0, counts[0], WINDOW // 2):
            lefts, rights = (side[start : start + WINDOW // 2] for side in sides)
            cosines = loading.cosines_of_pairs(encoder, lefts, rights, advance)
            yield from zip(lefts, rights, cosines.tolist(), strict=True)
