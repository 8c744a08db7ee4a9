"""``promptcli plugins``: what installed packages add, and whether it can be used."""

from promptcli.cli.command_line import Commands
from promptcli.cli.console import result_json, result_table
from promptcli.cli.options import Json
from promptcli.errors import CheckFailedError, counted
from promptcli.extensions import AddedRow, added_rows


def plugins(json: Json = False) -> None:
    """List the rows that plug-ins add to promptcli's tables, and check that each can be loaded.

    Plug-ins of other packages, and those that come with promptcli.
    """
    rows = []
    for row in added_rows():
        rows.append((row, row.fault or _fault_of_command(row)))
    if json:
        result_json([{**row.to_dict(), "fault": fault} for row, fault in rows])
    else:
        cells = [(row.table, row.name, row.package, fault or "ok") for row, fault in rows]
        result_table(("table", "row", "package", "state"), cells)
    wrong = sum(fault is not None for _, fault in rows)
    if wrong:
        raise CheckFailedError(f"{counted(wrong, 'row')} cannot be used; see the last column")


def _fault_of_command(row: AddedRow) -> str | None:
    """Return why a command, or one of a group, cannot be imported; None if all can."""
    if row.table != "commands":
        return None
    commands = [row.value]
    if isinstance(row.value, Commands):
        commands = [command for _, command in row.value.walk()]
    try:
        for command in commands:
            command.load()
    except (ImportError, AttributeError) as error:
        return str(error)
    return None
