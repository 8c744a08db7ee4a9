"""Sentences of many files to a folder of vectors in parts: one plan, a part for each shard, whole or not there.

A shard is a run of rows that follows from the inputs and the number of shards alone, so that the parts, one after
another, have the order of the input. Its bytes depend on nothing else: not on which other shards the same process made.
"""

import errno
import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import promptcli
from promptcli.data.input_files import InputFile, check_same, count_input, has_text_ids, read_rows
from promptcli.data.tables import Fields
from promptcli.data.vectors.parquet import ParquetSink
from promptcli.data.vectors.part_folder import (
    MANIFEST,
    PLAN,
    About,
    Plan,
    finish,
    is_whole,
    keep_plan,
    part_name,
    parts_there,
    read_plan,
)
from promptcli.encoder.embedder import Progress, silent
from promptcli.encoder.embedding import embed_stream
from promptcli.encoder.encoder import Encoder
from promptcli.errors import PromptcliError, UsageError
from promptcli.storage.documents import shown
from promptcli.storage.files import atomic_path, remove_all_leftovers

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def counted_inputs(folder: Path, names: Sequence[str], fields: Fields, shards: int) -> list[InputFile]:
    """Return the input files, counted once: what the folder's plan holds of them, else by a look at each.

    Args:
        folder: Of the parts; it may not be there yet.
        names: Files, as ``find_inputs`` gives them.
        fields: Columns, as the user gave them.
        shards: Number of parts.

    Raises:
        UsageError: The folder holds other things, another number of parts, or parts of other inputs; or there are
            fewer rows than shards.
    """
    began = str(folder)
    if (folder / PLAN).is_file():
        plan = read_plan(folder)
        if plan.shards != shards:
            raise UsageError(
                f"{folder} was begun with --shards {plan.shards}, not {shards}; give that, or another folder"
            )
        found = check_same(plan.inputs, names, began)
        for file in found:
            for option, given, chosen in (("--text-field", fields.text, file.text), ("--id-field", fields.id, file.id)):
                if given not in (None, chosen):
                    raise UsageError(f"{folder} was begun with {option} {chosen!r}, not {given!r}; give another folder")
        return found
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder for the parts with -o")
    if not folder.parent.is_dir():
        raise UsageError(
            f"{folder}: there is no folder {str(folder.parent)!r}; make it first: mkdir -p {folder.parent}"
        )
    held = {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else set()
    if held and PLAN not in held:  # else another process has begun it just now
        raise UsageError(f"{folder} holds other files (no {PLAN}); give a new folder with -o")
    inputs = [count_input(name, fields) for name in names]
    rows = sum(file.rows for file in inputs)
    if rows < shards:
        raise UsageError(
            f"--shards {shards} of {rows:,} rows; give at most {max(rows, 1):,}, and inputs that hold rows"
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
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers", "pyarrow")}
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
        versions={"promptcli": promptcli.__version__, **versions},
    )
    plan = keep_plan(folder, wanted)
    for what, there, now in (
        ("--dtype", plan.model.get("dtype"), wanted.model.get("dtype")),
        ("--backend", plan.model.get("backend", "torch"), wanted.model.get("backend", "torch")),
        ("the encoder", plan.fingerprint[:12], wanted.fingerprint[:12]),
        ("--normalize", plan.normalized, normalize),
        ("texts", plan.with_text, with_text),
        ("--precision", plan.precision, precision),
    ):
        if there != now:
            raise UsageError(
                f"{folder} was begun with {what} {shown(there)}, not {shown(now)}; give that again, or another folder"
                " with -o"
            )
    if plan.digest() != wanted.digest():
        raise UsageError(f"{folder} was begun with other inputs; give the same again, or another folder with -o")
    return plan


def missing_shards(folder: Path, plan: Plan) -> list[int]:
    """Return the shards whose parts are not there or not whole.

    Raises:
        CheckFailedError: A part is of another recipe or other inputs.
    """
    there = parts_there(folder, plan.shards)
    return sorted(set(range(plan.shards)) - {shard for shard in there if is_whole(folder, plan, shard)})


def make_part(
    folder: Path, plan: Plan, inputs: Sequence[InputFile], encoder: Encoder, shard: int, *, progress: Progress = silent
) -> None:
    """Encode the rows of a shard into its part, which takes its name when it is whole.

    Args:
        folder: Of the parts.
        plan: As ``make_plan`` gave it.
        inputs: Where the inputs are.
        encoder: The plan's.
        shard: From 0.
        progress: Called with the number of rows newly encoded.

    Raises:
        PromptcliError: An input has changed or is malformed, or the disk is full.
    """
    start, stop = plan.bounds(shard)
    for one in (encoder, *encoder.members):
        one.biases.clear()  # made batch by batch: another shard's batches would show in the last bits
    path = folder / part_name(shard, plan.shards)
    try:
        with atomic_path(path) as temporary, temporary.open("xb") as file:
            sink = ParquetSink(file, plan.dim, plan.with_text)
            try:
                records = read_rows(inputs, start, stop, str(folder))
                options: dict[str, Any] = {"normalize": plan.normalized, "precision": plan.precision}
                report = embed_stream(encoder, records, sink, **options, progress=progress)
                about = About(plan.digest(), shard, report.rows, report.blank, report.zero, report.truncated)
                sink.about = json.dumps(vars(about))
            except BaseException:
                sink.abandon()
                raise
            sink.close()
    except OSError as error:
        if error.errno not in _FULL:
            raise
        whole = len(parts_there(folder, plan.shards))
        raise PromptcliError(
            f"disk full: {path} could not be written; {whole:,} of {plan.shards:,} parts are whole and stay; make room"
            " and run the same command again"
        ) from None


def finish_folder(folder: Path, plan: Plan, made: int) -> bool:
    """Write the manifest where every part is there; return whether the folder is finished.

    Args:
        folder: Of the parts.
        plan: Its plan.
        made: Parts that were made since the folder was last looked at; with none a manifest that is there holds.
    """
    remove_all_leftovers(folder)
    if not made and (folder / MANIFEST).is_file():
        return True
    return finish(folder, plan) is not None
