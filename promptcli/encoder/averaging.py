"""The mean of rows of a table in each of many bags of ids: what ``static/avg`` and ``mlm-head/avg``
compute, with torch and without it.
"""

from collections.abc import Callable

import numpy as np

from promptcli.backbones.token_rows import TokenRows

#: Bags that are added up together: their sums stay in a core's own cache.
_TOGETHER = 256

Floats = np.ndarray


def average_rows(bags: TokenRows, table: Callable[[np.ndarray], Floats], size: int) -> Floats:
    """Return the mean of a table's rows in each of n bags of ids, (n, d) float32.

    Zeros for an empty bag. ``table`` returns the rows (k, d) float32 of some of its ``size``
    numbers; it is called once, with those that occur.
    """
    # few of the rows, so that these are made float32
    used = np.flatnonzero(np.bincount(bags.ids, minlength=size))
    place = np.empty(size, dtype=np.int32)
    place[used] = np.arange(len(used))
    return _means(table(used), place[bags.ids], bags.lengths)


def _means(rows: Floats, places: np.ndarray, lengths: np.ndarray) -> Floats:
    """Return the means (n, d) of rows (k, d) at the places of n bags of these lengths (n,)."""
    starts = lengths.cumsum() - lengths
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    means = np.zeros((len(lengths), rows.shape[1]), np.float32)
    for begin in range(0, len(order), _TOGETHER):
        bags = order[begin : begin + _TOGETHER]
        sums = _sums(rows, places, starts[bags], lengths[bags])
        means[bags] = sums / lengths[bags, None].astype(np.float32)
    return means


def _sums(rows: Floats, places: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Floats:
    """Return the sums of the rows of some bags, the longest first; each is added from its first
    token to its last.
    """
    sums: Floats = rows[places[starts]]
    more = len(lengths)  # bags that have further tokens
    for number in range(1, int(lengths[0])):
        while lengths[more - 1] <= number:
            more -= 1
        sums[:more] += rows[places[starts[:more] + number]]
    return sums
