"""The command ``config``: shows the defaults and their sources, and changes them."""

import os
from typing import Annotated

import typer

from promptcli.cli.console import note, print_json, show
from promptcli.cli.options import Json
from promptcli.errors import UsageError, look_up
from promptcli.settings import USER_DEFAULTS, config_file, home_folder, read_settings, write_setting


def config(
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help=f"One of: {', '.join(USER_DEFAULTS)}.")
    ] = None,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="The new default.")] = None,
    unset: Annotated[
        bool, typer.Option("--unset", help="Restore the built-in default of KEY.")
    ] = False,
    json: Json = False,
) -> None:
    """Show your defaults, and where each comes from: the environment, the settings file, or
    promptcli.

    With KEY and VALUE, set one. A typed option wins over all of them.
    """
    if unset and (key is None or value is not None):
        raise UsageError(f"--unset takes one KEY, {' or '.join(USER_DEFAULTS)}, and no VALUE")
    path = config_file(os.environ)
    if key is not None and (unset or value is not None):
        write_setting(os.environ, key, value)
        if unset:
            default = read_settings(os.environ)[key]
            note(f"removed {key} from {path}; now: {default.value or '-'} ({default.source})")
        else:
            note(f"{key} = {value} in {path}")
        return
    defaults = read_settings(os.environ)
    if key is not None:
        defaults = {key: look_up("setting", key, defaults)}
    if json:
        documents = {name: default._asdict() for name, default in defaults.items()}
        print_json({"file": str(path), "models": str(home_folder()), "settings": documents})
        return
    for name, default in defaults.items():
        help_text, variable, _ = USER_DEFAULTS[name]
        show(f"{name} = {default.value or '-'}  ({default.source}; {help_text}; ${variable})")
    missing = "" if path.is_file() else " (does not exist)"
    note(f"settings file: {path}{missing}; models, runs and caches: {home_folder()}")
