"""recall@10 of an approximate index against exact search, and how thoroughly to search for a recall that is wanted.

The queries are rows of the index itself, each without its own row: finding oneself is no merit.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from promptcli.data.vectors.formats import Floats
from promptcli.index.factory import Effort, faiss
from promptcli.index.rows import Recall, RowNumbers, unit_rows

#: Neighbours that count.
NEIGHBOURS = 10
#: The most and the fewest rows that are asked for; comparisons with all rows decide between them.
_MOST, _FEWEST, _COMPARISONS = 1000, 200, 1_000_000_000
#: Nearest rows of a query whose scores are known: any of several equal neighbours is right.
_KNOWN = 100
#: Scores that differ by less are equal.
_EQUAL = 1e-6
#: More is searched while it adds this share of what is missing from a recall of 1.
_WORTHWHILE = 0.1

#: Finds, for queries (q, d), at most so many rows of each by an effort.
Search = Callable[[Floats, int, Effort], list[tuple[RowNumbers, Floats]]]


def queries_for(rows: int) -> int:
    """Return how many rows are asked for in an index of n rows."""
    return min(rows, max(_FEWEST, min(_MOST, _COMPARISONS // rows)))


class Truth:
    """The nearest rows of q queries among n, compared block by block as they pass."""

    def __init__(self, asked: RowNumbers, vectors: Floats) -> None:
        self.asked = asked  #: The queries' own rows.
        self.units = unit_rows(vectors)[0]  #: (q, d)
        self.rows = 0
        self._scores = np.empty((len(asked), 0), np.float32)
        self._numbers = np.empty((len(asked), 0), np.int64)

    def add(self, units: Floats) -> None:
        """Compare with the next rows."""
        fetched = min(len(units), _KNOWN + 1)
        scores, rows = faiss.knn(self.units, units, fetched, metric=faiss.METRIC_INNER_PRODUCT)
        scores, rows = np.hstack([self._scores, scores]), np.hstack([self._numbers, self.rows + rows])
        best = np.argsort(-scores, axis=1, kind="stable")[:, : _KNOWN + 1]
        self._scores = np.take_along_axis(scores, best, axis=1)
        self._numbers = np.take_along_axis(rows, best, axis=1)
        self.rows += len(units)

    def recall(self, search: Search, effort: Effort) -> Recall:
        """Compare what an index finds by an effort with what there is."""
        wanted = min(NEIGHBOURS, self.rows - 1)
        if wanted == 0:
            return Recall(1.0, len(self.asked), self.rows)
        found = search(self.units, wanted + 1, effort)
        hits = 0
        for own, known, scores, (rows, _) in zip(self.asked, self._numbers, self._scores, found, strict=True):
            others = known != own
            known, scores = known[others], scores[others]
            right = known[scores >= scores[wanted - 1] - _EQUAL]
            hits += int(np.isin(rows[rows != own][:wanted], right).sum())
        return Recall(hits / (wanted * len(self.asked)), len(self.asked), self.rows)


def tune(truth: Truth, search: Search, index: object, target: float) -> tuple[Recall, Effort]:
    """Return the least effort found for a recall@10, and the recall it has.

    More lists, or a longer list of candidates of a graph, are searched while recall is too low and it helps; then
    as few candidates as possible are compared again. What FAISS's index, empty or not, has decides what can be set.
    """
    best = Effort(factor=10.0) if isinstance(index, faiss.IndexRefine) else Effort()
    recall = truth.recall(search, best)
    for effort in _efforts(index, best):
        if recall.at_10 >= target:
            break
        before, now = recall, truth.recall(search, effort)
        if now.at_10 > before.at_10:
            best, recall = effort, now
        if now.at_10 - before.at_10 < _WORTHWHILE * (1 - max(target, before.at_10)):
            break
    if best.factor is None:
        return recall, best
    factors = (2.0, 3.0, 5.0) if recall.at_10 >= target else (20.0, 40.0)
    for effort in (replace(best, factor=factor) for factor in factors):
        now = truth.recall(search, effort)
        if now.at_10 >= target or now.at_10 > recall.at_10:
            best, recall = effort, now
        if now.at_10 >= target:
            break
    return recall, best


def _efforts(index: object, start: Effort) -> Iterator[Effort]:
    """Yield efforts, each about twice the one before."""
    lists = faiss.try_extract_index_ivf(index)
    if lists is not None:
        nprobe = lists.nprobe
        while nprobe < lists.nlist:
            nprobe = min(lists.nlist, 2 * nprobe)
            yield replace(start, nprobe=nprobe)
    elif isinstance(index, faiss.IndexHNSW):
        yield from (replace(start, ef=ef) for ef in (32, 64, 128, 256, 512))
