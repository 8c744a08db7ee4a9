"""The commands ``embed`` and ``similarity``: sentences to vectors, in parts too; the likeness of sentences or files."""

import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from promptcli.cli import console, opening
from promptcli.cli.options import BackendName, Json, ModelChoice, Runtime, option_in
from promptcli.errors import UsageError, unknown
from promptcli.extensions import added_to

if TYPE_CHECKING:
    from promptcli.data.tables import Fields
    from promptcli.data.vectors.part_folder import Plan
    from promptcli.data.vectors.precision import Loss
    from promptcli.encoder.embedding import EmbedReport
    from promptcli.encoder.encoder import Encoder
    from promptcli.scaling.part_job import PartJob

_option = option_in("Parts")
#: What makes the parts: processes of this machine, or a cluster.
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Sharding:
    """Into how many parts, which of them, and who makes them."""

    shards: Annotated[
        int | None,
        _option(
            min=1,
            max=99_999,
            help="Write a folder of so many Parquet files and a manifest; what is whole is not made again.",
        ),
    ] = None
    shard: Annotated[
        int | None,
        _option(help="Make this part alone, from 0, in any order, many at once; the last one writes the manifest."),
    ] = None
    workers: Annotated[
        int | None, _option(min=1, help="Worker processes. Default: one a GPU, else this process alone.")
    ] = None
    engine: Annotated[str, _option(help="local, or ray: actors of a Ray cluster (extra `ray`).")] = "local"
    address: Annotated[str | None, _option(help="Of the Ray cluster. Default: this machine.")] = None

    def check(self) -> None:
        """Refuse options that do not go together, and a shard that is out of range."""
        if self.engine not in ENGINES:
            raise unknown("engine", self.engine, ENGINES)
        if self.address is not None and self.engine != "ray":
            raise UsageError("--address is of a Ray cluster; give --engine ray too")
        if self.shards is None:
            given = {"--shard": self.shard, "--workers": self.workers, "--engine": self.engine != "local" or None}
            for option, value in given.items():
                if value is not None:
                    raise UsageError(f"{option} needs --shards: how many parts there are in all")
        elif self.shard is not None:
            if not 0 <= self.shard < self.shards:
                last = self.shards - 1
                raise UsageError(f"--shard {self.shard} is out of range; of --shards {self.shards} it is 0 to {last}")
            if (self.workers, self.engine) != (None, "local"):
                raise UsageError("--shard makes one part in this process; leave out --workers and --engine")


@dataclass(frozen=True)
class Stored:
    """What is written how."""

    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to length 1.")] = False
    precision: Annotated[
        str,
        typer.Option(
            help="float32, float16, int8 (256 steps between a dimension's extremes), binary or ubinary (packed signs)."
            " What is lost is measured and said."
        ),
    ] = "float32"
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Sentences in a forward pass, at most. Default: as many as fit a budget of tokens."),
    ] = None
    no_text: Annotated[bool, typer.Option("--no-text", help="Leave the sentences out of .parquet and JSONL.")] = False
    force: Annotated[bool, typer.Option("--force", help="Replace the output file or folder.")] = False
    as_json: Json = False
    backend: BackendName = "torch"


def embed_parts(
    files: Sequence[str],
    choice: ModelChoice,
    runtime: Runtime,
    folder: Path | None,
    fields: "Fields",
    sharding: Sharding,
    stored: Stored,
) -> None:
    """Make what is missing of a folder of parts."""
    from promptcli.data.input_files import find_inputs, needs_network
    from promptcli.data.vectors.part_folder import check_folder, check_precision

    shards = sharding.shards or 1
    if folder is None or str(folder) == "-":
        raise UsageError("--shards writes a folder; name it with -o FOLDER")
    check_precision(stored.precision)
    check_folder(folder)
    remote = needs_network(files)
    if remote is not None:
        if runtime.offline:
            raise UsageError(f"{remote} is on another machine, which --offline forbids; copy it here")
        console.note(f"reading {remote} over the network")
    if stored.force:
        _begin_anew(folder, sharding)
    names = find_inputs(files)
    opening.configure_libraries(runtime)
    from promptcli.encoder.embedding import counted_inputs, finish_folder, make_plan, missing_shards

    inputs = counted_inputs(folder, names, fields, shards)
    rows = sum(file.rows for file in inputs)
    encoders = [opening.open_encoder(choice, runtime, default_dtype="auto", backend=stored.backend, rows=rows)]
    plan = make_plan(
        folder,
        encoders[0],
        inputs,
        shards,
        normalize=stored.normalize,
        with_text=not stored.no_text,
        precision=stored.precision,
    )
    missing = missing_shards(folder, plan)
    todo = [shard for shard in missing if sharding.shard in (None, shard)]
    start = time.perf_counter()
    if todo:
        from promptcli.scaling.part_job import PartJob

        entry, graphs = opening.chosen_entry(choice), opening.open_registry().graphs_folder
        job = PartJob(folder, plan, inputs, entry, graphs, runtime.threads, runtime.offline)
        rows = sum(stop - first for first, stop in map(plan.bounds, todo))
        with console.progress("embed", rows) as progress:
            _make(job, todo, encoders, sharding, runtime, progress)
    finished = finish_folder(folder, plan, len(todo))
    _tell_parts(folder, plan, finished, todo, time.perf_counter() - start)
    if stored.as_json:
        about = {"output": str(folder), "rows": plan.rows, "dim": plan.dim, "precision": plan.precision}
        console.result_json({**about, "shards": plan.shards, "made": todo, "finished": finished})


