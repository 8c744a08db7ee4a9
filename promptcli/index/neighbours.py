"""Near-duplicates and nearest pairs within an index, its rows asked for one block after another."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from promptcli.data.vectors.formats import Floats
from promptcli.errors import UsageError
from promptcli.index.rows import Hit, RowNumbers
from promptcli.index.vector_index import VectorIndex

#: Neighbours asked for at first; rows that have more are asked again for ``_MORE`` times as many.
_FIRST, _MORE = 16, 8
#: Answers held at once, and links held before they are joined to groups.
_ANSWERS, _LINKS = 1 << 20, 1 << 22
#: Cosines closer than this are equal for copies: the vectors may be kept in half precision.
_COPIES = 1e-3
#: Rows looked at before the work, and how many neighbours of each are too many.
_LOOKED, _CROWD = 200, 1000

Progress = Callable[[int], None]


class Pair(NamedTuple):
    """Two rows and their cosine; rank from 1."""

    rank: int
    first: Hit
    second: Hit
    score: float


@dataclass(frozen=True)
class Cluster:
    """Rows that are linked by near-duplicates; the first is the earliest, scores are cosines to it."""

    rows: list[Hit]


def dups(index: VectorIndex, threshold: float, progress: Progress = lambda done: None) -> list[Cluster]:
    """Return the groups of two and more rows that near-duplicates link, the largest first.

    Two rows are linked where their cosine is at least ``threshold``; a group may hold rows that only others link.
    Neighbours are those that a search finds: all of an exact index, and nearly all of an approximate one.

    Args:
        index: n rows.
        threshold: Cosine, above 0 and at most 1.
        progress: Called with the number of rows newly looked at.

    Raises:
        UsageError: a threshold that cannot be, or that links rows to a thousand others on average.
    """
    if not 0 < threshold <= 1:
        raise UsageError(f"a threshold of {threshold} cannot be; give a cosine above 0 and at most 1, e.g. 0.95")
    rows = index.live()
    if not len(rows):
        return []
    _check_crowd(index, rows, threshold)
    label = np.arange(len(index.masked))
    asked = rows
    if threshold <= 1 - _COPIES:
        label = _copies(index, rows)
        asked = rows[label[rows] == rows]
    links: list[tuple[RowNumbers, RowNumbers]] = []
    progress(len(rows) - len(asked))
    for own, found, _ in _neighbours(index, asked, threshold, progress):
        links.append((own, found))
        if sum(len(part) for part, _ in links) > _LINKS:
            label, links = _joined(label, links), []
    label = _joined(label, links)[rows]
    order = np.argsort(label, kind="stable")
    groups = np.split(rows[order], np.flatnonzero(np.diff(label[order])) + 1)
    large = sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group[0]))
    vectors = map(index.vectors, large)
    return [Cluster(index.hits(group, own @ own[0])) for group, own in zip(large, vectors, strict=True)]


def pairs(
    index: VectorIndex, k: int = 100, threshold: float | None = None, progress: Progress = lambda done: None
) -> list[Pair]:
    """Return the k pairs of different rows with the highest cosine, best first.

    Of equal pairs at the end any may be there. Neighbours are those that a search finds, as for ``dups``.

    Args:
        index: n rows.
        k: At least 1; fewer where there are not as many.
        threshold: Only pairs with at least this cosine; None: any.
        progress: Called with the number of rows newly looked at.

    Raises:
        UsageError: k below 1.
    """
    if k < 1:
        raise UsageError(f"k is {k}; give at least 1")
    rows, least = index.live(), np.array(-2.0 if threshold is None else threshold)
    empty = np.empty(0, np.int64)
    best: tuple[RowNumbers, RowNumbers, Floats] = (empty, empty, np.empty(0, np.float32))
    for own, found, scores in _neighbours(index, rows, least, progress):
        low = np.concatenate([best[0], np.minimum(own, found)])
        high = np.concatenate([best[1], np.maximum(own, found)])
        scores = np.concatenate([best[2], scores])
        order = np.lexsort((high, low, -scores))
        _, first = np.unique(low[order] * len(index.masked) + high[order], return_index=True)
        order = order[np.sort(first)][:k]
        best = low[order], high[order], scores[order]
        if len(order) == k:
            least[...] = max(least, best[2][-1])
    hits = (index.hits(part, best[2]) for part in best[:2])
    return [
        Pair(rank, one._replace(rank=1), two._replace(rank=2), score)
        for rank, (one, two, score) in enumerate(zip(*hits, best[2].tolist(), strict=True), 1)
    ]


def _neighbours(
    index: VectorIndex, rows: RowNumbers, threshold: float | NDArray[np.float64], progress: Progress
) -> Iterator[tuple[RowNumbers, RowNumbers, Floats]]:
    """Yield rows, other rows and their cosines of at least ``threshold``; given as an array, it may rise on the way.

    A row is asked for again, for more neighbours, while its last one is above the threshold.
    """
    for start in range(0, len(rows), _ANSWERS // _FIRST // 4):
        waiting, k = rows[start : start + _ANSWERS // _FIRST // 4], _FIRST
        count = len(waiting)
        while len(waiting):
            again = []
            for part in np.array_split(waiting, -(-len(waiting) * k // _ANSWERS)):
                found = index.nearest(index.vectors(part), k)
                more = [len(near) == k < index.rows and scores[-1] > threshold for near, scores in found]
                again.append(part[more])
                own = np.repeat(part, [len(near) for near, _ in found])
                others, scores = (np.concatenate(list(column)) for column in zip(*found, strict=True))
                kept = (scores >= threshold) & (own != others)
                yield own[kept], others[kept], scores[kept]
            waiting, k = np.concatenate(again), k * _MORE
        progress(count)


def _check_crowd(index: VectorIndex, rows: RowNumbers, threshold: float) -> None:
    """Refuse a threshold that would link nearly everything."""
    some = np.sort(np.random.default_rng(0).choice(rows, min(_LOOKED, len(rows)), replace=False))
    k = min(2 * _CROWD, index.rows)
    if k < 2 * _CROWD:
        return
    found = index.nearest(index.vectors(some), k)
    near = [int((scores >= threshold).sum()) for _, scores in found]
    if np.mean(near) > _CROWD:
        enough = float(np.median([scores[10] for _, scores in found if len(scores) > 10]))
        raise UsageError(
            f"`threshold` {threshold:g} links a row to {np.mean(near):,.0f} others and more; half the rows have ten"
            f" neighbours above {enough:.3f}: give more than that"
        )


def _copies(index: VectorIndex, rows: RowNumbers) -> RowNumbers:
    """Return for every row the first row with the same vector in half precision, so that copies are asked for once."""
    keys = np.empty((len(index.masked), 2), np.uint64)
    weights = np.random.default_rng(0).integers(1, 1 << 63, (index.width, 2), np.uint64)
    for part in np.array_split(rows, -(-len(rows) // 16_384)):
        halves = index.vectors(part).astype(np.float16).view(np.uint16).astype(np.uint64)
        keys[part] = halves @ weights  # modulo 2**64: rows that differ have the same pair of keys by no chance
    label = np.arange(len(keys))
    _, first, group = np.unique(keys[rows], axis=0, return_index=True, return_inverse=True)
    label[rows] = rows[first[group.reshape(-1)]]
    return label


def _joined(label: RowNumbers, links: list[tuple[RowNumbers, RowNumbers]]) -> RowNumbers:
    """Return for every row the first row of its group, after more links."""
    n = len(label)
    one = np.concatenate([np.arange(n), *(own for own, _ in links)])
    two = np.concatenate([label, *(found for _, found in links)])
    _, groups = connected_components(coo_array((np.ones(len(one), bool), (one, two)), shape=(n, n)), directed=False)
    first = np.full(n, n)
    np.minimum.at(first, groups, np.arange(n))
    return first[groups]
