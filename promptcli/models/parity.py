"""Compare an encoder's vectors with another program's on probe sentences: cosines must be 1."""

import numpy as np

from promptcli.data.vectors.precision import unit
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import CheckFailedError

#: Probes of the most frequent words, which any English vocabulary has.
ENGLISH_PROBES = ("the man is in the house", "the water of the river")
#: Sentences that exports are compared on: short and long ones, with and without an end mark, with
#: accents and several spaces.
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


def uncut_probes(encoder: TorchEncoder) -> list[str]:
    """Return the probes that the encoder does not truncate."""
    return [
        text for text, cut in zip(PROBES, encoder.inputs(PROBES).truncated, strict=True) if not cut
    ]


#: A text that is cut. The ids of this and of a blank text may differ; a note says so.
TOO_LONG = "the town is far away " * 400
BLANK = " "
MIN_COSINE = 0.99999  #: lowest cosine of an exported vector to the encoder's own


def row_cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return the cosine of row i of both (n, d), (n,); 1 if both rows are zeros."""
    both_zero = ~ours.any(axis=1) & ~theirs.any(axis=1)
    return np.where(both_zero, 1.0, np.sum(unit(ours).astype(np.float64) * unit(theirs), axis=1))


def lowest_cosine(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the lowest of the rows' cosines."""
    return float(row_cosines(ours, theirs).min())


def check_parity(ours: np.ndarray, theirs: np.ndarray, tool: str) -> float:
    """Return the lowest cosine of the encoder's vectors with the tool's; refuse one below
    ``MIN_COSINE``.

    The tool's rows of zeros, which a note reports, do not count.
    """
    theirs = np.asarray(theirs, dtype=np.float32)
    nonzero = theirs.any(axis=1)
    lowest = float("nan")
    if ours.shape == theirs.shape:
        lowest = lowest_cosine(ours[nonzero], theirs[nonzero])
    if not lowest >= MIN_COSINE:
        why = f"lowest cosine {lowest:.6f}, shapes {theirs.shape} and {ours.shape}"
        raise CheckFailedError(
            f"{tool} gives other vectors than the encoder ({why}); nothing was written"
        )
    return lowest
