"""``promptcli vectors``: folders of vectors that ``embed --shards`` makes, checked, merged or sampled from."""

from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli.console import note, result, result_json, result_table
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
    sample: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="Print K random rows, in the folder's order.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the sample.")] = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Read every part once and print what is wrong, a line each (exit code 4); or merge the parts, or sample rows."""
    if merge is not None and sample is not None:
        raise UsageError("--merge and --sample exclude each other; give one")
    if merge is not None:
        from promptcli.data.vectors.part_folder import merge_parts

        rows = merge_parts(folder, merge, force=force)
        result_json({"output": str(merge), "rows": rows}) if json else note(f"{rows:,} vectors in {merge}")
    elif sample is not None:
        _sample(folder, sample, seed, as_json=json)
    else:
        _check(folder, as_json=json)


def _check(folder: Path, *, as_json: bool) -> None:
    from promptcli.data.vectors.part_folder import check_parts

    found = check_parts(folder)
    plan, faults = found.plan, found.faults
    if as_json:
        about = {"folder": str(folder), "rows": plan.rows, "dim": plan.dim, "shards": plan.shards}
        result_json({**about, "fingerprint": plan.fingerprint, "faults": faults})
    for fault in faults if not as_json else ():
        result(fault)
    if faults:
        raise CheckFailedError(f"{folder}: {len(faults):,} faults")
    if not as_json:
        result(f"{folder}: {plan.rows:,} vectors of {plan.dim:,} numbers in {plan.shards:,} parts, all whole")


def _sample(folder: Path, rows: int, seed: int, *, as_json: bool) -> None:
    import numpy as np

    from promptcli.data.vectors.part_folder import sample_parts

    cells = []
    for record, vector in sample_parts(folder, rows, seed=seed):
        if as_json:
            about = {"row": record.row, "id": record.id, "text": record.text}
            result_json({**about, "embedding": vector.tolist()})
        else:
            shown = " ".join(record.text.split())
            shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
            cells.append((f"{record.row:,}", str(record.id), f"{float(np.linalg.norm(vector)):.4f}", shown))
    if cells:
        result_table(("row", "id", "length", "text"), cells)
