"""Files of sentences to files of vectors, in parts too; cosines of pairs. The input is checked before torch loads."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from promptcli.data.dialect import Fields
from promptcli.data.files import STANDARD, find_inputs, needs_network
from promptcli.data.rows import open_pairs, open_rows
from promptcli.data.vectors import open_sink, output_of, written_before
from promptcli.data.vectors.part_folder import Plan, check_folder, is_part_folder, parts_there
from promptcli.data.vectors.precision import PRECISIONS
from promptcli.errors import UsageError, look_up, unknown
from promptcli.notes import is_offline, is_shown, note, working
from promptcli.storage.files import check_output, remove_folder

if TYPE_CHECKING:
    from promptcli.embedding.part_job import PartJob, Pool
    from promptcli.embedding.writing import EmbedReport
    from promptcli.encoder.encoder import Encoder
    from promptcli.models.loading import Model

#: What makes parts: processes of this machine, or a cluster.
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Embedded:
    """What became of a file of sentences."""

    output: Path | None  #: the vector file; None: they went to a stream
    encoder: "Encoder"
    report: "EmbedReport"
    made: bool = True  #: by this call; else it was there, from the same sentences by the same encoder


def embed(
    file: str | Path | BinaryIO,
    output: str | Path | BinaryIO | None = None,
    model: "Model" = "mini",
    *,
    text_field: str | None = None,
    id_field: str | None = None,
    normalize: bool = False,
    precision: str = "float32",
    batch_size: int | None = None,
    with_text: bool = True,
    force: bool = False,
    backend: str = "torch",
    device: str = "auto",
    dtype: str = "auto",
) -> Embedded:
    """Encode the sentences of a file into a vector file and its manifest, whole or not at all; row i is line i.

    Where the same call has made that file before, from the same bytes, it is left as it is.

    Args:
        file: Text (a sentence a line), JSONL, CSV, TSV (each also gzipped) or Parquet; or a stream of text, of JSONL
            where a field is named.
        output: ``.npy``, ``.parquet``, ``.jsonl`` or ``.safetensors``, by default FILE.npy; or a stream, for JSONL.
        model: An encoder, or what ``load`` takes.
        text_field: Column of the sentence.
        id_field: Column of the id.
        normalize: Scale every vector to length 1.
        precision: ``float32``, ``float16``, ``int8``, ``binary`` or ``ubinary``; ``read_vectors`` restores float32.
        batch_size: Sentences of a forward pass, at most; by default as many as fit a budget of tokens.
        with_text: Store the sentences where the format has room for them.
        force: Replace the output.
        backend: See ``load``.
        device: See ``load``.
        dtype: See ``load``.

    Raises:
        NotFoundError: No such file or model.
        UsageError: A file, field or output that cannot be read or written.
        PromptcliError: A vector that is not finite, or a full disk.
    """
    path, given = (Path(file), None) if isinstance(file, str | Path) else (STANDARD, file)
    stream = None if output is None or isinstance(output, str | Path) else output
    form, target, before = look_up("precision", precision, PRECISIONS), None, None
    settings = {"text_field": text_field, "id_field": id_field, "with_text": with_text}
    settings |= {"normalize": normalize, "precision": precision}
    if stream is None:
        target = output_of(path, Path(str(output)) if output else None, id_field=id_field)
    if target is not None:
        before = None if force else written_before(target, path, settings)
        check_output(target, force=force or before is not None)
    elif form.ranged:
        raise UsageError(f"precision {precision} needs a manifest; give a file as output")
    with open_rows(path, Fields(text_field, id_field), stdin=given) as source:
        from promptcli.embedding.writing import embed_file, embed_stream, report_of
        from promptcli.models import loading as encoders

        rows = source.total() if backend == "auto" or is_shown() else None
        encoder = encoders.open_model(model, device=device, dtype=dtype, backend=backend, rows=rows)
        if before is not None and target is not None:
            if (report := report_of(before, encoder)) is not None:
                return Embedded(target, encoder, report, made=False)
            check_output(target, force=False)  # another encoder made it
        with working("embed", rows) as advance:
            options: dict[str, Any] = {"normalize": normalize, "precision": precision, "batch_size": batch_size}
            if target is not None:
                options |= {"with_text": with_text, "settings": settings}
                report = embed_file(encoder, source, target, progress=advance, **options)
            else:
                assert stream is not None
                with open_sink(stream, ".jsonl", encoder.width, with_text=with_text) as sink:
                    report = embed_stream(encoder, source, sink, progress=advance, **options)
    return Embedded(target, encoder, report)


def similarities(
    first: str | Path,
    second: str | Path,
    model: "Model" = "mini",
    *,
    text_field: str | None = None,
    device: str = "auto",
    dtype: str = "stored",
) -> Iterator[tuple[str, str, float]]:
    """Yield the pairs of two sentences, or of the rows of two files, with their cosine, -1 to 1.

    Args:
        first: A sentence, or a file where one of that name is there.
        second: A sentence where the first is one, else a file of as many rows.
        model: An encoder, or what ``load`` takes.
        text_field: Column of the sentence.
        device: See ``load``.
        dtype: See ``load``.

    Raises:
        UsageError: A sentence and a file, or other numbers of rows.
        NotFoundError: No such model.
    """
    with open_pairs(str(first), str(second), Fields(text=text_field)) as (pairs, total):
        from promptcli.embedding.writing import similarity_stream
        from promptcli.models import loading as encoders

        encoder = encoders.open_model(model, device=device, dtype=dtype)
        with working("similarity", 2 * total) as advance:
            yield from similarity_stream(encoder, pairs, progress=advance)


@dataclass(frozen=True)
class EmbeddedParts:
    """What became of a folder of parts."""

    folder: Path
    plan: Plan
    made: list[int]  #: shards, by this call
    there: int  #: parts that are whole
    finished: bool  #: every part and the manifest are there
    seconds: float


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
    with_text: bool = True,
    force: bool = False,
    backend: str = "torch",
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
) -> EmbeddedParts:
    """Encode files into a folder of Parquet parts, by one process or many; parts that are whole are not made again.

    Args:
        files: Files, globs, folders of Parquet files and URLs (``hf://``, ``s3://``).
        folder: Of the parts.
        shards: How many parts there are in all.
        model: See ``embed``.
        shard: Make this part alone, from 0; the one that completes the folder writes its manifest.
        workers: Worker processes; by default one a GPU, else this process alone.
        engine: ``local``, or ``ray``: actors of a Ray cluster.
        address: Of the Ray cluster; by default one on this machine.
        text_field: See ``embed``.
        id_field: See ``embed``.
        normalize: See ``embed``.
        precision: ``float32`` or ``float16``.
        with_text: See ``embed``.
        force: Begin the folder again.
        backend: See ``load``.
        device: See ``load``.
        dtype: See ``load``.
        threads: Processor threads of a process.

    Raises:
        UsageError: Options that do not go together, or a folder that was begun with others.
        PromptcliError: A part that could not be made; the others stay.
    """
    folder = Path(folder)
    _check_shard(shards, shard, (workers, engine, address), force=force)
    check_folder(folder, precision)
    names = [str(file) for file in files]
    remote = needs_network(names)
    if remote is not None:
        if is_offline():
            raise UsageError(f"{remote} is on another machine, which `offline` forbids; copy it here")
        note(f"reading {remote} over the network")
    if force and is_part_folder(folder):
        remove_folder(folder)
    found = find_inputs(names)
    from promptcli.embedding.writing import counted_inputs, finish_folder, make_plan, missing_shards
    from promptcli.models import loading as encoders

    inputs = counted_inputs(folder, found, Fields(text_field, id_field), shards)
    rows = sum(file.rows for file in inputs)
    entry = encoders.entry_of(model)
    opened = [encoders.open_model(model, device=device, dtype=dtype, backend=backend, rows=rows)]
    options: dict[str, Any] = {"normalize": normalize, "with_text": with_text, "precision": precision}
    plan = make_plan(folder, opened[0], inputs, shards, **options)
    todo = missing_shards(folder, plan, shard)
    start = time.perf_counter()
    if todo:
        from promptcli.embedding import part_job

        graphs = encoders.open_registry().graphs_folder
        job = part_job.PartJob(folder, plan, inputs, entry, graphs, threads, is_offline())
        with working("embed", sum(stop - first for first, stop in map(plan.bounds, todo))) as advance:
            pool = part_job.Pool(workers, device, address, advance, note)
            _make(job, todo, opened, pool, engine, alone=shard is not None)
    finished = finish_folder(folder, plan, len(todo))
    there = len(parts_there(folder, plan.shards))
    return EmbeddedParts(folder, plan, todo, there, finished, time.perf_counter() - start)


def _check_shard(shards: int, shard: int | None, made_by: tuple[int | None, str, str | None], *, force: bool) -> None:
    """Refuse options that do not go together, and a shard that is out of range."""
    workers, engine, address = made_by
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if address is not None and engine != "ray":
        raise UsageError("`address` is of a Ray cluster; give `engine` ray, too")
    if shard is None:
        return
    if not 0 <= shard < shards:
        raise UsageError(f"`shard` {shard} is out of range; of `shards` {shards} it is 0 to {shards - 1}")
    if (workers, engine) != (None, "local"):
        raise UsageError("`shard` makes one part in this process; leave out `workers` and `engine`")
    if force:
        raise UsageError("`force` would take away the parts of others; leave it out with `shard`")


def _make(
    job: "PartJob", todo: list[int], encoders: "list[Encoder]", pool: "Pool", engine: str, *, alone: bool
) -> None:
    """Make parts; other processes do without the encoder here, whose memory is given back."""
    from promptcli.embedding.part_job import make_here

    if engine == "ray":
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # read at import: what it repairs itself is no news
        from promptcli.embedding.ray_engine import run_ray

        encoders.clear()
        run_ray(job, todo, pool)
    elif alone or len(pool.devices()) == 1:
        make_here(job, todo, encoders[0], pool.progress)
    else:
        from promptcli.embedding.workers import run_workers

        encoders.clear()
        run_workers(job, todo, pool)
