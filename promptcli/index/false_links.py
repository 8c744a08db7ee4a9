"""The threshold of near-duplicates that is proposed: by the share of links that are false.

Which of two near rows repeat each other is not known, but how often rows are near by chance is: it
follows from the many pairs that are not so near.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import BLOCK, Floats
from promptcli.data.vectors.precision import unit
from promptcli.evaluation.rarity import FEWEST, distinct_rows, sample_rows
from promptcli.index.vector_index import VectorIndex

FALSE_SHARE = 0.05  #: of the links from the proposed threshold on, as is expected
#: Rows that are compared with all rows.
_ASKED = 1000
_THRESHOLDS = np.arange(0.001, 1, 0.001).round(3)
#: Highest pairs of each row that a tail has, if they are no more than a tenth of all. A row that
#: repeats many others makes a short tail too heavy, and not a long one.
_PAIRS_OF_TAILS = (20, 60, 200)
_LARGEST_TAIL = 0.1
_ABOVE = 0.3  # share of the tail above the quantile that its scale follows from
_SMALLEST_SCALE = 5e-5


@dataclass(frozen=True)
class _BoundedTail:
    """The share of pairs that are near by chance: falling exponentially from a start to 1.

    Its scale follows from one quantile, so that a few pairs at the end that are not by chance,
    since one row repeats the other, do not move it. Tails of cosines are seldom longer, so that
    shares are rather too high than too low. No cosine exceeds 1: what an exponential distribution
    has beyond is taken off.
    """

    start: float
    share: float  #: of all pairs from the start on
    scale: float

    @classmethod
    def of(cls, cosines: Floats, share: float) -> "_BoundedTail":
        """Fit the tail to the highest cosines (m,), ascending, which are a share of all pairs."""
        start = float(cosines[0])
        excess = float(np.quantile(cosines, 1 - _ABOVE)) - start
        return cls(start, share, max(excess / -np.log(_ABOVE), _SMALLEST_SCALE))

    def share_above(self, cosines: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the share of pairs with at least such a cosine by chance; at most ``share``."""
        above = np.exp(-np.maximum(cosines - self.start, 0) / self.scale)
        beyond = np.exp(-(1 - self.start) / self.scale)
        return np.asarray(self.share * (above - beyond) / (1 - beyond))


def propose_threshold(index: VectorIndex) -> float | None:
    """Return the lowest cosine from which ``FALSE_SHARE`` of the links, or one in all, are expected
    to be false; None if the index has too few rows to tell.

    Up to 1,000 rows are compared with all others. Copies are left out.
    """
    live = index.live()
    asked = live[sample_rows(len(live), _ASKED)]
    cosines = _Cosines(index, unit(index.vectors(asked)))
    pairs = len(live) * (len(live) - 1) / 2
    links = cosines.above / 2 * len(live) / max(len(asked), 1)
    return cosines.first_with_few_false(pairs, links)


def propose_leak_threshold(index: VectorIndex, sampled: Floats, nearest: Floats) -> float | None:
    """Return the lowest cosine from which ``FALSE_SHARE`` of the rows that are near a row of an
    index, or one in all, are expected to be near by chance; None if there are too few rows to tell.

    Args:
        index: The rows of one set.
        sampled: Unit vectors (m, d) of some of n rows of another set.
        nearest: (n,) cosines of each of these rows with its nearest row of the index.
    """
    cosines = _Cosines(index, sampled[:_ASKED])
    links = len(nearest) - np.searchsorted(np.sort(nearest), _THRESHOLDS)
    return cosines.first_with_few_false(index.rows * len(nearest), links)


class _Cosines:
    """The cosines of some rows with all rows of an index, without their copies."""

    def __init__(self, index: VectorIndex, units: Floats) -> None:
        self._is_known = min(index.rows, len(distinct_rows(units))) >= FEWEST
        self._count = len(units) * index.rows
        #: of all pairs, that each tail has
        self._shares = [min(_LARGEST_TAIL, pairs / max(index.rows, 1)) for pairs in _PAIRS_OF_TAILS]
        most = round(self._shares[-1] * self._count)
        self._highest = np.empty(0, np.float32)
        if self._is_known:
            self._highest = _highest(_products(index, units), most)
        #: pairs that reach each threshold, as far as they are in the tail
        self.above = len(self._highest) - np.searchsorted(self._highest, _THRESHOLDS)

    def first_with_few_false(self, pairs: float, links: NDArray[Any]) -> float | None:
        """Return the lowest threshold from which few links are false, by the number of pairs of
        rows; 1 without one, None if it is unknown.
        """
        if not self._is_known:
            return None
        false = self._share_above() * pairs
        few = np.flatnonzero(false <= np.maximum(FALSE_SHARE * links, 1))
        return float(_THRESHOLDS[few[0]]) if len(few) else 1.0

    def _share_above(self) -> NDArray[np.float64]:
        """Return the share of pairs that reach each threshold by chance: by the lightest tail."""
        shares = []
        for share in self._shares:
            highest = self._highest[-round(share * self._count) :]
            above = _BoundedTail.of(highest, share).share_above(_THRESHOLDS)
            shares.append(np.where(_THRESHOLDS < highest[0], 1.0, above))
        lightest: NDArray[np.float64] = np.min(shares, axis=0)
        return lightest


def _products(index: VectorIndex, units: Floats) -> Iterator[Floats]:
    """Yield the cosines of vectors with the rows of an index, without copies, block by block."""
    live = index.live()
    for start in range(0, len(live), BLOCK):
        cosines = units @ unit(index.vectors(live[start : start + BLOCK])).T
        yield cosines[cosines < 1 - index.rounding]


def _highest(blocks: Iterator[Floats], count: int) -> Floats:
    """Return the ``count`` highest numbers of all blocks, ascending; fewer if there are fewer."""
    kept = np.empty(0, np.float32)
    for block in blocks:
        if len(kept) == count and count:
            block = block[block > kept.min()]
        kept = np.concatenate([kept, block])
        if len(kept) > count:
            kept = np.partition(kept, len(kept) - count)[len(kept) - count :]
    return np.sort(kept)
