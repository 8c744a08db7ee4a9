"""What a plug-in may import, besides ``promptcli`` itself: for authors of poolings, prompts,
transforms, methods, objectives, tasks, formats, families and commands (docs/extending.md).

The names of ``__all__`` are loaded when they are first used, so that importing this module takes
no time; ``extending.pyi`` lists them with their modules.
"""

import importlib
import re
from pathlib import Path
from typing import Any

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {name: module for module, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.M)}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(name)
    module = importlib.import_module(_MODULES[name])
    if not hasattr(module, name):
        return importlib.import_module(f"{_MODULES[name]}.{name}")  # a module is the name
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