def _begin_anew(folder: Path, sharding: Sharding) -> None:
    from promptcli.data.vectors.part_folder import is_part_folder
    from promptcli.storage.files import remove_folder

    if sharding.shard is not None:
        raise UsageError("--force would take away the parts of others; leave it out with --shard")
    if is_part_folder(folder):
        remove_folder(folder)


def _make(
    job: "PartJob",
    todo: list[int],
    encoders: "list[Encoder]",
    sharding: Sharding,
    runtime: Runtime,
    progress: Callable[[int], None],
) -> None:
    """Make parts where the options say; other processes do without the encoder here, whose memory is given back."""
    from promptcli.scaling.part_job import Pool, make_here

    pool = Pool(sharding.workers, runtime.device, sharding.address, progress, console.note)
    if sharding.engine == "ray":
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # read at import: what it mends itself is no news
        from promptcli.scaling.ray_engine import run_ray

        encoders.clear()
        run_ray(job, todo, pool)
    elif sharding.shard is not None or len(pool.devices()) == 1:
        make_here(job, todo, encoders[0], progress)
    else:
        from promptcli.scaling.workers import run_workers

        encoders.clear()
        run_workers(job, todo, pool)


def _tell_parts(folder: Path, plan: "Plan", finished: bool, made: list[int], seconds: float) -> None:
    from promptcli.data.vectors.part_folder import PartFolder, parts_there

    rows = sum(stop - first for first, stop in map(plan.bounds, made))
    rate = (
        f"{len(made):,} made in {seconds:,.1f} s ({rows / max(seconds, 1e-9):,.0f} sentences/s)"
        if made
        else "none made"
    )
    if not finished:
        there = len(parts_there(folder, plan.shards))
        console.note(f"{there:,} of {plan.shards:,} parts are in {folder}, {rate}; the last one finishes it")
        return
    manifest = PartFolder(folder).manifest
    console.note_counts(plan.rows, blank=manifest.blank, zero=manifest.zero, truncated=manifest.truncated)
    whole = f"{plan.rows:,} vectors of {plan.dim:,} numbers in {plan.shards:,} parts in {folder}"
    console.note(f"{whole}, {rate}")


_STANDARD = Path("-")

TextField = Annotated[
    str | None,
    typer.Option("--text-field", help="Column of the sentence. Default: `text`, else `sentence`, else the only one."),
]
IdField = Annotated[
    str | None, typer.Option("--id-field", help="Column of the id. Default: `id`, else the row number.")
]


