"""The commands ``config show``, ``set`` and ``unset``: which defaults hold, why, and how to change them."""

import os
from typing import Annotated

import typer

from promptcli.cli import console
from promptcli.cli.options import Json
from promptcli.settings import KEYS, config_file, read_settings, write_setting

_Key = Annotated[str, typer.Argument(metavar="KEY", help=f"One of: {', '.join(KEYS)}.")]


def show(as_json: Json = False) -> None:
    """Show which defaults hold and where each comes from: environment, file, or built in. A flag comes before all."""
    settings = read_settings(os.environ)
    path = config_file(os.environ)
    if as_json:
        found = {name: {"value": held.value, "source": held.source} for name, held in settings.items()}
        console.result_json({"file": str(path), "settings": found})
        return
    for name, held in settings.items():
        console.result(f"{name} = {held.value or '-'}  ({held.source}; {KEYS[name].help}; ${KEYS[name].variable})")
    console.note(f"settings file: {path}{'' if path.is_file() else ' (not there)'}")


def set_default(key: _Key, value: Annotated[str, typer.Argument(metavar="VALUE", help="The new default.")]) -> None:
    """Set a default in the settings file."""
    path = write_setting(os.environ, key, value)
    console.note(f"{key} = {value} in {path}")
    _tell_overruled(key)


def unset(key: _Key) -> None:
    """Remove a default from the settings file, so that the built-in one holds again."""
    path = write_setting(os.environ, key, None)
    console.note(f"{key} is not set in {path}")
    _tell_overruled(key)


def _tell_overruled(key: str) -> None:
    if os.environ.get(KEYS[key].variable):
        console.note(f"but ${KEYS[key].variable} = {os.environ[KEYS[key].variable]} comes before the file")
