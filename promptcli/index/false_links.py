"""The threshold of near-duplicates that is proposed: by the share of links that are false."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import Floats
from promptcli.data.vectors.precision import unit
from promptcli.evaluation.rarity import Rarity, sample_rows
from promptcli.index.array_rows import RowNumbers
from promptcli.index.linking import Numbers
from promptcli.index.vector_index import VectorIndex

FALSE_SHARE = 0.05  #: of the links from the proposed threshold on, as is expected
#: Random pairs that the expectation follows from: it is of a share far smaller than searches show.
_PAIRS = 200_000
#: Rows whose neighbours are counted, and how many of each.
_ASKED = 1000
_NEIGHBOURS = 32
_THRESHOLDS = np.arange(0.001, 1, 0.001).round(3)


def propose_threshold(index: VectorIndex) -> float | None:
    """Return the lowest cosine from which ``FALSE_SHARE`` of the links, or one in all, are expected
    to be false; None if the index has too few rows to tell.

    False links are those of random pairs: their number follows from the pairs of all rows and the
    share of random pairs with such a cosine. The number of all links is that of the neighbours of
    up to 1,000 rows, times what is left out. Copies are no part of either.
    """
    live = index.live()
    sampled = live[sample_rows(len(live))]
    units = unit(index.vectors(sampled))
    rarity = Rarity.of_rows(units, _PAIRS, has_repeats=True)
    if not rarity.is_known:
        return None
    count = len(live)
    asked = np.random.default_rng(0).permutation(len(sampled))[:_ASKED]
    cosines = _neighbour_cosines(index, sampled[asked], units[asked])
    links = _above(cosines) / 2 * count / len(asked)
    return _first_with_few(rarity, count * (count - 1) / 2, links)


def propose_leak_threshold(index: VectorIndex, sampled: Floats, cosines: Floats) -> float | None:
    """Return the lowest cosine from which ``FALSE_SHARE`` of the rows that are near a row of an
    index, or one in all, are expected to be near by chance; None if there are too few rows to tell.

    Args:
        index: The rows of one set.
        sampled: Unit vectors (m, d) of some of n rows of another set.
        cosines: (n,) of each of these rows and its nearest of the index.
    """
    live = index.live()
    units = unit(index.vectors(live[sample_rows(len(live))]))
    rarity = Rarity.between(units, sampled, _PAIRS)
    if not rarity.is_known:
        return None
    return _first_with_few(rarity, len(live) * len(cosines), _above(np.sort(cosines)))


def _above(cosines: Floats) -> Numbers:
    """Return how many ascending cosines reach each threshold."""
    reached: Numbers = len(cosines) - np.searchsorted(cosines, _THRESHOLDS)
    return reached


def _first_with_few(rarity: Rarity, pairs: float, links: NDArray[Any]) -> float:
    """Return the lowest threshold from which few links are false, of so many pairs of rows; 1 if
    there is none.
    """
    false = rarity.share_above(_THRESHOLDS) * pairs
    too_many = np.flatnonzero(false > np.maximum(FALSE_SHARE * links, 1))
    first = too_many[-1] + 1 if len(too_many) else 0
    return float(_THRESHOLDS[first]) if first < len(_THRESHOLDS) else 1.0


def _neighbour_cosines(index: VectorIndex, rows: RowNumbers, units: Floats) -> Floats:
    """Return the cosines of rows with their nearest others that are no copies, ascending."""
    cosines = [np.empty(0, np.float32)]
    answers = index.nearest(units, _NEIGHBOURS)
    for row, (others, found) in zip(rows, answers, strict=True):
        cosines.append(found[(others != row) & (found < 1 - index.rounding)])
    return np.sort(np.concatenate(cosines))
