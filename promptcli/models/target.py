"""What a target of ``export`` takes and returns, and how the other program's vectors are compared."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from promptcli.data.vectors.precision import unit
from promptcli.encoder.encoder import Encoder
from promptcli.errors import CheckFailedError, UsageError
from promptcli.models.entries import Entry


@dataclass(frozen=True)
class Source:
    """The encoder to export, and the options of its targets."""

    entry: Entry
    encoder: Encoder  #: float32, on the processor
    base: str | None = None  #: peft: the hub id, with ``@revision``, to record as the base
    int8: bool = False  #: onnx: also write 8-bit weights, and measure what they lose


@dataclass(frozen=True)
class Exported:
    """An exported folder."""

    load: str  #: Python that loads it
    tool: str | None = None  #: the program whose vectors were compared; None if it is not installed
    cosine: float | None = None  #: the lowest of the probes' vectors to the encoder's
    notes: tuple[str, ...] = ()  #: differences, and what loading needs
    backbone: str | None = None  #: the backbone by the folder's own recipe; None: the encoder's
    target: str = ""
    folder: Path = Path()
    bytes: int = 0  #: of all files

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        names = ("target", "folder", "bytes", "load", "tool", "cosine", "notes")
        return {name: getattr(self, name) for name in names} | {"folder": str(self.folder), "notes": list(self.notes)}


Target = Callable[[Source, Path], Exported]


def lacking(*names: str) -> list[str]:
    """Return the libraries that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def require(*names: str, extra: str) -> None:
    """Refuse to run without libraries; ``extra`` brings them."""
    if missing := lacking(*names):
        raise UsageError(f"this needs {', '.join(missing)}, not installed here: pip install 'promptcli[{extra}]'")


#: Sentences that exports are compared on: short and long, with and without end mark, other scripts, odd spaces.
PROBES = (
    "A man is playing the guitar.",
    "Two children run across a green field",
    'She said "no" and closed the door!',
    "  Why does the river bend here?  ",
    "Prices rose by 3.5% in May; nobody was surprised, and the government promised help.",
    "Der Zug nach Köln hat zwei Stunden Verspätung",
    "I",
    "a cat, a dog, a cat " * 20,
)


def uncut(encoder: Encoder, sentences: Sequence[str] = PROBES) -> list[str]:
    """Return the sentences that the encoder does not truncate."""
    return [text for text, cut in zip(sentences, encoder.inputs(sentences).truncated, strict=True) if not cut]


#: A truncated and an empty sentence: only their ids may differ, which a note reports.
TOO_LONG = "the town is far away " * 400
BLANK = " "
#: Tokenizers normalise the text before and after a special token separately.
TYPED = "a sentence in which a special token is typed out, e.g. [MASK], has another vector there"
#: Lowest cosine of an exported vector to the encoder's own.
LEAST_COSINE = 0.99999


class InexactError(UsageError):
    """A format cannot hold an encoder exactly; the message is the reason."""


def lowest_cosine(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the lowest cosine of rows of (n, d); two vectors of zeros are the same."""
    both_zero = ~ours.any(axis=1) & ~theirs.any(axis=1)
    cosines = np.sum(unit(ours).astype(np.float64) * unit(theirs), axis=1)
    return float(np.where(both_zero, 1.0, cosines).min())


def check_parity(ours: np.ndarray, theirs: np.ndarray, tool: str) -> float:
    """Return the lowest cosine, at least ``LEAST_COSINE``; rows of zeros, which a note reports, do not count."""
    theirs = np.asarray(theirs, dtype=np.float32)
    nonzero = theirs.any(axis=1)
    lowest = lowest_cosine(ours[nonzero], theirs[nonzero]) if ours.shape == theirs.shape else float("nan")
    if not lowest >= LEAST_COSINE:
        raise CheckFailedError(
            f"{tool} gives other vectors than the encoder (lowest cosine {lowest:.6f}, shapes {theirs.shape} and"
            f" {ours.shape}); nothing was written"
        )
    return lowest
