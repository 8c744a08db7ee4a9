"""The commands ``embed`` and ``similarity``: sentences to vectors, in one file or in parts, and the
cosine of sentences or files.
"""

import dataclasses
import io
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from promptcli.cli.console import note, result, result_json
from promptcli.cli.hits import rarity_text
from promptcli.cli.job_options import JobOptions
from promptcli.cli.options import RUNTIME, Json, words_of
from promptcli.embedding import Embedded, EmbeddedParts, EmbedJob, EmbedPartsJob, SimilarityJob
from promptcli.errors import UsageError, counted
from promptcli.notes import note_counts

#: Fields of ``EmbedPartsJob`` that have options; the others are those of ``EmbedJob``.
_OF_PARTS = ("shards", "shard", "workers", "engine", "address")
_SHARED = ("text_field", "id_field", "normalize", "precision", "force", "bad_lines")


def embed(
    job: EmbedJob,
    parts: Annotated[dict[str, Any], JobOptions(EmbedPartsJob, only=_OF_PARTS)],
    json: Json = False,
) -> None:
    words = words_of(job.file)
    if "shards" in parts:
        _embed_parts(job, words, parts, as_json=json)
        return
    for option in parts:
        raise UsageError(f"--{option} needs --shards: how many parts there are in all")
    from promptcli.data.file_arguments import split_columns

    source: str | BinaryIO = words[0]
    if words[0] == "-":
        source = sys.stdin.buffer
    if _are_sentences(words):
        what = "a sentence" if len(words) == 1 else f"{len(words)} sentences"
        note(f"no such file; read as {what}")
        source = io.BytesIO("\n".join(words).encode())
    is_stream = not isinstance(source, str) or Path(split_columns(source)[0]).is_fifo()
    target = job.output
    if target == "-" or (target is None and is_stream):
        if json:
            raise UsageError("--json: the vectors are on standard output; give a file with -o")
        target = sys.stdout.buffer
    made = dataclasses.replace(job, file=source, output=target).run()
    _show(made, job.precision, as_json=json)


def _embed_parts(job: EmbedJob, files: list[str], parts: dict[str, Any], *, as_json: bool) -> None:
    for option, is_given in (("split", job.split), ("batch-size", job.batch_size is not None)):
        if is_given:
            raise UsageError(f"--{option} is for one output file; leave out --shards")
    if job.output in (None, "-"):
        raise UsageError("--shards writes a folder; name it with -o FOLDER")
    shared = {name: getattr(job, name) for name in _SHARED}
    made = EmbedPartsJob(files, str(job.output), model=job.model, **shared, **parts).run()
    _show_parts(made, as_json=as_json)


def _are_sentences(words: list[str]) -> bool:
    """Return whether the words of the command line are sentences: no file has any of their
    names.
    """
    from promptcli.data.file_arguments import names_file
    from promptcli.data.input_files import check_file, check_sentence

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


def _show(made: Embedded, precision: str, *, as_json: bool) -> None:
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


def _show_parts(made: EmbeddedParts, *, as_json: bool) -> None:
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


def similarity(job: SimilarityJob, json: Json = False) -> None:
    if json:
        for left, right, cosine, rarity in job.run_with_rarity():
            result_json({"a": left, "b": right, "similarity": cosine, "rarity": rarity})
    elif job.are_files or RUNTIME.get().quiet:
        for _, _, cosine in job.run():
            result(f"{cosine:.4f}")
    else:
        for _, _, cosine, rarity in job.run_with_rarity():
            result(f"{cosine:.4f}")
            sys.stdout.flush()  # a reader that is gone is not told the rest
            if rarity is not None:
                note(f"closer than {rarity_text(rarity).strip()} of unrelated pairs of sentences")
