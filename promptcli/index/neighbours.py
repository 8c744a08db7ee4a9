"""Near-duplicates within an index: its rows are compared with each other, block by block.

In an exact index all rows are compared. In an approximate one each row is searched for, and its
neighbours are those that a search finds.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from promptcli.data.vectors.formats import Floats
from promptcli.data.vectors.precision import unit
from promptcli.errors import unknown
from promptcli.index.array_rows import Hit, RowMask, RowNumbers
from promptcli.index.linking import LinkedPairs, Numbers, complete_links, keep_nearest
from promptcli.index.vector_index import VectorIndex
from promptcli.notes import stage
from promptcli.settings import check_range

Links = Literal["complete", "chain"]
_LINKS = ("complete", "chain")
#: Rows that are compared with as many others at once.
_BLOCK = 2048
#: Pairs that are held at once. Of each cluster the nearest are kept, as many as have room, between
#: these two numbers.
_PAIRS = 1 << 21
_FEWEST, _MOST = 4, 64
#: Neighbours that an approximate index is searched for, and then for rows that have more.
_NEIGHBOURS = (16, 128)
#: Answers of a search that are held at once.
_ANSWERS = 1 << 20


class DuplicateGroup(list[Hit]):
    """Rows that repeat each other, the earliest first; their scores are cosines to it."""

    def __init__(self, hits: Iterator[Hit], lowest: float) -> None:
        super().__init__(hits)
        self.lowest = lowest  #: the lowest cosine of two rows of the group


def dups(index: VectorIndex, threshold: float, links: Links = "complete") -> list[DuplicateGroup]:
    """Return the groups of two or more near-duplicates, the largest first.

    Args:
        index: Rows to compare.
        threshold: Cosine from which two rows are near-duplicates, above 0 and at most 1; cosines
            are compared to six decimals, in an index of rounded vectors to four.
        links: ``complete``: every two rows of a group are near-duplicates; the nearest come
            together first. ``chain``: each row of a group is a near-duplicate of another row of
            it; two of them may be far apart.

    Raises:
        UsageError: Another threshold, or an index that gives no vectors back.
    """
    check_range("threshold", threshold, {"above": 0, "max": 1})
    if links not in _LINKS:
        raise unknown("links", links, _LINKS)
    rows, first_of = _distinct_vectors(index)
    if not len(rows):
        return []
    search = _Comparison(index, rows, first_of, threshold - index.rounding)
    if links == "complete":
        label = search.complete()
    else:
        label = search.chains()
    return _groups(index, rows, first_of, label)


class _Comparison:
    """Compares m distinct rows of an index, which are numbered from 0 here."""

    def __init__(
        self, index: VectorIndex, rows: RowNumbers, first_of: Numbers, least: float
    ) -> None:
        self._index = index
        self._rows = rows
        self._first_of = first_of
        self._least = least  #: cosine of near-duplicates

    def complete(self) -> Numbers:
        """Return the group (m,) of each row by complete links.

        If a row has more near-duplicates than have room, its nearest ones are joined first, and the
        groups that result are compared again.
        """
        label = np.arange(len(self._rows))
        if self._index.exact:
            pairs, is_cut = self._all_pairs(label, np.arange(len(label)))
        else:
            pairs, is_cut = self._found_pairs()
        while True:
            sizes = np.bincount(label, minlength=len(label))
            joined = complete_links(pairs, sizes)
            label = joined[label]
            has_merged = (joined != np.arange(len(joined))).any()
            if not (has_merged and is_cut.any()):
                return label
            open_groups = np.unique(joined[is_cut])
            pairs, is_cut = self._all_pairs(label, np.flatnonzero(np.isin(label, open_groups)))

    def chains(self) -> Numbers:
        """Return the group (m,) of each row by chains."""
        label = np.arange(len(self._rows))
        waiting = label
        if not self._index.exact:
            is_cut = np.zeros(len(label), bool)
            for pairs in self._search(is_cut):
                label = _link(label, pairs.first, pairs.second)
            waiting = np.flatnonzero(is_cut)
        for left, right, cosines in self._blocks(waiting):
            near = cosines >= self._least
            near &= label[left][:, None] != label[right]
            places = np.nonzero(near)
            if len(places[0]):
                label = _link(label, left[places[0]], right[places[1]])
        return label

    def _all_pairs(self, label: Numbers, places: Numbers) -> tuple[LinkedPairs, RowMask]:
        """Compare rows, and return the near pairs of their clusters.

        Return also which clusters have more pairs than those.
        """
        places = places[np.argsort(label[places], kind="stable")]
        kept = _Kept(len(label))
        for left, right, cosines in self._blocks(places):
            left_starts = _starts(label[left])
            right_starts = _starts(label[right])
            if len(left_starts) < len(left):
                cosines = np.minimum.reduceat(cosines, left_starts, axis=0)
            if len(right_starts) < len(right):
                cosines = np.minimum.reduceat(cosines, right_starts, axis=1)
            first = label[left[left_starts]]
            second = label[right[right_starts]]
            near = kept.may_keep(cosines, first, second, cosines >= self._least)
            one, other = np.nonzero(near)
            sizes = np.diff(left_starts, append=len(left))[one]
            sizes = sizes * np.diff(right_starts, append=len(right))[other]
            kept.add(LinkedPairs(first[one], second[other], cosines[one, other], sizes))
        return kept.finish()

    def _found_pairs(self) -> tuple[LinkedPairs, RowMask]:
        """Return the near pairs of rows that searches find, and which rows have more."""
        is_cut = np.zeros(len(self._rows), bool)
        kept = _Kept(len(self._rows))
        for pairs in self._search(is_cut):
            kept.add(pairs)
        pairs, had_no_room = kept.finish()
        ones = np.ones(len(pairs), np.int64)  # a pair is found from both of its rows
        return LinkedPairs(pairs.first, pairs.second, pairs.lowest, ones), is_cut | had_no_room

    def _blocks(self, places: Numbers) -> Iterator[tuple[Numbers, Numbers, Floats]]:
        """Yield two blocks of rows and their cosines, for each two of the rows once."""
        blocks = [places[start : start + _BLOCK] for start in range(0, len(places), _BLOCK)]
        step = 2 * len(places) / max(1, len(blocks) * (len(blocks) + 1))
        with stage("dups", len(places)) as advance:
            for number, left in enumerate(blocks):
                units = self._unit_vectors(left)
                for right in blocks[number:]:
                    yield left, right, units @ self._unit_vectors(right).T
                    advance(step)

    def _search(self, is_cut: RowMask) -> Iterator[LinkedPairs]:
        """Search for every row, and yield near pairs.

        Mark the rows whose answers are all near.
        """
        step = _ANSWERS // _NEIGHBOURS[0] // 4
        with stage("dups", len(self._rows)) as advance:
            for start in range(0, len(self._rows), step):
                waiting = np.arange(start, min(start + step, len(self._rows)))
                for k in _NEIGHBOURS:
                    again = [np.empty(0, np.int64)]
                    for asked in np.array_split(waiting, -(-len(waiting) * k // _ANSWERS) or 1):
                        pairs, has_more = self._neighbours(asked, k)
                        again.append(asked[has_more])
                        yield pairs
                    waiting = np.concatenate(again)
                is_cut[waiting] = True
                advance(min(step, len(self._rows) - start))

    def _neighbours(self, places: Numbers, k: int) -> tuple[LinkedPairs, RowMask]:
        """Return the near pairs among k answers for each row, and whether all answers are near."""
        units = self._unit_vectors(places)
        answers = self._index.nearest(units, k)
        counts = [len(rows) for rows, _ in answers]
        owners = np.repeat(np.arange(len(places)), counts)
        found = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in answers)])
        others = self._first_of[found]
        known = others >= 0
        owners = owners[known]
        others = others[known]
        cosines = np.einsum("ij,ij->i", units[owners], self._unit_vectors(others))
        near = cosines >= self._least
        near_counts = np.bincount(owners[near], minlength=len(places))
        has_more = (near_counts == k) & (k < self._index.rows)
        near &= places[owners] != others
        one = places[owners[near]]
        other = others[near]
        first = np.minimum(one, other)
        second = np.maximum(one, other)
        ones = np.ones(len(first), np.int64)
        return LinkedPairs(first, second, cosines[near], ones), has_more

    def _unit_vectors(self, places: Numbers) -> Floats:
        return unit(self._index.vectors(self._rows[places]))


class _Kept:
    """The nearest pairs of each cluster, up to a number."""

    def __init__(self, clusters: int) -> None:
        self._count = min(max(_PAIRS // clusters, _FEWEST), _MOST)
        self._parts = list[LinkedPairs]()
        self._held = 0
        #: (m,) the cosine that a pair must exceed to be kept, if both its clusters have one
        self._bars = np.zeros(clusters, np.float32)
        self._is_cut = np.zeros(clusters, bool)

    def may_keep(self, cosines: Floats, first: Numbers, second: Numbers, near: RowMask) -> RowMask:
        """Return which near pairs of two blocks of clusters can be among those to keep."""
        near &= first[:, None] < second
        if self._is_cut.any():
            above_first = cosines > self._bars[first][:, None]
            above_second = cosines > self._bars[second]
            near &= above_first | above_second
        if np.count_nonzero(near) <= self._count * (len(first) + len(second)):
            return near
        cosines = np.where(near, cosines, 0)
        rows = min(self._count, len(second))
        columns = min(self._count, len(first))
        row_bars = np.partition(cosines, -rows, axis=1)[:, -rows]
        column_bars = np.partition(cosines, -columns, axis=0)[-columns]
        nearest_of_row = cosines >= row_bars[:, None]
        nearest_of_column = cosines >= column_bars
        kept: RowMask = near & (nearest_of_row | nearest_of_column)
        left_out = near & ~kept
        self._is_cut[first[left_out.any(axis=1)]] = True
        self._is_cut[second[left_out.any(axis=0)]] = True
        return kept

    def add(self, pairs: LinkedPairs) -> None:
        self._parts.append(pairs)
        self._held += len(pairs)
        if self._held > 2 * _PAIRS:
            self._cut()

    def finish(self) -> tuple[LinkedPairs, RowMask]:
        """Return the pairs, and which clusters had more."""
        return LinkedPairs.join(self._parts), self._is_cut

    def _cut(self) -> None:
        pairs, bars = keep_nearest(LinkedPairs.join(self._parts), self._count, len(self._bars))
        self._parts = [pairs]
        self._held = len(pairs)
        self._bars = np.maximum(self._bars, bars)
        self._is_cut |= bars > 0


def _distinct_vectors(index: VectorIndex) -> tuple[RowNumbers, Numbers]:
    """Return the first row of each vector, and for every row of the index its place among them.

    The place of a deleted row, and of one whose vector is zero, is -1: it is like no other.
    """
    rows = index.live()
    keys = np.zeros((len(rows), 2), np.uint64)
    weights = np.random.default_rng(0).integers(1, 1 << 63, (index.width, 2), np.uint64)
    for start in range(0, len(rows), 8 * _BLOCK):
        block = slice(start, start + 8 * _BLOCK)
        vectors = index.vectors(rows[block]) + np.float32(0)  # no -0.0
        # modulo 2**64: different vectors do not have the same pair of keys by chance
        keys[block] = vectors.view(np.uint32).astype(np.uint64) @ weights
    is_vector = keys.any(axis=1)  # not zero
    rows = rows[is_vector]
    _, first, key_of_row = np.unique(
        keys[is_vector], axis=0, return_index=True, return_inverse=True
    )
    order = np.argsort(first)  # keys are sorted by number, the vectors by their first row
    place_of_key = np.empty(len(order), np.int64)
    place_of_key[order] = np.arange(len(order))
    place_of_row = np.full(len(index.masked), -1)
    place_of_row[rows] = place_of_key[key_of_row.reshape(-1)]
    return rows[first[order]], place_of_row


def _groups(
    index: VectorIndex, rows: RowNumbers, first_of: Numbers, label: Numbers
) -> list[DuplicateGroup]:
    """Return the groups of rows that have a label in common, with their copies."""
    live = np.flatnonzero(first_of >= 0)
    labels = label[first_of[live]]
    order = np.argsort(labels, kind="stable")
    groups = np.split(live[order], np.flatnonzero(np.diff(labels[order])) + 1)
    large = [group for group in groups if len(group) > 1]
    duplicates = []
    for group in sorted(large, key=lambda group: (-len(group), group[0])):
        units = unit(index.vectors(group))
        cosines = np.minimum(units @ units[0], 1)
        lowest = _lowest_cosine(index, rows[np.unique(first_of[group])])
        duplicates.append(DuplicateGroup(index.hits((group, cosines)), lowest))
    return duplicates


def _lowest_cosine(index: VectorIndex, rows: RowNumbers) -> float:
    """Return the lowest cosine of two of the rows; 1 if there is one."""
    lowest = 1.0
    blocks = [rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK)]
    if len(rows) == 1:
        return lowest
    for number, left in enumerate(blocks):
        units = unit(index.vectors(left))
        for right in blocks[number:]:
            cosines = units @ unit(index.vectors(right)).T
            lowest = min(lowest, float(cosines.min()))
    return lowest


def _link(label: Numbers, first: Numbers, second: Numbers) -> Numbers:
    """Return the first row of every row's group, after more links."""
    n = len(label)
    left = np.concatenate([np.arange(n), first])
    right = np.concatenate([label, second])
    _, groups = connected_components(
        coo_array((np.ones(len(left), bool), (left, right)), shape=(n, n)), directed=False
    )
    lowest = np.full(n, n)
    np.minimum.at(lowest, groups, np.arange(n))
    return lowest[groups]


def _starts(labels: Numbers) -> Numbers:
    """Return where runs of equal labels begin."""
    return np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
