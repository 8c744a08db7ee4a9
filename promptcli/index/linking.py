"""Complete links: groups of rows in which every two rows are near each other.

Agglomerative clustering with complete linkage, cut at a threshold, over the pairs that reach it.
Two clusters are as near as the two of their rows that are farthest apart. The nearest clusters
merge first; of equally near ones the earliest. Clusters that are each other's nearest merge
together: complete linkage is reducible, so that the result is the same as one after the other
(Murtagh, 1983).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import Floats
from promptcli.index.array_rows import RowMask

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class LinkedPairs:
    """p pairs of clusters, the one with the lower number first."""

    first: Numbers  #: (p,)
    second: Numbers  #: (p,)
    lowest: Floats  #: (p,), the lowest cosine of two rows, one of each cluster
    compared: Numbers  #: (p,), pairs of rows that were compared

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, chosen: "RowMask | Numbers") -> "LinkedPairs":
        return LinkedPairs(
            self.first[chosen], self.second[chosen], self.lowest[chosen], self.compared[chosen]
        )

    @classmethod
    def join(cls, parts: "Sequence[LinkedPairs]") -> "LinkedPairs":
        """Return the pairs of all parts, those of the same clusters as one."""
        first = np.concatenate([np.empty(0, np.int64), *(part.first for part in parts)])
        second = np.concatenate([np.empty(0, np.int64), *(part.second for part in parts)])
        lowest = np.concatenate([np.empty(0, np.float32), *(part.lowest for part in parts)])
        compared = np.concatenate([np.empty(0, np.int64), *(part.compared for part in parts)])
        keys = (first << 32) | second
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        first = first[order]
        second = second[order]
        is_new = np.ones(len(order), bool)
        is_new[1:] = keys[1:] != keys[:-1]
        starts = np.flatnonzero(is_new)
        if not len(starts):
            return cls(first, second, lowest, compared)
        return cls(
            first[starts],
            second[starts],
            np.minimum.reduceat(lowest[order], starts),
            np.add.reduceat(compared[order], starts),
        )


def complete_links(pairs: LinkedPairs, sizes: Numbers) -> Numbers:
    """Return the cluster of each of m clusters after all merges, named by its lowest number.

    Args:
        pairs: Pairs of clusters all of whose compared rows are near; a pair is complete if all its
            rows were compared, and clusters without a complete pair do not merge.
        sizes: (m,) rows of each cluster.
    """
    label = np.arange(len(sizes))
    sizes = sizes.copy()
    pairs = _complete_pairs(pairs, sizes)
    while len(pairs):
        nearest = _nearest_clusters(pairs, len(sizes))
        kept = np.flatnonzero(nearest > np.arange(len(sizes)))
        kept = kept[nearest[nearest[kept]] == kept]
        gone = nearest[kept]
        target = np.arange(len(sizes))
        target[gone] = kept
        sizes[kept] += sizes[gone]
        label = target[label]
        moved = _rename(pairs, target)
        pairs = _complete_pairs(LinkedPairs.join([moved]), sizes)
    return label


def keep_nearest(pairs: LinkedPairs, count: int, clusters: int) -> tuple[LinkedPairs, Floats]:
    """Keep the pairs of which one cluster is among the ``count`` nearest of the other.

    Return them with the cosine (m,) that a further pair of each cluster must exceed; 0: none yet.
    """
    # each pair is listed for its first cluster, and for its second
    nodes = np.concatenate([pairs.first, pairs.second])
    cosines = np.concatenate([pairs.lowest, pairs.lowest])
    order = np.argsort(_keys_by_falling_cosine(nodes, cosines), kind="stable")
    nodes = nodes[order]
    ranks = _places_in_runs(nodes)  # of a pair among those of its cluster, from 0
    is_near = np.zeros(len(pairs), bool)
    is_near[order[ranks < count] % len(pairs)] = True
    bars = np.zeros(clusters, np.float32)
    last = ranks == count - 1
    bars[nodes[last]] = cosines[order[last]]
    return pairs[is_near], bars


def _keys_by_falling_cosine(nodes: Numbers, cosines: Floats) -> NDArray[np.uint64]:
    """Return numbers whose order is that of the nodes, and of one node that of falling cosines.

    The cosines are positive: their bits are in the order of the numbers.
    """
    falling = np.uint64(0xFFFFFFFF) - cosines.view(np.uint32).astype(np.uint64)
    return (nodes.astype(np.uint64) << np.uint64(32)) | falling


def _places_in_runs(values: Numbers) -> Numbers:
    """Return the place of each value in its run of equal ones, from 0."""
    begins = np.r_[True, values[1:] != values[:-1]]
    starts = np.flatnonzero(begins)
    start_of_each = starts[np.cumsum(begins) - 1]
    places: Numbers = np.arange(len(values)) - start_of_each
    return places


def _complete_pairs(pairs: LinkedPairs, sizes: Numbers) -> LinkedPairs:
    return pairs[pairs.compared == sizes[pairs.first] * sizes[pairs.second]]


def _nearest_clusters(pairs: LinkedPairs, clusters: int) -> Numbers:
    """Return the nearest cluster of each cluster, or -1; of equally near ones the lowest number."""
    nodes = np.concatenate([pairs.first, pairs.second])
    others = np.concatenate([pairs.second, pairs.first])
    cosines = np.concatenate([pairs.lowest, pairs.lowest])
    highest = np.zeros(clusters, np.float32)
    np.maximum.at(highest, nodes, cosines)
    best = cosines == highest[nodes]
    nearest = np.full(clusters, clusters)
    np.minimum.at(nearest, nodes[best], others[best])
    nearest[nearest == clusters] = -1
    return nearest


def _rename(pairs: LinkedPairs, target: Numbers) -> LinkedPairs:
    """Return the pairs between other clusters after a merge."""
    first = target[pairs.first]
    second = target[pairs.second]
    between = first != second
    return LinkedPairs(
        np.minimum(first, second), np.maximum(first, second), pairs.lowest, pairs.compared
    )[between]
