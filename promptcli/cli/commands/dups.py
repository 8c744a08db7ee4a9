"""The command ``dups``: rows of a file that also occur in another file."""

from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from promptcli.cli.hits import HitOptions
from promptcli.cli.leak_lists import show_leaks
from promptcli.cli.options import Json
from promptcli.index import FindLeaksJob

#: How the rows of this command are printed: it has no columns to show.
Format = Annotated[
    str | None, typer.Option(help="How rows are printed: table (default), csv or json.")
]
Check = Annotated[
    bool, typer.Option("--check", help="End with exit code 4 if a row is found, for scripts.")
]


def dups(
    job: FindLeaksJob, format: Format = None, check: Check = False, json: Json = False
) -> None:
    shown_as = HitOptions(format).name(json=json)
    leaks = job.run()
    names = (display_given(job.against), display_given(job.file))
    show_leaks(leaks, names, shown_as, check=check)


def display_given(file: str | Path | BinaryIO) -> str:
    """Return what a file or stream is called in messages."""
    return str(file) if isinstance(file, str | Path) else "standard input"
