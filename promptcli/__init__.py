"""promptcli: sentence encoders from pre-trained language models, by prompts.

    >>> import promptcli as pc
    >>> encoder = pc.load("mini")
    >>> encoder.encode(["A cat sleeps.", "Two dogs play."]).shape
    (2, 256)

The names of ``__all__`` are loaded when they are first used, so that importing promptcli takes no
time.
"""

from typing import Any

from promptcli.public_names import load_name, names_of_stub

__version__ = "0.1.0"

#: Name -> its module.
_MODULES = names_of_stub(__file__)
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    value = load_name(name, __name__, _MODULES)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
