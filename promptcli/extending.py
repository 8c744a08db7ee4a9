"""What a plug-in may import, besides ``promptcli`` itself: for authors of poolings, prompts,
transforms, methods, objectives, tasks, formats, families and commands (docs/extending.md).

The names of ``__all__`` are loaded when they are first used, so that importing this module takes
no time; ``extending.pyi`` lists them with their modules.
"""

from typing import Any

from promptcli.public_names import load_name, names_of_stub

#: Name -> its module.
_MODULES = names_of_stub(__file__)
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    value = load_name(name, __name__, _MODULES)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
