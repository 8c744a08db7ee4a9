"""The stream from sentences to vectors: windows in, rows out, a file with a manifest or a folder of parts.

What is held at once is one window, whatever the length of the input. A part is a run of rows that follows from the
inputs and the number of shards alone; its bytes depend on nothing else, and it is whole or not there.
"""

import errno
import importlib.metadata
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import promptcli
from promptcli.data.dialect import Fields
from promptcli.data.rows import Batch, InputFile, Rows, check_same, count_input, has_text_ids, read_range, windows
from promptcli.data.vectors import VectorManifest, new_vectors, part_folder, readable
from promptcli.data.vectors.formats import ParquetSink, Sink, opened
from promptcli.data.vectors.part_folder import Plan
from promptcli.data.vectors.precision import PRECISIONS, Loss, Measured, unit
from promptcli.encoder.batching import Progress, silent
from promptcli.encoder.encoder import Encoder
from promptcli.errors import PromptcliError, UsageError
from promptcli.storage.documents import shown
from promptcli.storage.files import atomic_path, remove_leftovers

Floats = NDArray[np.float32]

#: Sentences in a window: enough that sorting by length inside it fills every batch well.
WINDOW = 8192
#: Characters in a window, so that a file of very long lines does not fill the memory either.
WINDOW_CHARACTERS = 8 << 20


@dataclass(frozen=True)
class EmbedReport:
    """What became of the sentences."""

    rows: int
    blank: int
    zero: int  #: not blank and yet a vector of zeros: nothing in them is known
    truncated: int  #: cut to the maximum length
    seconds: float
    loss: Loss | None = None  #: of a precision below float32
    ranges: Floats | None = None  #: (2, d), the least and the largest number of each dimension, by which int8 is read


def embed_stream(
    encoder: Encoder,
    batches: Iterable[Batch],
    sink: Sink,
    *,
    window: int = WINDOW,
    batch_size: int | None = None,
    normalize: bool = False,
    precision: str = "float32",
    first: int = 0,
    progress: Progress = silent,
) -> EmbedReport:
    """Encode batches of sentences window by window into a sink; row i is sentence i.

    At most ``window`` sentences are held at once, and ``batch_size`` of them are in a forward pass; by default as many
    as fit a budget of tokens. The ranges of ``int8`` are those of the first window.

    Raises:
        PromptcliError: a vector with a NaN or an infinity; with the row.
    """
    start = time.perf_counter()
    rows = blank = zero = truncated = 0
    less = None if precision == "float32" else Measured(precision)
    read, held = itertools.tee(windows(batches, window, WINDOW_CHARACTERS))
    texts = (batch.column("text").to_pylist() for batch in read)
    for encoded, part in zip(encoder.encode_windows(texts, progress=progress, most=batch_size), held, strict=True):
        _check_finite(encoded.vectors, first + rows)
        vectors = unit(encoded.vectors) if normalize else encoded.vectors
        sink.write(part, vectors if less is None else less(vectors))
        rows += len(part)
        empty = np.array([not text.strip() for text in part.column("text").to_pylist()])
        blank += int(np.count_nonzero(empty))
        zero += int(np.count_nonzero(~encoded.vectors.any(axis=1) & ~empty))
        truncated += int(np.count_nonzero(encoded.truncated))
    report = EmbedReport(rows, blank, zero, truncated, time.perf_counter() - start)
    return report if less is None else replace(report, loss=less.loss(), ranges=less.ranges)


def embed_file(
    encoder: Encoder,
    source: Rows,
    target: Path,
    *,
    with_text: bool = True,
    batch_size: int | None = None,
    normalize: bool = False,
    precision: str = "float32",
    settings: dict[str, Any] | None = None,
    progress: Progress = silent,
) -> EmbedReport:
    """Encode a source into a vector file with a manifest; whenever the process dies, both are the old or the new.

    ``settings`` are what the manifest keeps of how the source was read and stored; for the rest see ``embed_stream``.

    Raises:
        PromptcliError: see ``embed_stream`` and ``open_rows``.
    """
    options: dict[str, Any] = {"batch_size": batch_size, "normalize": normalize, "precision": precision}
    with new_vectors(target, encoder.width, with_text=with_text) as (sink, manifest):
        report = embed_stream(encoder, source, sink, progress=progress, **options)
        manifest |= _manifest(encoder, source, report, normalize=normalize, precision=precision)
        manifest["settings"] = settings
    return report


