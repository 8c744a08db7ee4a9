"""What a target of ``export`` is: a function that fills a folder, and what it says of it."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from promptcli.encoder.encoder import Encoder
from promptcli.errors import UsageError
from promptcli.registry.entries import Entry

#: In every exported folder: the recipe, the fingerprint and what the export says of itself.
MARKER = "promptcli.json"


@dataclass(frozen=True)
class Choices:
    """What a user may choose about an export."""

    base: str | None = None  #: of an adapter: the hub id, with ``@revision``, to be written down as its base
    int8: bool = False  #: of a graph: write one with weights of 8 bits, too, and measure it


@dataclass(frozen=True)
class Source:
    """What is exported."""

    entry: Entry
    encoder: Encoder  #: float32, on the processor
    choices: Choices = Choices()


@dataclass(frozen=True)
class Written:
    """What a target says of the folder it filled."""

    load: str  #: Python that loads it
    tool: str | None = None  #: what its vectors were compared by; None where they could not be
    cosine: float | None = None  #: lowest of the probes to the encoder's own
    notes: tuple[str, ...] = field(default=())  #: what differs, and what loading needs


Target = Callable[[Source, Path], Written]


def lacking(*names: str) -> list[str]:
    """Return the libraries that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def require(*names: str, extra: str) -> None:
    """Refuse to go on without libraries.

    Raises:
        UsageError: One is not installed; with the extra that brings it.
    """
    if missing := lacking(*names):
        raise UsageError(f"this needs {', '.join(missing)}, not installed here: pip install promptcli[{extra}]")
