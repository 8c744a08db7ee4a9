"""promptcli: sentence encoders from pre-trained language models, by prompts.

    >>> import promptcli as pc
    >>> encoder = pc.load("mini")
    >>> encoder.encode(["A cat sleeps.", "Two dogs play."]).shape
    (2, 256)

The names of ``__all__`` are loaded when they are first used, so that importing promptcli takes no
time.
"""

import importlib
import re
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

#: Name -> its module, as the stub beside this file says.
_MODULES = {
    name: module
    for module, name in re.findall(
        r"^from (\S+) import (\w+)", Path(__file__).with_suffix(".pyi").read_text(), re.M
    )
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(
            f"module 'promptcli' has no attribute {name!r}; it has: {', '.join(__all__)}"
        )
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