def report_of(manifest: dict[str, Any], encoder: Encoder) -> EmbedReport | None:
    """Return what a manifest of ``embed_file`` says of the sentences, if this encoder made the vectors, else None."""
    if (manifest["fingerprint"], manifest["model"]) != (encoder.fingerprint, encoder.provenance):
        return None
    loss = None if manifest.get("loss") is None else Loss(**manifest["loss"])
    return EmbedReport(manifest["rows"], manifest["blank"], manifest["zero"], manifest["truncated"], 0.0, loss)


def similarity_stream(
    encoder: Encoder, pairs: Iterable[tuple[str, str]], *, window: int = WINDOW // 2, progress: Progress = silent
) -> Iterator[tuple[str, str, float]]:
    """Yield each pair of sentences with the cosine of their vectors, -1 to 1; 0 where a vector is all zeros.

    At most ``window`` pairs are held at once; ``progress`` is called with the number of sentences, two a pair.
    """
    for part in _windows_of_pairs(pairs, window):
        lefts, rights = zip(*part, strict=True)
        vectors = unit(encoder.encode([*lefts, *rights], progress=progress))
        cosines = np.sum(vectors[: len(part)] * vectors[len(part) :], axis=1)
        for (left, right), cosine in zip(part, cosines.tolist(), strict=True):
            yield left, right, min(max(cosine, -1.0), 1.0)  # rounding may pass 1


def _windows_of_pairs(pairs: Iterable[tuple[str, str]], size: int) -> Iterator[list[tuple[str, str]]]:
    """Yield lists of at most ``size`` pairs; a list also ends once it holds ``WINDOW_CHARACTERS``."""
    part: list[tuple[str, str]] = []
    held = 0
    for pair in pairs:
        part.append(pair)
        held += len(pair[0]) + len(pair[1])
        if len(part) == size or held >= WINDOW_CHARACTERS:
            yield part
            part, held = [], 0
    if part:
        yield part


def _check_finite(vectors: Floats, row: int) -> None:
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(wrong):
        raise PromptcliError(f"row {row + wrong[0]}: its vector is not finite; try `dtype` float32, or check the model")


def _manifest(
    encoder: Encoder, source: Rows, report: EmbedReport, *, normalize: bool, precision: str
) -> dict[str, Any]:
    return {
        "schema_version": VectorManifest.schema_version,
        "rows": report.rows,
        "dim": encoder.width,
        "dtype": PRECISIONS[precision].dtype.__name__,
        "normalized": normalize,
        "metric": "cosine",
        "recipe": encoder.recipe.to_dict(),
        "fingerprint": encoder.fingerprint,
        "model": encoder.provenance,
        "input": {"path": readable(source.name), "sha256": source.sha256()},
        "blank": report.blank,
        "zero": report.zero,
        "truncated": report.truncated,
        **_stored_as(report, precision),
        "versions": _versions("torch", "transformers", "tokenizers", "numpy"),
    }


def _versions(*libraries: str) -> dict[str, str]:
    return {"promptcli": promptcli.__version__, **{name: importlib.metadata.version(name) for name in libraries}}


