"""Leaves a plug-in out of the tables, as if its folder were deleted."""

import sys


def delete_plugin(name, monkeypatch, *tables):
    """Forget the modules of a plug-in, and refuse to import them; tables read their rows again."""
    folder = f"promptcli.plugins.{name}"
    for module in [module for module in sys.modules if f"{module}.".startswith(f"{folder}.")]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, folder, None)
    for table in tables:
        forget_entry_points(table, monkeypatch)


def forget_entry_points(table, monkeypatch):
    """Let a table read the entry points again."""
    for name, empty in (
        ("_rows", dict(table.built_in)),
        ("_is_complete", False),
        ("_extensions", {}),
    ):
        monkeypatch.setattr(table, name, empty)
