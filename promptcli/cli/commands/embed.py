"""The commands ``embed``, which writes the vectors of sentences to a file or to a folder of parts,
and ``similarity``, which prints cosines of sentences.
"""

import functools
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

import promptcli
from promptcli.cli.console import note, print_json, print_line
from promptcli.cli.options import (
    Csv,
    Force,
    IdField,
    Json,
    SkipBad,
    TextField,
    stream_or_name,
    takes_model,
)
from promptcli.data.csv_options import csv_options
from promptcli.errors import UsageError, with_count
from promptcli.notes import note_counts
from promptcli.recipe import ModelChoice

if TYPE_CHECKING:
    from promptcli.embedding import PartsResult
    from promptcli.embedding.writing import EmbedResult

_part_option = functools.partial(typer.Option, rich_help_panel="Parts")


@takes_model()
def embed(
    choice: ModelChoice,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Text (one sentence on each line), CSV, TSV, JSONL, JSON (each also compressed:"
            " .gz, .bz2, .xz, .zst), XLSX or Parquet, also FILE:COLUMN; or - for standard"
            " input. With --shards also many files, globs, folders of .parquet files, URLs"
            " (hf://, s3://).",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="Vector file: .npy, .parquet or .jsonl; - for JSONL on standard output. Default:"
            " FILE.npy next to the input.",
        ),
    ] = None,
    text_field: TextField = None,
    id_field: IdField = None,
    split: Annotated[
        bool,
        typer.Option(
            "--split",
            help="Split texts longer than the model's window at paragraph and sentence ends; part 2"
            " of row 7 has the id 7#2.",
        ),
    ] = False,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale every vector to length 1.")
    ] = False,
    precision: Annotated[
        str,
        typer.Option(
            help="float32, float16, int8 (256 steps between a dimension's extremes), binary or"
            " ubinary (packed signs). The loss is measured and printed."
        ),
    ] = "float32",
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of sentences in a batch. Default: as many as fit a budget of"
            " tokens.",
        ),
    ] = None,
    force: Force = False,
    csv: Csv = None,
    skip_bad: SkipBad = False,
    shards: Annotated[
        int | None,
        _part_option(
            min=1,
            max=99_999,
            help="Split the output into this many Parquet files, in the folder OUTPUT; the same"
            " command resumes an interrupted run.",
        ),
    ] = None,
    shard: Annotated[
        int | None,
        _part_option(help="Make only this part; parts are counted from 0."),
    ] = None,
    workers: Annotated[
        int | None,
        _part_option(
            min=1,
            help="Number of worker processes. Default: one for each GPU, or this process only if"
            " there is no GPU; with Ray, one for each of its GPUs or CPUs.",
        ),
    ] = None,
    engine: Annotated[
        str,
        _part_option(
            help="local (the default), or ray: each part is a task of a Ray cluster (extra `ray`).",
        ),
    ] = "local",
    address: Annotated[
        str | None,
        _part_option(
            help="The Ray cluster, HOST:PORT, or auto on one of its nodes. Default: one that is"
            " started for this call, only on this machine.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Encode the sentences of a file.

    Row i of the output belongs to line i of the input, from 0; empty lines keep their rows.

    OUTPUT.manifest.json records the model, the input and how to read int8. A file appears complete
    or not at all. The same command again, on the same input, changes nothing.
    """
    from promptcli.data.input_files import split_columns

    if shards is not None:
        if split or batch_size is not None:
            name = "split" if split else "batch-size"
            raise UsageError(f"--{name} is for one output file; leave out --shards")
        if output in (None, "-"):
            raise UsageError("--shards writes a folder; name it with -o FOLDER")
        parts_result = promptcli.embed_parts(
            files,
            str(output),
            shards,
            choice,
            shard=shard,
            workers=workers,
            engine=engine,
            address=address,
            text_field=text_field,
            id_field=id_field,
            normalize=normalize,
            precision=precision,
            force=force,
            csv=csv_options(csv),
            skip_bad=skip_bad,
        )
        _show_parts(parts_result, as_json=json)
        return
    if (shard, workers, engine, address) != (None, None, "local", None):
        raise UsageError(
            "--shard, --workers, --engine and --address need --shards N, the number of all parts"
        )
    if len(files) > 1 or "://" in files[0]:
        raise UsageError(
            "several files, and URLs, are embedded into a folder of parts; give --shards N -o"
            " FOLDER"
        )
    source = stream_or_name(files[0])
    is_stream = not isinstance(source, str) or Path(split_columns(source)[0]).is_fifo()
    target: str | BinaryIO | None = output
    if output == "-" or (output is None and is_stream):
        if json:
            raise UsageError("--json: the vectors are on standard output; give a file with -o")
        target = sys.stdout.buffer
    embed_result = promptcli.embed(
        source,
        target,
        choice,
        text_field=text_field,
        id_field=id_field,
        split=split,
        normalize=normalize,
        precision=precision,
        batch_size=batch_size,
        force=force,
        csv=csv_options(csv),
        skip_bad=skip_bad,
    )
    _show(embed_result, precision, as_json=json)


def _show(embed_result: "EmbedResult", precision: str, *, as_json: bool) -> None:
    report = embed_result.report
    output = str(embed_result.output or "standard output")
    width = embed_result.encoder.width
    limit = f"{embed_result.encoder.max_length:,} tokens"
    note_counts(
        report.rows, blank=report.blank, zero=report.zero, truncated=report.truncated, limit=limit
    )
    time = "already there, unchanged"
    if (seconds := embed_result.seconds) is not None:
        time = f"{seconds:,.1f} s ({report.rows / max(seconds, 1e-9):,.0f} sentences/s)"
    note(f"{with_count(report.rows, 'vector')} of {width:,} dimensions in {output}, {time}")
    if report.loss is not None:
        loss = f"recall@10 {report.loss.recall_at_10:.3f}"
        note(f"{precision} against float32 on {with_count(report.loss.rows, 'row')}: {loss}")
    if as_json:
        counts = asdict(report)
        del counts["ranges"], counts["blank_rows"]
        print_json({"output": output, "dim": width, "precision": precision, **counts})


def _show_parts(parts_result: "PartsResult", *, as_json: bool) -> None:
    manifest = parts_result.manifest
    folder = parts_result.folder
    new_parts = parts_result.made
    time = "none new"
    if new_parts:
        rows = sum(stop - start for start, stop in map(manifest.bounds, new_parts))
        seconds = parts_result.seconds
        speed = f"{rows / max(seconds, 1e-9):,.0f} sentences/s"
        time = f"{len(new_parts):,} new, {seconds:,.1f} s, {speed}"
    parts = with_count(manifest.shards, "part")
    if parts_result.finished:
        from promptcli.data.vectors.part_folder import total_report

        report = total_report(folder, manifest)
        note_counts(report.rows, blank=report.blank, zero=report.zero, truncated=report.truncated)
        vectors = f"{with_count(manifest.rows, 'vector')} of {manifest.dim:,} dimensions"
        note(f"{folder}: {vectors} in {parts} ({time})")
    else:
        note(f"{folder}: {parts_result.parts:,} of {parts} exist ({time})")
    if as_json:
        print_json(
            {
                "output": str(folder),
                "rows": manifest.rows,
                "dim": manifest.dim,
                "shards": manifest.shards,
                "precision": manifest.settings.precision,
                "made": new_parts,
                "finished": parts_result.finished,
            }
        )


@takes_model()
def similarity(
    choice: ModelChoice,
    first: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A sentence, or a file (or pipe) if one of that name exists."
        ),
    ],
    second: Annotated[
        str,
        typer.Argument(metavar="B", help="A sentence if A is one, else a file with as many rows."),
    ],
    text_field: TextField = None,
    csv: Csv = None,
    json: Json = False,
) -> None:
    """Compare two sentences, or row i of a file with row i of another: the cosine of each pair, -1
    to 1.

    If both arguments name files, the files are compared. If a sentence is also the name of a file,
    run the command in another folder.
    """
    from promptcli.embedding import compare_rows

    for text_a, text_b, cosine in compare_rows(
        first, second, choice, text_field=text_field, csv=csv_options(csv)
    ):
        if json:
            print_json({"a": text_a, "b": text_b, "similarity": cosine})
        else:
            print_line(f"{cosine:.4f}")
