"""``promptcli config``: which defaults hold, why, and how to change them."""

import os
from typing import Annotated

import typer

from promptcli.cli import console
from promptcli.cli.options import Json
from promptcli.errors import UsageError, unknown
from promptcli.settings import KEYS, config_file, read_settings, write_setting


def config(
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help=f"One of: {', '.join(KEYS)}.")] = None,
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help="The new default.")] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Restore the built-in default of KEY.")] = False,
    as_json: Json = False,
) -> None:
    """Show the defaults and where each comes from: environment, file, or built in. With KEY and VALUE: set one.

    An option on the command line comes before all of them.
    """
    if key is None or (value is None and not unset):
        if unset:
            raise UsageError(f"--unset needs a KEY: {', '.join(KEYS)}")
        _show(key, as_json=as_json)
        return
    if value is not None and unset:
        raise UsageError(f"{value!r} and --unset exclude each other; give one")
    path = write_setting(os.environ, key, value)
    console.note(f"{key} is not set in {path}" if value is None else f"{key} = {value} in {path}")
    _tell_overruled(key)


def _show(key: str | None, *, as_json: bool) -> None:
    settings = read_settings(os.environ)
    if key is not None and key not in settings:
        raise unknown("setting", key, settings)
    path = config_file(os.environ)
    shown = {name: held for name, held in settings.items() if key in (None, name)}
    if as_json:
        found = {name: {"value": held.value, "source": held.source} for name, held in shown.items()}
        console.result_json({"file": str(path), "settings": found})
        return
    for name, held in shown.items():
        console.result(f"{name} = {held.value or '-'}  ({held.source}; {KEYS[name].help}; ${KEYS[name].variable})")
    console.note(f"settings file: {path}{'' if path.is_file() else ' (not there)'}")


def _tell_overruled(key: str) -> None:
    if os.environ.get(KEYS[key].variable):
        console.note(f"but ${KEYS[key].variable} = {os.environ[KEYS[key].variable]} comes before the file")
