"""Near-duplicates within an index, whose rows are searched for block by block.

Neighbours are those that a search finds: all in an exact index, the measured recall of them in an
approximate one.
"""

from collections.abc import Iterator

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from promptcli.errors import UsageError
from promptcli.index.rows import Hit, RowNumbers
from promptcli.index.vector_index import VectorIndex
from promptcli.notes import Advance, stage

#: Neighbours fetched at first; rows that have more are searched for again, for ``_MORE`` times the
#: number.
_FIRST = 16
_MORE = 8
#: Answers held at once, and links held before they are joined to groups.
_ANSWERS = 1 << 20
_LINKS = 1 << 22
#: Cosines closer than this are equal for copies: the vectors may be kept in half precision.
_COPIES = 1e-3


def dups(index: VectorIndex, threshold: float) -> list[list[Hit]]:
    """Return the groups of two or more rows that near-duplicates link, the largest first.

    Two rows are linked if their cosine is at least ``threshold``, above 0 and at most 1; two rows
    of a group may be linked only through others. The first row of a group is the earliest, the
    scores are cosines to it.
    """
    if not 0 < threshold <= 1:
        raise UsageError(
            f"threshold is {threshold}; give a cosine above 0 and at most 1, e.g. 0.95"
        )
    rows = index.live()
    if not len(rows):
        return []
    label = np.arange(len(index.masked))
    asked = rows
    if threshold <= 1 - _COPIES:
        label = _first_copies(index, rows)
        asked = rows[label[rows] == rows]
    links: list[tuple[RowNumbers, RowNumbers]] = []
    with stage("dups", len(rows)) as advance:
        advance(len(rows) - len(asked))
        for near, others in _neighbours(index, asked, threshold, advance):
            links.append((near, others))
            if sum(len(near) for near, _ in links) > _LINKS:
                label = _joined(label, links)
                links = []
    label = _joined(label, links)[rows]
    order = np.argsort(label, kind="stable")
    groups = np.split(rows[order], np.flatnonzero(np.diff(label[order])) + 1)
    large = sorted(
        (group for group in groups if len(group) > 1), key=lambda group: (-len(group), group[0])
    )
    vectors = map(index.vectors, large)
    return [
        list(index.hits(group, np.minimum(units @ units[0], 1)))
        for group, units in zip(large, vectors, strict=True)
    ]


def _neighbours(
    index: VectorIndex, rows: RowNumbers, threshold: float, advance: Advance
) -> Iterator[tuple[RowNumbers, RowNumbers]]:
    """Yield rows, and other rows whose cosine to them is at least ``threshold``.

    A row is searched for again, with more neighbours, while its last one is above the threshold.
    """
    step = _ANSWERS // _FIRST // 4
    for start in range(0, len(rows), step):
        waiting = rows[start : start + step]
        k = _FIRST
        count = len(waiting)
        while len(waiting):
            again = []
            for asked in np.array_split(waiting, -(-len(waiting) * k // _ANSWERS)):
                answers = index.nearest(index.vectors(asked), k)
                again.append(
                    asked[
                        [
                            len(near) == k < index.rows and cos[-1] > threshold
                            for near, cos in answers
                        ]
                    ]
                )
                near = np.repeat(asked, [len(others) for others, _ in answers])
                others, scores = (
                    np.concatenate(list(column)) for column in zip(*answers, strict=True)
                )
                kept = (scores >= threshold) & (near != others)
                yield near[kept], others[kept]
            waiting = np.concatenate(again)
            k = k * _MORE
        advance(count)


def _first_copies(index: VectorIndex, rows: RowNumbers) -> RowNumbers:
    """Return for every row the first row with the same vector in half precision."""
    keys = np.empty((len(index.masked), 2), np.uint64)
    weights = np.random.default_rng(0).integers(1, 1 << 63, (index.width, 2), np.uint64)
    for block in np.array_split(rows, -(-len(rows) // 16_384)):
        bits = index.vectors(block).astype(np.float16).view(np.uint16).astype(np.uint64)
        # modulo 2**64: different rows do not have the same pair of keys by chance
        keys[block] = bits @ weights
    label = np.arange(len(keys))
    _, first, group = np.unique(keys[rows], axis=0, return_index=True, return_inverse=True)
    label[rows] = rows[first[group.reshape(-1)]]
    return label


def _joined(label: RowNumbers, links: list[tuple[RowNumbers, RowNumbers]]) -> RowNumbers:
    """Return for every row the first row of its group, after more links."""
    n = len(label)
    left = np.concatenate([np.arange(n), *(near for near, _ in links)])
    right = np.concatenate([label, *(others for _, others in links)])
    _, groups = connected_components(
        coo_array((np.ones(len(left), bool), (left, right)), shape=(n, n)), directed=False
    )
    first = np.full(n, n)
    np.minimum.at(first, groups, np.arange(n))
    return first[groups]
