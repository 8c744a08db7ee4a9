"""The commands ``vectors check``, ``merge`` and ``sample``, for folders that ``embed --shards`` makes."""

from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli import console
from promptcli.cli.options import Force, Json
from promptcli.errors import CheckFailedError

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="As `embed --shards` made it.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]


def check(folder: Folder, as_json: Json = False) -> None:
    """Read every part once and print what is wrong, a line each; exit code 4 where anything is."""
    from promptcli.data.vectors import part_tools
    from promptcli.data.vectors.part_folder import read_plan

    faults, plan = part_tools.check(folder), read_plan(folder)
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


def merge(
    folder: Folder,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Vector file: .npy, .parquet, .jsonl or .safetensors.")
    ],
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write all parts into one file with a manifest, as `embed` without parts would have."""
    from promptcli.data.vectors import part_tools
    from promptcli.data.vectors.part_folder import PartFolder

    total = PartFolder(folder).manifest.rows
    with console.progress("merge", total) as progress:
        rows = part_tools.merge(folder, output, force=force, progress=progress)
    if as_json:
        console.result_json({"output": str(output), "rows": rows})
    else:
        console.note(f"{rows:,} vectors in {output}")


def sample(
    folder: Folder,
    rows: Annotated[int, typer.Option("-k", min=1, help="Rows to take.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the choice.")] = 0,
    json_lines: Annotated[bool, typer.Option("--json", help='JSONL {"row", "id", "text", "embedding"}.')] = False,
) -> None:
    """Print random rows, in their order."""
    import numpy as np

    from promptcli.data.vectors import part_tools

    cells = []
    for record, vector in part_tools.sample(folder, rows, seed):
        if json_lines:
            about = {"row": record.row, "id": record.id, "text": record.text}
            console.result_json({**about, "embedding": vector.tolist()})
        else:
            shown = " ".join(record.text.split())
            shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
            cells.append((f"{record.row:,}", str(record.id), f"{float(np.linalg.norm(vector)):.4f}", shown))
    if cells:
        console.result_table(("row", "id", "length", "text"), cells)