def _stored_as(report: EmbedReport, precision: str) -> dict[str, Any]:
    """Return what a manifest says of a precision below float32."""
    if precision == "float32":
        return {}
    known: dict[str, Any] = {"precision": precision, "loss": None if report.loss is None else asdict(report.loss)}
    if report.ranges is not None and PRECISIONS[precision].ranged:
        known["ranges"] = report.ranges.tolist()
    return known


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def counted_inputs(folder: Path, names: Sequence[str], fields: Fields, shards: int) -> list[InputFile]:
    """Return the input files, counted once: what the folder's plan holds of them, else by a look at each.

    Raises:
        UsageError: The folder holds other things, another number of parts, or parts of other inputs; or there are
            fewer rows than shards.
    """
    began = str(folder)
    if (folder / part_folder.PLAN).is_file():
        plan = part_folder.read_plan(folder)
        if plan.shards != shards:
            raise UsageError(
                f"{folder} was begun with `shards` {plan.shards}, not {shards}; give that, or another folder"
            )
        found = check_same(plan.inputs, names, began)
        for file in found:
            for option, given, chosen in (("`text_field`", fields.text, file.text), ("`id_field`", fields.id, file.id)):
                if given not in (None, chosen):
                    raise UsageError(f"{folder} was begun with {option} {chosen!r}, not {given!r}; give another folder")
        return found
    held = {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else set()
    if held and part_folder.PLAN not in held:  # else another process has begun it just now
        raise UsageError(f"{folder} holds other files (no {part_folder.PLAN}); give a new folder")
    inputs = [count_input(name, fields) for name in names]
    rows = sum(file.rows for file in inputs)
    if rows < shards:
        raise UsageError(
            f"`shards` {shards} of {rows:,} rows; give at most {max(rows, 1):,}, and inputs that hold rows"
        )
    return inputs


def make_plan(
    folder: Path,
    encoder: Encoder,
    inputs: Sequence[InputFile],
    shards: int,
    *,
    normalize: bool,
    with_text: bool,
    precision: str = "float32",
) -> Plan:
    """Begin a folder, or check that it was begun with the same encoder and options; return its plan.

    Raises:
        UsageError: It was begun with others.
    """
    wanted = Plan(
        shards=shards,
        rows=sum(file.rows for file in inputs),
        dim=encoder.width,
        normalized=normalize,
        with_text=with_text,
        precision=precision,
        text_ids=has_text_ids(inputs),
        recipe=encoder.recipe.to_dict(),
        fingerprint=encoder.fingerprint,
        model=encoder.provenance,
        inputs=list(inputs),
        versions=_versions("torch", "transformers", "tokenizers", "pyarrow"),
    )
    plan = part_folder.keep_plan(folder, wanted)
    for what, there, now in (
        ("`dtype`", plan.model.get("dtype"), wanted.model.get("dtype")),
        ("`backend`", plan.model.get("backend", "torch"), wanted.model.get("backend", "torch")),
        ("the encoder", plan.fingerprint[:12], wanted.fingerprint[:12]),
        ("`normalize`", plan.normalized, normalize),
        ("texts", plan.with_text, with_text),
        ("`precision`", plan.precision, precision),
    ):
        if there != now:
            raise UsageError(
                f"{folder} was begun with {what} {shown(there)}, not {shown(now)}; give that again, or another folder"
            )
    if plan.digest() != wanted.digest():
        raise UsageError(f"{folder} was begun with other inputs; give the same again, or another folder with -o")
    return plan


def missing_shards(folder: Path, plan: Plan, shard: int | None = None) -> list[int]:
    """Return the shards whose parts are not there or not whole; ``shard`` looks at that one alone.

    Raises:
        CheckFailedError: A part is of another recipe or other inputs.
    """
    there = set(part_folder.parts_there(folder, plan.shards))
    wanted = range(plan.shards) if shard is None else [shard]
    return [one for one in wanted if one not in there or not part_folder.is_whole(folder, plan, one)]


def make_part(
    folder: Path, plan: Plan, inputs: Sequence[InputFile], encoder: Encoder, shard: int, *, progress: Progress = silent
) -> None:
    """Encode the rows of a shard into its part, which takes its name when it is whole.

    Raises:
        PromptcliError: An input has changed or is malformed, or the disk is full.
    """
    start, stop = plan.bounds(shard)
    for one in (encoder, *encoder.members):
        one.biases.clear()  # made batch by batch: another shard's batches would show in the last bits
    path = folder / part_folder.part_name(shard, plan.shards)
    try:
        with atomic_path(path) as temporary, temporary.open("xb") as file:
            sink = ParquetSink(file, plan.dim, plan.with_text)
            with opened(sink):
                batches = read_range(inputs, start, stop, str(folder))
                options: dict[str, Any] = {"normalize": plan.normalized, "precision": plan.precision}
                report = embed_stream(encoder, batches, sink, first=start, **options, progress=progress)
                about = part_folder.About(
                    plan.digest(), shard, report.rows, report.blank, report.zero, report.truncated
                )
                sink.about = json.dumps(vars(about))
    except OSError as error:
        if error.errno not in _FULL:
            raise
        whole = len(part_folder.parts_there(folder, plan.shards))
        raise PromptcliError(
            f"disk full: {path} could not be written; {whole:,} of {plan.shards:,} parts are whole and stay; make room"
            " and run the same command again"
        ) from None


def finish_folder(folder: Path, plan: Plan, made: int) -> bool:
    """Write the manifest where every part is there; return whether the folder is finished.

    Where no part was made since the folder was last looked at, a manifest that is there holds.
    """
    remove_leftovers(folder)
    if not made and (folder / part_folder.MANIFEST).is_file():
        return True
    return part_folder.finish(folder, plan)
