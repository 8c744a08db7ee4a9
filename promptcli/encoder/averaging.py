"""The mean of rows of a table in each of many bags of ids: what ``static/avg`` and ``mlm-head/avg``
compute, with torch and without it.
"""

from collections.abc import Callable

import numpy as np

from promptcli.backbones.ragged_ids import RaggedIds

#: Bags that are added up together: their sums stay in a core's own cache.
_TOGETHER = 256


def average_rows(
    bags: RaggedIds, table: Callable[[np.ndarray], np.ndarray], size: int
) -> np.ndarray:
    """Return the mean of a table's rows in each of n bags of ids, (n, d) float32.

    Zeros for an empty bag. ``table`` returns the rows (k, d) float32 of some of its ``size``
    numbers; it is called once, with those that occur.
    """
    # few of the rows, so that these are made float32
    used = np.flatnonzero(np.bincount(bags.ids, minlength=size))
    place = np.empty(size, dtype=np.int32)
    place[used] = np.arange(len(used))
    rows = table(used)
    places = place[bags.ids]
    means = np.zeros((len(bags), rows.shape[1]), np.float32)
    order = np.argsort(-bags.lengths, kind="stable")[: np.count_nonzero(bags.lengths)]
    for begin in range(0, len(order), _TOGETHER):
        some = order[begin : begin + _TOGETHER]
        lengths = bags.lengths[some]
        sums = _sums(rows, places, bags.starts[some], lengths)
        means[some] = sums / lengths[:, None].astype(np.float32)
    return means


def _sums(
    rows: np.ndarray, places: np.ndarray, starts: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Return the sums of the rows of some bags, the longest first; each is added from its first
    token to its last.
    """
    sums: np.ndarray = rows[places[starts]]
    more = len(lengths)  # bags that have further tokens
    for number in range(1, int(lengths[0])):
        while lengths[more - 1] <= number:
            more -= 1
        sums[:more] += rows[places[starts[:more] + number]]
    return sums
