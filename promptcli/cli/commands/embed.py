"""The commands ``embed`` and ``similarity``: sentences to vectors, and the likeness of two sentences or files."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from promptcli.cli import console
from promptcli.cli.commands.embed_parts import Sharding, Stored, embed_parts
from promptcli.cli.options import ModelChoice, Runtime
from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.data.vectors.precision import Loss
    from promptcli.encoder.embedding import EmbedReport
    from promptcli.encoder.encoder import Encoder

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
            " (text; JSONL where a field is named). With --shards many files, globs, folders of .parquet files and URLs"
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
            " folder. Default: FILE.npy next to the input; stdout for standard input and pipes.",
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
    file = Path(files[0])
    if len(files) > 1 or "://" in files[0]:
        raise UsageError("several files, and URLs, are embedded into a folder of parts; give --shards N -o FOLDER")
    from promptcli.data.text import open_source
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
    with open_source(file, Fields(text_field, id_field), stdin=_stdin(file)) as source:
        from promptcli.cli.opening import open_encoder  # after the input is known to be right: it loads torch
        from promptcli.data.vectors import open_sink
        from promptcli.encoder.embedding import embed_file, embed_stream

        encoder = open_encoder(choice, runtime, default_dtype="auto")
        with console.progress("embed", source.total() if console.draws_bars() else None) as progress:
            options: dict[str, Any] = {"normalize": stored.normalize, "precision": precision, "progress": progress}
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
