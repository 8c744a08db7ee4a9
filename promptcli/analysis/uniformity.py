"""Alignment and uniformity of sentence vectors (Ditto, figure 4; Wang and Isola, 2020).

On unit vectors, f(x): alignment = E |f(x) - f(y)|^2 over pairs that mean the same, uniformity = log E exp(-2 |f(x) -
f(y)|^2) over pairs of distinct sentences. Lower is better for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder, encode_together
from promptcli.errors import UsageError
from promptcli.notes import working

#: Pairs with a gold score above it mean the same (SimCSE, footnote 3).
POSITIVE = 4.0
#: t of uniformity.
_T = 2.0
#: Vectors on a side of the block of distances that is held at a time.
_BLOCK = 2048


@dataclass(frozen=True)
class Uniformity:
    """The two figures of one encoder."""

    alignment: float  #: mean squared distance of the positive pairs
    uniformity: float  #: logarithm of the mean Gaussian potential of all sentences
    positives: int  #: pairs of ``alignment``
    sentences: int  #: of ``uniformity``: both sides of every pair, repeated ones included


def measure(encoders: Sequence[Encoder], tasks: Sequence[STSTask]) -> list[Uniformity]:
    """Return each encoder's alignment and uniformity on graded pairs.

    There is no official code. SimCSE's authors take all of STS-B and normalise the vectors first; repeated sentences
    are kept here, since they do not mention them. The pairs of all ``tasks`` are joined.
    """
    splits = [task.pairs() for task in tasks]
    first = [sentence for pairs in splits for sentence in pairs.first]
    second = [sentence for pairs in splits for sentence in pairs.second]
    positive = np.concatenate([pairs.gold for pairs in splits]) > POSITIVE
    if not positive.any():
        raise UsageError(
            f"no pair of {', '.join(task.label for task in tasks)} is graded above {POSITIVE:g}, so"
            " alignment is undefined; give pairs graded from 0 to 5"
        )
    with working("uniformity", 2 * len(first)) as advance:
        encoded = encode_together(encoders, [*first, *second], progress=advance)
    results = []
    for vectors in (unit(each.vectors) for each in encoded):
        aligned = alignment(*(side[positive] for side in np.split(vectors, 2)))
        results.append(Uniformity(aligned, uniformity(vectors), int(positive.sum()), len(vectors)))
    return results


def unit(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return vectors (n, d) scaled to length 1 in float64; a zero vector stays, a NaN counts as 0."""
    wide = np.nan_to_num(vectors.astype(np.float64))
    norms = np.sqrt(np.einsum("nd,nd->n", wide, wide))
    return wide / np.where(norms > 0, norms, 1.0)[:, None]


def alignment(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the mean of |x_i - y_i|^2 over n pairs of unit vectors (n, d)."""
    return float(np.square(first - second).sum(1).mean())


def uniformity(vectors: NDArray[np.float64]) -> float:
    """Return log mean_{i < j} exp(-2 |x_i - x_j|^2) over unit vectors (n, d), block by block of distances."""
    squares = np.einsum("nd,nd->n", vectors, vectors)
    total = 0.0
    for start in range(0, len(vectors), _BLOCK):
        rows = slice(start, start + _BLOCK)
        for beyond in range(start, len(vectors), _BLOCK):
            columns = slice(beyond, beyond + _BLOCK)
            distances = squares[rows, None] + squares[None, columns] - 2 * (vectors[rows] @ vectors[columns].T)
            potentials = np.exp(-_T * np.maximum(distances, 0.0))
            total += float(np.triu(potentials, 1).sum() if beyond == start else potentials.sum())
    return float(np.log(total / (len(vectors) * (len(vectors) - 1) / 2)))