def embed(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Sentences: text (one a line), .jsonl, .csv, .tsv (each also .gz), .parquet, or - for standard input"
            " (text; JSONL where a field is named); or sentences themselves. With"
            " --shards many files, globs, folders of .parquet files and URLs"
            " (hf://, s3://).",
        ),
    ],
    choice: ModelChoice,
    runtime: Runtime,
    sharding: Sharding,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Vector file: .npy, .parquet, .jsonl or .safetensors; - writes JSONL to stdout; with --shards a"
            " folder. Default: FILE.npy next to the input; stdout for standard input and pipes." + added_to("formats"),
        ),
    ] = None,
    text_field: TextField = None,
    id_field: IdField = None,
    *,
    stored: Stored,
) -> None:
    """Encode the sentences of a file. Row i of the output is line i of the input, counted from 0; blank lines too.

    OUTPUT.manifest.json, written last, says which model and input the vectors come from, and how int8 is read.

    With --shards the output is a folder of Parquet files, made by one process or by many, which goes on where it was
    stopped when the same command is run again.
    """
    from promptcli.data.tables import Fields

    sharding.check()
    if sharding.shards is not None:
        embed_parts(files, choice, runtime, output, Fields(text_field, id_field), sharding, stored)
        return
    from promptcli.data.text import are_sentences, open_source

    given = io.BytesIO("\n".join(files).encode()) if are_sentences(files) else None
    if given is not None:
        console.note(f"no such file; read as {'a sentence' if len(files) == 1 else f'{len(files)} sentences'}")
    file = _STANDARD if given is not None else Path(files[0])
    if given is None and (len(files) > 1 or "://" in files[0]):
        raise UsageError("several files, and URLs, are embedded into a folder of parts; give --shards N -o FOLDER")
    from promptcli.data.vectors import output_of
    from promptcli.data.vectors.precision import precision_named

    precision = stored.precision
    form = precision_named(precision)
    target = output_of(file, output, id_field=id_field, force=stored.force)
    if target is None and (stored.as_json or form.ranged):
        why = f"--precision {precision}: needs a manifest"
        if stored.as_json:
            why = "--json: the vectors are on standard output"
        raise UsageError(f"{why}; give a file with -o")
    with open_source(file, Fields(text_field, id_field), stdin=given or _stdin(file)) as source:
        from promptcli.cli.opening import open_encoder  # after the input is known to be right: it loads torch
        from promptcli.data.vectors import open_sink
        from promptcli.encoder.embedding import embed_file, embed_stream

        rows = source.total() if stored.backend == "auto" or console.draws_bars() else None
        encoder = open_encoder(choice, runtime, default_dtype="auto", backend=stored.backend, rows=rows)
        with console.progress("embed", rows) as progress:
            options: dict[str, Any] = {"normalize": stored.normalize, "precision": precision, "progress": progress}
            options["batch_size"] = stored.batch_size
            if target is None:
                with open_sink(sys.stdout.buffer, ".jsonl", encoder.width, with_text=not stored.no_text) as sink:
                    report = embed_stream(encoder, source, sink, **options)
            else:
                report = embed_file(encoder, source, target, with_text=not stored.no_text, **options)
    _tell(report, encoder, "standard output" if target is None else str(target))
    if report.loss is not None:
        console.note(_lost(precision, report.loss))
    if stored.as_json:
        known = {key: value for key, value in asdict(report).items() if key != "ranges"}
        console.result_json({"output": str(target), "dim": encoder.width, "precision": precision, **known})


def similarity(
    a: Annotated[str, typer.Argument(metavar="A", help="A sentence, or a file if there is one of that name.")],
    b: Annotated[str, typer.Argument(metavar="B", help="A sentence where A is one, else a file of as many rows.")],
    choice: ModelChoice,
    runtime: Runtime,
    text_field: TextField = None,
    json_lines: Annotated[bool, typer.Option("--json", help='JSONL {"a", "b", "similarity"}, unrounded.')] = False,
) -> None:
    """Print the cosine of two sentences, or of each pair of rows of two files.

    A and B are files (or pipes, <(COMMAND)) where files of those names exist; a sentence that is also the name of a
    file is compared from another folder.
    """
    from promptcli.data.tables import Fields
    from promptcli.data.text import open_pairs

    with open_pairs(a, b, Fields(text=text_field)) as (pairs, total):
        from promptcli.cli.opening import open_encoder  # after the input is known to be right: it loads torch
        from promptcli.encoder.embedding import similarity_stream

        encoder = open_encoder(choice, runtime)
        with console.progress("similarity", 2 * total) as progress:
            for left, right, cosine in similarity_stream(encoder, pairs, progress=progress):
                if json_lines:
                    console.result_json({"a": left, "b": right, "similarity": cosine})
                else:
                    console.result(f"{cosine:.4f}")


def _stdin(file: Path) -> BinaryIO | None:
    return sys.stdin.buffer if file == _STANDARD else None


def _lost(precision: str, loss: "Loss") -> str:
    order = "" if loss.spearman is None else f"Spearman of their cosines {loss.spearman:.4f}, "
    outside = f", {loss.clipped:.2%} of the numbers beyond the first window's" if loss.clipped else ""
    return f"{precision} against float32 on {loss.rows:,} rows: {order}recall@10 {loss.recall_at_10:.3f}{outside}"


def _tell(report: "EmbedReport", encoder: "Encoder", where: str) -> None:
    limit = f"{encoder.max_length:,} tokens"
    console.note_counts(report.rows, blank=report.blank, zero=report.zero, truncated=report.truncated, limit=limit)
    rate = report.rows / max(report.seconds, 1e-9)
    took = f"{report.seconds:,.1f} s ({rate:,.0f} sentences/s)"
    console.note(f"{report.rows:,} vectors of {encoder.width:,} numbers in {where}, {took}")
