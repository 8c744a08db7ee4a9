"""The command ``examples``: writes small files to try the other commands on."""

from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli.console import print_json, print_table
from promptcli.cli.options import Force, Json
from promptcli.data.demo import write_examples


def examples(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Where to write; created if it is missing. Default: the current folder.",
        ),
    ] = Path(),
    force: Force = False,
    json: Json = False,
) -> None:
    """Write small example files for the commands of the README: sentences, a table, notes, graded
    pairs, triplets.
    """
    contents = write_examples(folder, force=force)
    rows = [(str(folder / name), content) for name, content in contents.items()]
    if json:
        print_json({"files": [{"file": file, "holds": content} for file, content in rows]})
    else:
        print_table((), rows)
