"""Files of sentences to vector files, or to folders of parts; cosines of pairs.

The input is checked before torch loads.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from promptcli.data.given import check_arguments
from promptcli.embedding.engines import ENGINES
from promptcli.errors import UsageError, counted, if_stopped, look_up
from promptcli.jobs import Job, argument, function_of, option
from promptcli.notes import Advance, is_offline, keyword, note, stage

if TYPE_CHECKING:
    from promptcli.data.column_choice import ColumnChoice
    from promptcli.data.counted_files import InputFile
    from promptcli.data.row_batches import Rows
    from promptcli.data.vectors import EmbedReport, EmbedSettings
    from promptcli.data.vectors.part_folder import PartsManifest
    from promptcli.embedding.parts import PartJob
    from promptcli.encoder.sentence_encoder import Encoder
    from promptcli.models.loading import Model

_PARTS = "Parts"
_TEXT_FIELD = (
    "Column of the sentence, by name or number. Default: `text`, else `sentence`, else the only"
    " one."
)
_ID_FIELD = (
    "Column of the id, by name or number; - for row numbers. Default: `id`, else row numbers."
)
_NORMALIZE = "Scale every vector to length 1."
_BAD_LINES = (
    "File that gets the rows that cannot be read, as JSON lines with number, reason and line; they"
    " are blank rows. Default: the first one is refused."
)


@dataclass(frozen=True)
class Embedded:
    """The result of ``embed``."""

    output: Path | None  #: the vector file; None: a stream
    encoder: "Encoder"
    report: "EmbedReport"
    seconds: float | None  #: None: the same call had made the file before


@dataclass(frozen=True)
class EmbedJob(Job[Embedded]):
    """Encode the sentences of a file.

    Row i of the output is line i of the input, from 0; blank lines keep their row.

    OUTPUT.manifest.json says which model and input the vectors come from, and how int8 is read. A
    file appears complete or not at all; if the same call has made it before, from the same bytes,
    it stays unchanged.

    Raises:
        NotFoundError: The file or the model is missing.
        UsageError: A file, field or output that cannot be read or written.
        PromptcliError: A vector that is not finite, or a full disk.
    """

    file: str | Path | BinaryIO = argument(
        "Text (a sentence a line), CSV, TSV, JSONL, JSON (each also compressed: .gz, .bz2, .xz,"
        " .zst) or Parquet, also FILE:COLUMN.",
        in_python="Or a stream of text, of a table if a field is named.",
        on_command_line="Or - for standard input, or the sentences themselves. Into parts"
        " (`promptcli embed --shards N`): many files, globs, folders of .parquet files, URLs"
        " (hf://, s3://).",
        metavar="FILE...",
        typed=list[str],
    )
    output: str | Path | BinaryIO | None = option(
        None,
        "Vector file: .npy, .parquet or .jsonl; a stream gets JSONL. Default: FILE.npy next to the"
        " input.",
        names="output o",
        typed=str,
    )
    model: "Model" = option("mini", "An encoder, or what `load` takes.", kind="model")
    _: KW_ONLY
    text_field: str | None = option(None, _TEXT_FIELD)
    id_field: str | None = option(None, _ID_FIELD)
    split: bool = option(
        False,
        "Split texts longer than the model's window at paragraph and sentence ends; part 2 of row 7"
        " has the id 7#2.",
    )
    normalize: bool = option(False, _NORMALIZE)
    precision: str = option(
        "float32",
        "float32, float16, int8 (256 steps between a dimension's extremes), binary or ubinary"
        " (packed signs). The loss is measured and printed.",
    )
    batch_size: int | None = option(
        None, "Largest batch. Default: as many sentences as fit a budget of tokens.", min=1
    )
    force: bool = option(False, "Replace the output.")
    bad_lines: str | Path | None = option(None, _BAD_LINES, metavar="FILE", typed=str)

    def run(self) -> Embedded:
        from promptcli.data.bad_lines import bad_rows
        from promptcli.data.column_choice import ColumnChoice
        from promptcli.data.file_arguments import split_text_column
        from promptcli.data.input_files import STANDARD
        from promptcli.data.rows import open_rows
        from promptcli.data.vectors import EmbedSettings, reusable_manifest
        from promptcli.storage.files import check_output

        text_field = self.text_field
        path = STANDARD
        stdin = None
        if isinstance(self.file, str | Path):
            (name,), text_field = split_text_column([str(self.file)], text_field)
            path = Path(name)
        else:
            stdin = self.file
        settings = EmbedSettings(
            text_field=text_field,
            id_field=self.id_field,
            normalize=self.normalize,
            precision=self.precision,
            split=self.split,
        )
        target = self._target(path, text_field)
        before = None
        if target is not None and not self.force:
            before = reusable_manifest(target, path, settings)
        fields = ColumnChoice(text_field, self.id_field)
        with (
            bad_rows(self.bad_lines) as bad,
            open_rows(path, fields, stdin=stdin, bad=bad) as source,
        ):
            _check_target(target, force=self.force or before is not None)
            source, head = source.peek()
            _note_wrapping(source, head)
            from promptcli.models import loading
            from promptcli.models.language_choice import model_for

            rows = source.total()
            texts: Iterable[str] = ()
            if path.is_file():
                texts = _texts(path, fields)
            model = model_for(self.model, head)
            encoder = loading.open_encoder(model, dtype="auto", rows=rows, calibration=texts)
            if before is not None and target is not None:
                made_by = before.fingerprint, before.model
                if made_by == (encoder.fingerprint, encoder.provenance):
                    if bad.skips:
                        for _ in source:  # all bad rows are written
                            pass
                    return Embedded(target, encoder, before.report, None)
                check_output(target, force=False)  # another encoder made it
            start = time.perf_counter()
            if self.split:
                from promptcli.embedding.splitting import Splitter

                source = replace(source, batches=Splitter(encoder).batches(source))
                rows = None
            with stage("embed", rows) as advance:
                report = self._write(encoder, source, target, settings, advance)
            return Embedded(target, encoder, report, time.perf_counter() - start)

    def _target(self, path: Path, text_field: str | None) -> Path | None:
        """Return the file of the vectors; None: a stream.

        Refuse an output that cannot hold what is asked for.
        """
        from promptcli.data.vectors import kind_of, output_of
        from promptcli.data.vectors.precision import PRECISIONS

        ranged = look_up("precision", self.precision, PRECISIONS).ranged
        if self.output is not None and not isinstance(self.output, str | Path):
            if ranged:
                raise UsageError(
                    f"precision {self.precision} needs a manifest; give a file as output"
                )
            return None
        output = None if self.output is None else Path(self.output)
        target = output_of(path, output, text_field=text_field, id_field=self.id_field)
        if target is None:
            raise UsageError(f"{keyword('output')} is missing: give a file, or a stream")
        if self.split and kind_of(target) == ".npy":
            raise UsageError(
                f"{keyword('split')} needs ids, which {target} cannot hold; give a .parquet or"
                " .jsonl file as output"
            )
        if self.bad_lines is not None and target == Path(self.bad_lines):
            raise UsageError(
                f"{keyword('bad_lines')} {self.bad_lines} is the output; give another file"
            )
        return target

    def _write(
        self,
        encoder: "Encoder",
        source: "Rows",
        target: Path | None,
        settings: "EmbedSettings",
        advance: Advance,
    ) -> "EmbedReport":
        """Encode the rows of a file and write their vectors."""
        from promptcli.data.vectors.formats import open_sink
        from promptcli.embedding.writing import embed_file, embed_stream

        size = self.batch_size
        if target is not None:
            return embed_file(
                encoder,
                source,
                target,
                settings,
                batch_size=size,
                force=self.force,
                progress=advance,
            )
        assert self.output is not None and not isinstance(self.output, str | Path)
        with open_sink(self.output, ".jsonl", encoder.width) as sink:
            return embed_stream(encoder, source, sink, settings, batch_size=size, progress=advance)


embed = function_of(EmbedJob, "embed")


def _check_target(target: "Path | None", *, force: bool) -> None:
    """Refuse an output, after the input was found to be right: a wrong column is named first."""
    from promptcli.storage.files import check_output

    if target is not None:
        check_output(target, force=force)


def _note_wrapping(source: "Rows", head: list[str]) -> None:
    """Say of a text whose first lines look wrapped that each of them is a row."""
    from promptcli.data.layouts import TEXT
    from promptcli.embedding.passages import look_wrapped

    is_table = source.columns != {TEXT: ""}
    if not is_table and look_wrapped(head):
        note(
            f"{source.name} looks wrapped: each line is a row; `index build` and `search` read its"
            " passages"
        )


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


@dataclass(frozen=True)
class EmbedPartsJob(Job[EmbeddedParts]):
    """Encode files into a folder of Parquet parts, by one process or many.

    Parts that exist are not made again.

    Raises:
        UsageError: Options that do not go together, or a folder that was begun with others.
        PromptcliError: A part could not be made; those that exist stay.
    """

    files: Sequence[str | Path] = argument(
        "Files, globs, folders of Parquet files and URLs (hf://, s3://).", metavar="FILES..."
    )
    folder: str | Path = option(..., "Of the parts.")
    shards: int = option(
        ...,
        "Split the output into this many Parquet files, in the folder OUTPUT; the same command"
        " resumes it.",
        min=1,
        max=99_999,
        panel=_PARTS,
    )
    model: "Model" = option("mini", "An encoder, or what `load` takes.", kind="model")
    _: KW_ONLY
    shard: int | None = option(None, "Make this part only, from 0.", panel=_PARTS)
    workers: int | None = option(
        None,
        "Worker processes. Default: one per GPU, without GPUs this process only; with Ray as many"
        " as its CPUs or GPUs.",
        min=1,
        panel=_PARTS,
    )
    engine: str = option(
        "local",
        "local (the default), or ray: each part is a task of a Ray cluster (extra `ray`).",
        panel=_PARTS,
    )
    address: str | None = option(
        None,
        "The Ray cluster, HOST:PORT, or auto on one of its nodes. Default: one that is started for"
        " this call, on this machine alone.",
        panel=_PARTS,
    )
    text_field: str | None = option(None, _TEXT_FIELD)
    id_field: str | None = option(None, _ID_FIELD)
    normalize: bool = option(False, _NORMALIZE)
    precision: str = option("float32", "float32 or float16.")
    force: bool = option(False, "Delete the folder's parts and begin again.")
    bad_lines: str | Path | None = option(
        None,
        f"{_BAD_LINES} It is written when the inputs are counted, which is once.",
        metavar="FILE",
        typed=str,
    )

    def run(self) -> EmbeddedParts:
        from promptcli.data.vectors import part_folder as parts_of
        from promptcli.data.vectors.part_folder import PartsManifest
        from promptcli.storage.files import remove_leftovers

        folder = Path(self.folder)
        self._check()
        settings, inputs = self._counted_inputs()

        from promptcli.embedding import parts
        from promptcli.embedding.writing import manifest_of
        from promptcli.models import loading
        from promptcli.models.language_choice import model_for

        model = model_for(self.model, self._texts(inputs))
        rows = sum(file.rows for file in inputs)
        texts = self._texts(inputs)
        encoder = loading.open_model(model, dtype="auto", rows=rows, calibration=texts)
        manifest = PartsManifest(
            **vars(manifest_of(encoder, settings)), shards=self.shards, rows=rows, inputs=inputs
        )
        manifest = parts_of.begin_folder(folder, manifest)
        wanted: Sequence[int] = range(self.shards)
        if self.shard is not None:
            wanted = [self.shard]
        missing = [
            number for number in wanted if parts_of.read_report(folder, manifest, number) is None
        ]
        start = time.perf_counter()
        if missing:
            job = parts.PartJob(
                folder,
                manifest,
                inputs,
                loading.entry_of(model),
                parts.wanted_device(model),
                is_offline(),
                encoder,
            )
            del encoder  # the job's alone, so that an engine can free its memory
            self._make(job, missing)
        if self.shard is None:
            remove_leftovers(folder)  # of processes that were killed
        existing = len(parts_of.parts_in(folder, self.shards))
        return EmbeddedParts(folder, manifest, missing, existing, time.perf_counter() - start)

    def _check(self) -> None:
        """Refuse options that do not go together."""
        from promptcli.data.vectors.part_folder import check_part_folder

        ENGINES.find("engine", self.engine)
        if self.shard is not None:
            others = (self.workers, self.engine, self.force) != (None, "local", False)
            _check_shard(self.shard, self.shards, others=others)
        check_part_folder(Path(self.folder), self.precision)

    def _counted_inputs(self) -> "tuple[EmbedSettings, list[InputFile]]":
        """Return the settings, and the files with their numbers of rows."""
        from promptcli.data.bad_lines import bad_rows
        from promptcli.data.file_arguments import split_text_column
        from promptcli.data.input_files import find_inputs, needs_network
        from promptcli.data.vectors import EmbedSettings
        from promptcli.data.vectors import part_folder as parts_of

        folder = Path(self.folder)
        files, text_field = split_text_column([str(file) for file in self.files], self.text_field)
        settings = EmbedSettings(
            text_field=text_field,
            id_field=self.id_field,
            normalize=self.normalize,
            precision=self.precision,
        )
        remote = needs_network(files)
        if remote is not None:
            if is_offline():
                raise UsageError(
                    f"{remote} is on another machine, which {keyword('offline')} forbids; copy it"
                    " here"
                )
            note(f"reading {remote} over the network")
        names = find_inputs(files)
        ENGINES[self.engine].check(self.address)
        if self.force and parts_of.is_part_folder(folder):
            parts_of.remove_parts(folder)
        bad_lines = self.bad_lines
        if bad_lines is not None and parts_of.is_part_folder(folder):
            note(
                f"{keyword('bad_lines')}: the rows of {folder} were counted before; {bad_lines}"
                " stays as it is"
            )
            bad_lines = None
        with bad_rows(bad_lines) as bad:
            return settings, parts_of.counted_inputs(folder, names, settings, self.shards, bad)

    def _texts(self, inputs: "list[InputFile]") -> Iterator[str]:
        """Yield the texts of the inputs, which are read once they are asked for."""
        from promptcli.data.counted_files import read_range
        from promptcli.data.layouts import TEXT

        rows = sum(file.rows for file in inputs)
        for batch in read_range(inputs, 0, rows, str(self.folder)):
            yield from batch.column(TEXT).to_pylist()

    def _make(self, job: "PartJob", missing: list[int]) -> None:
        """Make the missing parts by the engine."""
        from promptcli.data.vectors.part_folder import PARTS_MANIFEST
        from promptcli.storage.locks import in_use

        rows = sum(stop - first for first, stop in map(job.manifest.bounds, missing))
        with (
            in_use(job.folder / PARTS_MANIFEST),
            if_stopped("finished parts are kept; run the same command to continue"),
            stage("embed", rows) as advance,
        ):
            ENGINES[self.engine].make(
                job, missing, advance, address=self.address, workers=self.workers
            )


embed_parts = function_of(EmbedPartsJob, "embed_parts")


def _check_shard(shard: int, shards: int, *, others: bool) -> None:
    """Refuse a number that no shard has, and ``others``, the options of several processes."""
    if not 0 <= shard < shards:
        raise UsageError(
            f"{keyword('shard')} {shard} is out of range; of {keyword('shards')} {shards} it is 0"
            f" to {shards - 1}"
        )
    if others:
        raise UsageError(
            f"{keyword('shard')} makes one part in this process; leave out {keyword('workers')},"
            f" {keyword('engine')} and {keyword('force')}"
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


@dataclass(frozen=True)
class SimilarityJob(Job[Iterator[tuple[str, str, float]]]):
    """Compare two sentences, or row i of a file with row i of another: each pair with its cosine,
    -1 to 1.

    Two words that name files are files; a sentence that is also the name of a file is compared from
    another folder.
    """

    first: str | Path = argument(
        "A sentence, or a file (or pipe) if one of that name exists.", metavar="A", typed=str
    )
    second: str | Path = argument(
        "A sentence if the first is one, else a file of as many rows.", metavar="B", typed=str
    )
    model: "Model" = option("mini", "An encoder, or what `load` takes.", kind="model")
    _: KW_ONLY
    text_field: str | None = option(
        None, "Column of the sentence. Default: `text`, else `sentence`, else the only one."
    )

    @property
    def are_files(self) -> bool:
        """Whether rows of files are compared, rather than two sentences."""
        from promptcli.data.file_arguments import names_file

        return names_file(str(self.first)) or names_file(str(self.second))

    def run(self) -> Iterator[tuple[str, str, float]]:
        sides = self._read()
        yield from self._compare(sides, self._open(sides))

    def run_with_rarity(self) -> Iterator[tuple[str, str, float, float | None]]:
        """Yield each pair with its cosine, and how many of 100 random pairs of the demo sentences
        are less similar; None if that is not known, or a text is blank.
        """
        from promptcli.evaluation.demo_rarity import rarity_of

        sides = self._read()
        encoder = self._open(sides)
        rarity = None
        for left, right, cosine in self._compare(sides, encoder):
            if rarity is None:
                rarity = rarity_of(encoder)
            [percent] = rarity.percents([cosine])
            yield left, right, cosine, None if _is_blank(left, right) else percent

    def _read(self) -> tuple[list[str], list[str]]:
        """Return the sentences of both sides, as many of each."""
        from promptcli.data.column_choice import ColumnChoice
        from promptcli.data.file_arguments import names_file
        from promptcli.data.input_files import check_sentence
        from promptcli.data.rows import open_rows

        names = [str(self.first), str(self.second)]
        sides = list[list[str]]()
        are_files = [names_file(name) for name in names]
        for name, is_file in zip(names, are_files, strict=True):
            if not is_file:
                check_sentence(name)
            if not is_file and any(are_files):
                raise UsageError(f"{name!r} is not a file; give two files or two sentences")
        for name in names:
            if any(are_files):
                with open_rows(name, ColumnChoice(text=self.text_field)) as rows:
                    sides.append(list(rows.texts()))
            else:
                sides.append([name])
        counts = list(map(len, sides))
        if counts[0] != counts[1]:
            raise UsageError(
                f"{self.first} has {counts[0]:,} rows and {self.second} has {counts[1]:,}; give"
                " the same number"
            )
        blank = sum(map(_is_blank, sides[0], sides[1]))
        if blank:
            pairs = f"{blank:,} of {counted(counts[0], 'pair')}"
            note(f"{pairs} with a blank text: a cosine with nothing says nothing")
        return sides[0], sides[1]

    def _open(self, sides: tuple[list[str], list[str]]) -> "Encoder":
        """Return the encoder for the sentences."""
        from promptcli.encoder.unknown_letters import note_unknown_letters
        from promptcli.models import loading
        from promptcli.models.language_choice import model_for

        texts = [*sides[0], *sides[1]]
        encoder = loading.open_encoder(model_for(self.model, texts))
        note_unknown_letters(encoder, texts)
        return encoder

    def _compare(
        self, sides: tuple[list[str], list[str]], encoder: "Encoder"
    ) -> Iterator[tuple[str, str, float]]:
        """Yield each pair with its cosine."""
        from promptcli.embedding.writing import WINDOW
        from promptcli.models.cosines import cosines_of_pairs

        count = len(sides[0])
        with stage("similarity", 2 * count) as advance:
            for start in range(0, count, WINDOW // 2):
                lefts, rights = (side[start : start + WINDOW // 2] for side in sides)
                cosines = cosines_of_pairs(encoder, lefts, rights, advance)
                yield from zip(lefts, rights, cosines.tolist(), strict=True)


def _is_blank(left: str, right: str) -> bool:
    """Return whether a text of a pair is blank."""
    return not (left.strip() and right.strip())


similarities = function_of(SimilarityJob, "similarities")
