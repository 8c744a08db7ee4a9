"""Encoding of sentences: a list into an array, a file into a vector file, many files into a folder
of parts, a data set into one more column; and cosines of pairs.

The input is checked before torch loads.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, overload

from promptcli.data.arguments import as_texts
from promptcli.data.csv_options import stored_options
from promptcli.data.input_files import (
    check_sentence,
    find_inputs,
    names_file,
    split_text_column,
)
from promptcli.data.layouts import TEXT, ColumnChoice
from promptcli.errors import UsageError, if_stopped, look_up, with_count
from promptcli.notes import note, stage
from promptcli.recipe import ModelChoice
from promptcli.settings import DEFAULT_MODEL, list_of_names
from promptcli.storage.files import delete_leftovers
from promptcli.storage.locks import in_use

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from promptcli.data.vectors import part_folder
    from promptcli.embedding.writing import EmbedResult
    from promptcli.models.loading import Model


@overload
def embed(
    source: list[str] | tuple[str, ...],
    output: None = None,
    model: "Model" = DEFAULT_MODEL,
    *,
    device: str | None = None,
    dtype: str | None = None,
    normalize: bool = False,
    batch_size: int | None = None,
) -> "NDArray[np.float32]": ...
@overload
def embed(
    source: str | Path | BinaryIO,
    output: str | Path | BinaryIO | None = None,
    model: "Model" = DEFAULT_MODEL,
    *,
    device: str | None = None,
    dtype: str | None = None,
    text_field: str | None = None,
    id_field: str | None = None,
    split: bool = False,
    normalize: bool = False,
    precision: str = "float32",
    batch_size: int | None = None,
    force: bool = False,
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> "EmbedResult": ...
def embed(
    source: Any,
    output: str | Path | BinaryIO | None = None,
    model: "Model" = DEFAULT_MODEL,
    *,
    device: str | None = None,
    dtype: str | None = None,
    text_field: str | None = None,
    id_field: str | None = None,
    split: bool = False,
    normalize: bool = False,
    precision: str = "float32",
    batch_size: int | None = None,
    force: bool = False,
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> "EmbedResult | NDArray[np.float32]":
    """Encode sentences: a list into an array, a file into a vector file.

    Row i of the vectors is sentence i of a list, or line i of a file, from 0; blank lines keep
    their row. OUTPUT.manifest.json names the model and the input of the vectors, and says how to
    read int8. A vector file appears complete or not at all. If the same call has already made it
    from the same bytes, it stays unchanged.

    Args:
        source: n texts in a list; or a file of text (a sentence a line), CSV, TSV, JSONL, JSON
            (each also compressed: .gz, .bz2, .xz, .zst) or Parquet, also ``FILE:COLUMN``; or a
            stream of text, or of a table if ``text_field`` or ``id_field`` is given.
        output: The vector file of a file: .npy, .parquet or .jsonl; or a stream, which gets JSONL.
            Default: FILE.npy next to the input.
        model: An encoder, or what ``load`` takes.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``. Default: the fastest.
        dtype: Default: bfloat16 if the hardware computes in it, else float32.
        text_field: Column of the sentence, by name or number. Default: ``text``, else ``sentence``,
            else the only one.
        id_field: Column of the id; ``-`` for row numbers. Default: ``id``, else row numbers.
        split: Split texts longer than the model's window at paragraph and sentence ends; part 2 of
            row 7 has the id 7#2.
        normalize: Scale every vector to length 1.
        precision: ``float32``, ``float16``, ``int8`` (256 steps between a dimension's extremes),
            ``binary`` or ``ubinary`` (packed signs). The loss is measured.
        batch_size: Largest batch. Default: as many sentences as fit a budget of tokens.
        force: Replace the output.
        csv: How a table is written, by DuckDB's names: ``{"delim": ";", "decimal_separator": ",",
            "dateformat": "%d.%m.%Y", "encoding": "cp1252", "skip": 1}``.
        skip_bad: Leave out the rows of a table that cannot be read, and note how many and why; an
            unreadable line of a text becomes blank instead.

    Returns:
        For a list the vectors (n, d), float32; for a file an ``EmbedResult``.

    Raises:
        NotFoundError: The file or the model is missing.
        UsageError: A file, a field or an output cannot be read or written.
        PromptcliError: A vector is not finite, or the disk is full.

    Example:
        >>> import promptcli as pc
        >>> pc.embed(["A cat sleeps.", "Two dogs play."]).shape
        (2, 256)
    """
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"must be at least 1, got {batch_size}", parameter="batch_size")
    from promptcli.data.vectors.formats import EmbedSettings
    from promptcli.embedding.writing import embed_source
    from promptcli.encoder.sentence_encoder import Encoder
    from promptcli.models import loading

    if {device, dtype} - {None, "auto"}:
        if isinstance(model, Encoder):
            raise UsageError(
                "device and dtype are set when an encoder is loaded; leave them out, or pass"
                " encoder.to(device)"
            )
        choice = model if isinstance(model, ModelChoice) else ModelChoice(model)
        model = replace(choice, device=device or choice.device, dtype=dtype or choice.dtype)
    if isinstance(source, str | Path):
        (name,), text_field = split_text_column([str(source)], text_field)
        source = Path(name)
    settings = EmbedSettings(
        text_field, id_field, normalize, precision, split, stored_options(csv), skip_bad
    )
    if isinstance(source, Path) or hasattr(source, "read"):
        return embed_source(source, output, model, settings, batch_size=batch_size, force=force)
    if settings != EmbedSettings(normalize=normalize) or output is not None or force:
        raise UsageError(
            "output, force and the options of tables, splitting and precision apply to files only;"
            " a list of texts is returned as an array"
        )
    texts = as_texts(source)
    encoder = loading.open_encoder(model, dtype="auto", rows=len(texts))
    with stage("embed", len(texts)) as advance:
        return encoder.encode(
            texts, batch_size=batch_size, normalize_embeddings=normalize, progress=advance
        )


@dataclass(frozen=True)
class PartsResult:
    """The result of ``embed_parts``."""

    folder: Path
    manifest: "part_folder.PartsManifest"
    made: list[int]  #: the shards made by this call
    parts: int  #: number of parts that exist
    seconds: float

    @property
    def finished(self) -> bool:
        """Whether every part exists."""
        return self.parts == self.manifest.shards


def embed_parts(
    files: str | Path | Sequence[str | Path],
    folder: str | Path,
    shards: int,
    model: "Model" = DEFAULT_MODEL,
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
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> PartsResult:
    """Encode files into a folder of Parquet parts, by one process or many.

    Parts that exist are not made again.

    Args:
        files: Files, globs, folders of Parquet files and URLs (hf://, s3://).
        folder: The folder of the parts.
        shards: The number of parts, at most 99,999.
        model: An encoder, or what ``load`` takes.
        shard: Make this part only, from 0.
        workers: Worker processes. Default: one per GPU, without GPUs this process only; with Ray
            as many as its CPUs or GPUs.
        engine: ``local``, or ``ray``: each part is a task of a Ray cluster (extra ``ray``).
        address: The Ray cluster, HOST:PORT, or ``auto`` on one of its nodes. Default: a cluster on
            this machine, started for this call.
        text_field: As for ``embed``; the same for all files.
        id_field: As for ``embed``.
        normalize: Scale every vector to length 1.
        precision: ``float32`` or ``float16``.
        force: Delete the folder's parts and begin again.
        csv: As for ``embed``.
        skip_bad: As for ``embed``; the inputs are counted once.

    Raises:
        UsageError: Options that do not go together, or a folder that was begun with other options.
        PromptcliError: A part could not be made; finished parts stay.
    """
    from promptcli.data.vectors import part_folder
    from promptcli.data.vectors.formats import EmbedSettings
    from promptcli.embedding import parts

    look_up("engine", engine, parts.ENGINES)
    for name, number in (("shards", shards), ("workers", workers)):
        if number is not None and not 1 <= number <= 99_999:
            raise UsageError(f"must be 1 to 99,999, got {number}", parameter=name)
    if shard is not None:
        if not 0 <= shard < shards:
            problem = f"{shard} is out of range; of {shards} shards it is 0 to {shards - 1}"
            raise UsageError(problem, parameter="shard")
        if (workers, engine, force) != (None, "local", False):
            problem = (
                "makes one part in this process; leave out workers=N, engine=NAME and force=True"
            )
            raise UsageError(problem, parameter="shard")
    folder = Path(folder)
    part_folder.check_part_folder(folder, precision)
    names, text_field = split_text_column(list_of_names(files), text_field)
    settings = EmbedSettings(
        text_field, id_field, normalize, precision, csv=stored_options(csv), skip_bad=skip_bad
    )
    names = find_inputs(names)
    parts.ENGINES[engine].check(address)
    if force and part_folder.is_part_folder(folder):
        part_folder.remove_parts(folder)
    job = parts.begin_job(folder, names, settings, shards, model)
    manifest = job.manifest
    selected = range(shards) if shard is None else [shard]
    missing = [
        number for number in selected if part_folder.read_report(folder, manifest, number) is None
    ]
    start = time.perf_counter()
    if missing:
        rows = sum(stop - first for first, stop in map(manifest.bounds, missing))
        with (
            in_use(folder / part_folder.PARTS_MANIFEST),
            if_stopped("finished parts are kept; run the same command to continue"),
            stage("embed", rows) as advance,
        ):
            parts.ENGINES[engine].make(job, missing, advance, address=address, workers=workers)
    if shard is None:
        delete_leftovers(folder)  # of processes that were killed
    existing = len(part_folder.parts_in(folder, shards))
    return PartsResult(folder, manifest, missing, existing, time.perf_counter() - start)


def embed_dataset(
    dataset: Any,
    model: "Model" = DEFAULT_MODEL,
    *,
    text_field: str | None = None,
    column: str = "embedding",
) -> Any:
    """Return a data set with the vectors of its sentences as one more column, float32.

    A stream stays a stream: it is encoded while it is read.

    Args:
        dataset: A ``ray.data.Dataset``, ``datasets.Dataset`` or ``IterableDataset``,
            ``pyarrow.Table``, ``RecordBatchReader`` or ``pyarrow.dataset.Dataset``. The result is
            of the same kind, except that a ``pyarrow.dataset.Dataset`` becomes a reader. Ray opens
            an encoder in each actor: one actor per GPU, else one per CPU with one CPU left free.
        model: An encoder, or what ``load`` takes.
        text_field: Column of the sentence. Default: ``text``, else ``sentence``, else the only one.
        column: Name of the new column.

    Raises:
        UsageError: The kind of data set is not supported, the column of the sentence is missing,
            or the name of the new column is taken.

    Example:
        >>> import pyarrow as pa
        >>> import promptcli as pc
        >>> pc.embed_dataset(pa.table({"text": ["A cat sleeps."]}), "mini").column_names
        ['text', 'embedding']
    """
    from promptcli.embedding.datasets import DATA_SETS, VectorColumn

    library = type(dataset).__module__.partition(".")[0]
    if library not in DATA_SETS:
        kinds = "a ray.data.Dataset, a datasets.Dataset or IterableDataset, a pyarrow.Table"
        raise UsageError(
            f"{type(dataset).__name__} is not a supported data set; give {kinds} or"
            " RecordBatchReader"
        )
    data_sets = DATA_SETS[library]
    names = data_sets.columns(dataset)
    if column in names:
        raise UsageError(
            f"the data set has a column {column!r}; give another name", parameter="column"
        )
    text = ColumnChoice(text_field).choose(names, "the data set")[TEXT]
    return data_sets.add(dataset, VectorColumn(model, text, column))


def compare_rows(
    first: str | Path,
    second: str | Path,
    model: "Model | None" = None,
    *,
    text_field: str | None = None,
    csv: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, str, float]]:
    """Yield pairs with their cosine, -1 to 1: two sentences, or row i of one file and row i of
    another.

    Args:
        first: A sentence, or the name of an existing file or pipe.
        second: A sentence if the first is one, else a file of as many rows.
        model: An encoder, or what ``load`` takes; None: ``mini-multi``.
        text_field: Column of the sentence, as for ``embed``.
        csv: As for ``embed``.
    """
    from promptcli.data.rows import read_texts
    from promptcli.embedding.writing import WINDOW
    from promptcli.models import loading
    from promptcli.models.cosines import cosines_of_pairs
    from promptcli.models.language import note_unread

    names = str(first), str(second)
    sentences = [name for name in names if not names_file(name)]
    for sentence in sentences:
        check_sentence(sentence)
    if len(sentences) == 1:
        raise UsageError(f"{sentences[0]!r} is not a file; give two files or two sentences")
    fields = ColumnChoice(text=text_field)
    lefts, rights = ([name] if sentences else list(read_texts(name, fields, csv)) for name in names)
    if len(lefts) != len(rights):
        raise UsageError(
            f"{first} has {with_count(len(lefts), 'row')} and {second} has {len(rights):,}; give"
            " the same number"
        )
    pairs = list(zip(lefts, rights, strict=True))
    blank = sum(not (left.strip() and right.strip()) for left, right in pairs)
    if blank:
        of_all = f"{blank:,} of {with_count(len(pairs), 'pair')}"
        note(f"{of_all} with a blank text, whose cosine means nothing")
    encoder = loading.open_encoder(loading.or_search_model(model))
    note_unread(encoder, [*lefts, *rights])
    with stage("similarity", 2 * len(pairs)) as advance:
        for start in range(0, len(pairs), WINDOW // 2):
            left, right = zip(*pairs[start : start + WINDOW // 2], strict=True)
            cosines = cosines_of_pairs(encoder, left, right, advance)
            yield from zip(left, right, cosines.tolist(), strict=True)
