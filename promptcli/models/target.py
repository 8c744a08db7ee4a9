"""What a target of ``export`` is, a function that fills a folder; and how that is compared with the encoder."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from promptcli.data.vectors.precision import unit
from promptcli.encoder.encoder import Encoder
from promptcli.errors import CheckFailedError, UsageError
from promptcli.models.entries import Entry


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
    backbone: str | None = None  #: what the folder's own recipe calls its backbone; None: what the encoder's does


Target = Callable[[Source, Path], Written]


def lacking(*names: str) -> list[str]:
    """Return the libraries that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def require(*names: str, extra: str) -> None:
    """Refuse to run without libraries.

    Raises:
        UsageError: One is not installed; with the extra that brings it.
    """
    if missing := lacking(*names):
        raise UsageError(f"this needs {', '.join(missing)}, not installed here: pip install 'promptcli[{extra}]'")


#: Sentences that an export is compared on: short and long, with and without end mark, other scripts, odd blanks.
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
    """Return those sentences that the encoder reads whole."""
    return [text for text, cut in zip(sentences, encoder.inputs(sentences).truncated, strict=True) if not cut]


#: One that is cut, and one of nothing: the only ones whose ids may differ, and then it is said.
TOO_LONG = "the town is far away " * 400
BLANK = " "
#: What tokenizers do to a special token in a sentence: what stands on both of its sides is normalised as a text.
TYPED = "a sentence in which a special token is typed out, e.g. [MASK], has another vector there"
#: Lowest cosine of an exported vector to the encoder's own.
LEAST_COSINE = 0.99999


class InexactError(UsageError):
    """A format cannot hold an encoder exactly; the message is the reason."""


def lowest_cosine(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the lowest cosine of rows (n, d) of the same number; two vectors of zeros are the same."""
    both_zero = ~ours.any(axis=1) & ~theirs.any(axis=1)
    cosines = np.sum(unit(ours).astype(np.float64) * unit(theirs), axis=1)
    return float(np.where(both_zero, 1.0, cosines).min())


def check_parity(ours: np.ndarray, theirs: np.ndarray, tool: str) -> float:
    """Return the lowest cosine of the vectors of both sides; where theirs are zero is said in a target's notes.

    Raises:
        CheckFailedError: It is below ``LEAST_COSINE``, or shapes differ.
    """
    theirs = np.asarray(theirs, dtype=np.float32)
    there = theirs.any(axis=1)
    found = lowest_cosine(ours[there], theirs[there]) if ours.shape == theirs.shape else float("nan")
    if not found >= LEAST_COSINE:
        raise CheckFailedError(
            f"{tool} gives other vectors than the encoder (lowest cosine {found:.6f}, shapes {theirs.shape} and"
            f" {ours.shape}); nothing was written"
        )
    return found
