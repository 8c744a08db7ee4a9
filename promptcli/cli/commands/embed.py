"""The commands ``embed`` and ``similarity``: sentences to vectors, in one file or in parts, and the
cosine of sentences or files.
"""

import io
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from promptcli import embedding as library
from promptcli.cli.console import note, result, result_json
from promptcli.cli.options import (
    Backbone,
    Dim,
    Json,
    ModelName,
    PoolingSpec,
    Prompt,
    RecipeFields,
    Transforms,
    choice_of,
    recipe_changes,
)
from promptcli.cli.signatures import command_of
from promptcli.errors import UsageError, counted
from promptcli.notes import note_counts

if TYPE_CHECKING:
    from promptcli.embedding import Embedded, EmbeddedParts


def embed(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help=(
                "Sentences: text (one a line), .csv, .tsv, .jsonl, .json (each also .gz, .bz2, .xz,"
                " .zst), .parquet, FILE:COLUMN, - for standard input, or the sentences themselves."
                " With --shards: many files, globs, folders of .parquet files, URLs (hf://, s3://)."
            ),
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help=(
                "Vector file: .npy, .parquet or .jsonl; a stream gets JSONL. Default: FILE.npy, or"
                " FILE.COLUMN.npy if the column is named, next to the input."
            ),
        ),
    ] = None,
    backbone: Backbone = None,
    prompt: Prompt = None,
    pooling: PoolingSpec = None,
    transforms: Transforms = None,
    set: RecipeFields = None,
    model: ModelName = None,
    dim: Dim = None,
    text_field: Annotated[
        str | None,
        typer.Option(
            help=(
                "Column of the sentence, by name or number. Default: `text`, else `sentence`, else"
                " the only one."
            )
        ),
    ] = None,
    id_field: Annotated[
        str | None,
        typer.Option(
            help=(
                "Column of the id, by name or number; - for row numbers. Default: `id`, else row"
                " numbers."
            )
        ),
    ] = None,
    split: Annotated[
        bool,
        typer.Option(
            "--split",
            help=(
                "Split texts longer than the model's window at paragraph and sentence ends; part 2"
                " of row 7 has the id 7#2."
            ),
        ),
    ] = False,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale every vector to length 1.")
    ] = False,
    precision: Annotated[
        str,
        typer.Option(
            help=(
                "float32, float16, int8 (256 steps between a dimension's extremes), binary or"
                " ubinary (packed signs). The loss is measured and printed."
            )
        ),
    ] = "float32",
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Largest batch. Default: as many sentences as fit a budget of tokens."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the output.")] = False,
    bad_lines: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=(
                "File that gets the rows that cannot be read, as JSON lines with number, reason and"
                " line; they are blank rows. Default: the first one is refused."
            ),
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=99_999,
            rich_help_panel="Parts",
            help=(
                "Split the output into this many Parquet files, in the folder OUTPUT; the same"
                " command resumes it."
            ),
        ),
    ] = None,
    shard: Annotated[
        int | None, typer.Option(rich_help_panel="Parts", help="Make this part only, from 0.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel="Parts",
            help=(
                "Worker processes. Default: one per GPU, without GPUs this process only; with Ray"
                " as many as its CPUs or GPUs."
            ),
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            rich_help_panel="Parts",
            help="local, or ray: each part is a task of a Ray cluster (extra `ray`).",
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Parts",
            help=(
                "The Ray cluster, HOST:PORT, or auto on one of its nodes. Default: one that is"
                " started for this call, on this machine alone."
            ),
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Encode the sentences of a file.

    Row i of the output is line i of the input, from 0; blank lines keep their row.

    OUTPUT.manifest.json says which model and input the vectors come from, and how int8 is read. A
    file appears complete or not at all; if the same call has made it before, from the same bytes,
    it stays unchanged.
    """
    changes = recipe_changes(backbone, prompt, pooling, transforms, set)
    chosen = choice_of(model, changes, dim=dim)
    if shards is not None:
        for option, is_given in (("split", split), ("batch-size", batch_size is not None)):
            if is_given:
                raise UsageError(f"--{option} is for one output file; leave out --shards")
        if output in (None, "-"):
            raise UsageError("--shards writes a folder; name it with -o FOLDER")
        parts = library.embed_parts(
            files,
            output,
            shards,
            chosen,
            shard=shard,
            workers=workers,
            engine=engine,
            address=address,
            text_field=text_field,
            id_field=id_field,
            normalize=normalize,
            precision=precision,
            force=force,
            bad_lines=bad_lines,
        )
        _show_parts(parts, as_json=json)
        return
    of_parts = (
        ("shard", shard is not None),
        ("workers", workers is not None),
        ("engine", engine != "local"),
        ("address", address is not None),
    )
    for option, is_given in of_parts:
        if is_given:
            raise UsageError(f"--{option} needs --shards: how many parts there are in all")
    from promptcli.data.dialect import split_columns

    source: str | BinaryIO = files[0]
    if files[0] == "-":
        source = sys.stdin.buffer
    if _are_sentences(files):
        what = "a sentence" if len(files) == 1 else f"{len(files)} sentences"
        note(f"no such file; read as {what}")
        source = io.BytesIO("\n".join(files).encode())
    is_stream = not isinstance(source, str) or Path(split_columns(source)[0]).is_fifo()
    target: str | BinaryIO | None = output
    if output == "-" or (output is None and is_stream):
        if json:
            raise UsageError("--json: the vectors are on standard output; give a file with -o")
        target = sys.stdout.buffer
    made = library.embed(
        source,
        target,
        chosen,
        text_field=text_field,
        id_field=id_field,
        split=split,
        normalize=normalize,
        precision=precision,
        batch_size=batch_size,
        force=force,
        bad_lines=bad_lines,
    )
    _show(made, precision, as_json=json)


def _are_sentences(words: list[str]) -> bool:
    """Return whether the words of the command line are sentences: no file has any of their
    names.
    """
    from promptcli.data.dialect import names_file
    from promptcli.data.files import check_file, check_sentence

    exist = [word == "-" or os.path.exists(word) or names_file(word) for word in words]
    if any("://" in word and " " not in word for word in words) or (len(words) > 1 and all(exist)):
        raise UsageError(
            "several files, and URLs, are embedded into a folder of parts; give --shards N -o"
            " FOLDER"
        )
    if any(exist) and not all(exist):
        check_file(Path(words[exist.index(False)]))
    if all(exist):
        return False
    for word in words:
        check_sentence(word)
        if "\n" in word:
            raise UsageError(f"sentence {word!r:.60} has a line break; give a file of sentences")
    return True


def _show(made: "Embedded", precision: str, *, as_json: bool) -> None:
    report = made.report
    width = made.encoder.width
    limit = f"{made.encoder.max_length:,} tokens"
    note_counts(
        report.rows, blank=report.blank, zero=report.zero, truncated=report.truncated, limit=limit
    )
    took = "already there, unchanged"
    if made.seconds is not None:
        took = f"{made.seconds:,.1f} s ({report.rows / max(made.seconds, 1e-9):,.0f} sentences/s)"
    vectors = counted(report.rows, "vector")
    note(f"{vectors} of {width:,} dimensions in {made.output or 'standard output'}, {took}")
    if report.loss is not None:
        loss = f"recall@10 {report.loss.recall_at_10:.3f}"
        note(f"{precision} against float32 on {counted(report.loss.rows, 'row')}: {loss}")
    if as_json:
        counts = asdict(report)
        del counts["ranges"], counts["blank_rows"]
        result_json({"output": str(made.output), "dim": width, "precision": precision, **counts})


def _show_parts(made: "EmbeddedParts", *, as_json: bool) -> None:
    manifest = made.manifest
    rate = "none made"
    if made.made:
        rows = sum(stop - first for first, stop in map(manifest.bounds, made.made))
        speed = f"{rows / max(made.seconds, 1e-9):,.0f} sentences/s"
        rate = f"{len(made.made):,} made in {made.seconds:,.1f} s ({speed})"
    if made.finished:
        from promptcli.data.vectors.part_folder import total_report

        report = total_report(made.folder, manifest)
        note_counts(report.rows, blank=report.blank, zero=report.zero, truncated=report.truncated)
        vectors = f"{counted(manifest.rows, 'vector')} of {manifest.dim:,} dimensions"
        note(f"{vectors} in {counted(manifest.shards, 'part')} in {made.folder}, {rate}")
    else:
        note(f"{made.parts:,} of {counted(manifest.shards, 'part')} are in {made.folder}, {rate}")
    if as_json:
        about = {
            "output": str(made.folder),
            "rows": manifest.rows,
            "dim": manifest.dim,
            "shards": manifest.shards,
        }
        precision = manifest.settings.precision
        result_json({**about, "precision": precision, "made": made.made, "finished": made.finished})


@command_of(library.similarities, flags={"first": "A", "second": "B"})
def similarity(
    similarities: "partial[Iterator[tuple[str, str, float]]]", json: Json = False
) -> None:
    for left, right, cosine in similarities():
        if json:
            result_json({"a": left, "b": right, "similarity": cosine})
        else:
            result(f"{cosine:.4f}")
