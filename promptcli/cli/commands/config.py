"""``promptcli config show``: which defaults hold, and why."""

import os
from typing import Annotated

import typer

from promptcli.cli import console
from promptcli.settings import KEYS, config_file, read_settings


def show(as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False) -> None:
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
