"""The commands ``embed`` and ``similarity``: sentences to vectors, in parts too.

The cosine of sentences or files.
"""

import inspect
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from promptcli.cli.console import note, result, result_json
from promptcli.cli.options import Json
from promptcli.cli.signatures import Flag, command_of
from promptcli.embedding import embed as library
from promptcli.errors import UsageError, counted
from promptcli.notes import note_counts

if TYPE_CHECKING:
    from promptcli.embedding.embed import Embedded, EmbeddedParts


@command_of(
    library.embed,
    library.embed_parts,
    flags={
        "file": None,
        "files": Flag(
            "FILE...",
            required=True,
            help=(
                "Sentences: text (one a line), .csv, .tsv, .jsonl, .json (each also .gz, .bz2, .xz,"
                " .zst), .parquet, - for standard input, or the sentences themselves. With"
                " --shards: many files, globs, folders of .parquet files, URLs (hf://, s3://)."
            ),
        ),
        "output": "--output -o",
        "folder": None,
        "batch_size": Flag(min=1),
        "shards": Flag(min=1, max=99_999, panel="Parts"),
        "shard": Flag(panel="Parts"),
        "workers": Flag(min=1, panel="Parts"),
    },
)
def embed(
    embed: "partial[Embedded]", embed_parts: "partial[EmbeddedParts]", json: Json = False
) -> None:
    output, parts = embed.keywords["output"], embed_parts.keywords
    files: list[str] = parts["files"]
    if "shards" in parts:
        for name, parameter in inspect.signature(library.embed).parameters.items():
            if (
                name not in (*parts, "output")
                and embed.keywords.get(name, parameter.default) != parameter.default
            ):
                raise UsageError(
                    f"--{name.replace('_', '-')} is for one output file; leave out --shards"
                )
        if output in (None, "-"):
            raise UsageError("--shards writes a folder; name it with -o FOLDER")
        _show_parts(embed_parts(folder=output), as_json=json)
        return
    for option in ("shard", "workers"):
        if parts[option] is not None:
            raise UsageError(f"--{option} needs --shards: how many parts there are in all")
    source: str | BinaryIO = files[0] if files[0] != "-" else sys.stdin.buffer
    if _are_sentences(files):
        note(
            "no such file; read as"
            f" {'a sentence' if len(files) == 1 else f'{len(files)} sentences'}"
        )
        source = io.BytesIO("\n".join(files).encode())
    to_stdout = output == "-" or (
        output is None and (not isinstance(source, str) or Path(source).is_fifo())
    )
    if to_stdout and json:
        raise UsageError("--json: the vectors are on standard output; give a file with -o")
    made = embed(file=source, output=sys.stdout.buffer if to_stdout else output)
    _show(made, embed.keywords["precision"], as_json=json)


def _are_sentences(words: list[str]) -> bool:
    """Return whether the words of the command line are sentences: no file has any of their
    names.
    """
    from promptcli.data.files import check_file, check_sentence

    exist = [word == "-" or os.path.exists(word) for word in words]
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
    report, width = made.report, made.encoder.width
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
        counts = {
            key: value
            for key, value in asdict(report).items()
            if key not in ("ranges", "blank_rows")
        }
        result_json({"output": str(made.output), "dim": width, "precision": precision, **counts})


def _show_parts(made: "EmbeddedParts", *, as_json: bool) -> None:
    manifest, rate = made.manifest, "none made"
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
