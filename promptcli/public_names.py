"""Names of a module that are loaded when they are first used, as the stub beside it lists them."""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def names_of_stub(file: str) -> dict[str, str]:
    """Return name -> module of the names that the stub beside a module lists."""
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: module for module, name in re.findall(r"^from (\S+) import (\w+)", stub, re.M)}


def load_name(name: str, home: str, modules: Mapping[str, str]) -> Any:
    """Return the object with a public name of the module ``home``; import its module.

    Raises:
        AttributeError: The name does not exist.
        UsageError: It belongs to a plug-in of promptcli's own that was deleted.
    """
    if name not in modules:
        raise AttributeError(
            f"module {home!r} has no attribute {name!r}; it has: {', '.join(modules)}"
        )
    try:
        module = importlib.import_module(modules[name])
    except ModuleNotFoundError as error:
        from promptcli.extensions import absent_plugin, is_absent_plugin  # most need neither

        if is_absent_plugin(error):
            raise absent_plugin(f"{home}.{name}") from None
        raise
    if not hasattr(module, name):
        return importlib.import_module(f"{modules[name]}.{name}")  # a module is the name
    return getattr(module, name)
