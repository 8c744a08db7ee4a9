"""``promptcli vectors``: folders of vectors that ``embed --shards`` makes, checked, merged or sampled from."""

from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli import console
from promptcli.cli.options import Force, Json
from promptcli.errors import CheckFailedError, UsageError


def vectors(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="As `embed --shards` made it.")],
    merge: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all parts into one file with a manifest: .npy, .parquet, .jsonl, .safetensors."
        ),
    ] = None,
    sample: Annotated[int | None, typer.Option(metavar="K", min=1, help="Print K random rows, in their order.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the sample.")] = 0,
    force: Force = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")] = False,
    as_json: Json = False,
) -> None:
    """Read every part once and print what is wrong, a line each (exit code 4); or merge the parts, or sample rows."""
    if merge is not None and sample is not None:
        raise UsageError("--merge and --sample exclude each other; give one")
    if merge is not None:
        _merge(folder, merge, force=force, as_json=as_json)
    elif sample is not None:
        _sample(folder, sample, seed, as_json=as_json)
    else:
        _check(folder, as_json=as_json)


def _check(folder: Path, *, as_json: bool) -> None:
    from promptcli.data.vectors.part_folder import faults_of, read_plan

    faults, plan = faults_of(folder), read_plan(folder)
    if as_json:
        about = {"folder": str(folder), "rows": plan.rows, "dim": plan.dim, "shards": plan.shards}
        console.result_json({**about, "fingerprint": plan.fingerprint, "faults": faults})
    else:
        for fault in faults:
            console.result(fault)
    if faults:
        raise CheckFailedError(f"{folder}: {len(faults):,} faults")
    if not as_json:
        console.result(f"{folder}: {plan.rows:,} vectors of {plan.dim:,} numbers in {plan.shards:,} parts, all whole")


def _merge(folder: Path, output: Path, *, force: bool, as_json: bool) -> None:
    from promptcli.data.vectors.part_folder import PartFolder, merge_folder

    total = PartFolder(folder).manifest.rows
    with console.progress("merge", total) as progress:
        rows = merge_folder(folder, output, force=force, progress=progress)
    if as_json:
        console.result_json({"output": str(output), "rows": rows})
    else:
        console.note(f"{rows:,} vectors in {output}")


def _sample(folder: Path, rows: int, seed: int, *, as_json: bool) -> None:
    import numpy as np

    from promptcli.data.vectors.part_folder import sample_folder

    cells = []
    for record, vector in sample_folder(folder, rows, seed):
        if as_json:
            about = {"row": record.row, "id": record.id, "text": record.text}
            console.result_json({**about, "embedding": vector.tolist()})
        else:
            shown = " ".join(record.text.split())
            shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
            cells.append((f"{record.row:,}", str(record.id), f"{float(np.linalg.norm(vector)):.4f}", shown))
    if cells:
        console.result_table(("row", "id", "length", "text"), cells)
