"""``promptcli plugins``: what installed packages add, and whether it can be used."""

from promptcli.cli.command_line import COMMANDS, Commands
from promptcli.cli.console import result_json, result_table
from promptcli.cli.options import Json
from promptcli.errors import CheckFailedError, counted
from promptcli.extensions import added_rows


def plugins(json: Json = False) -> None:
    """List the rows that plug-ins add to promptcli's tables, and check that each can be loaded.

    Plug-ins come with promptcli or from other packages.
    """
    rows = added_rows()
    for row in rows:
        if row["table"] == "commands" and not row["fault"]:
            row["fault"] = _fault_of_command(str(row["name"]))
    if json:
        result_json(rows)
    else:
        shown = ("table", "name", "package")
        cells = [(*(row[head] for head in shown), row["fault"] or "ok") for row in rows]
        result_table(("table", "row", "package", "state"), cells)
    wrong = sum(row["fault"] is not None for row in rows)
    if wrong:
        raise CheckFailedError(f"{counted(wrong, 'row')} cannot be used; see the last column")


def _fault_of_command(name: str) -> str | None:
    """Return why a command, or one of a group, cannot be imported; None if all can."""
    try:
        list(Commands(commands={name: COMMANDS[name]}).walk())
    except (ImportError, AttributeError) as error:
        return str(error)
    return None
