"""Exact search: every row is compared, block by block, so that memory stays bounded."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import Floats
from promptcli.retrieval.derived import write_derived
from promptcli.retrieval.ranking import EQUAL, Ranking, best, exact_scores
from promptcli.retrieval.store import Keys, Store

EXACT = "Flat"  #: FAISS's name of an index in which every vector is compared
_MOST = 100_000  # rows that are all compared if nothing else is asked for
_PRODUCTS = 1 << 24  # that are held at once
_FEWEST = 8192  # rows of a block, at least

#: m rows: their keys, their unit vectors (m, d), and which may be answers, (m,); None: all.
Block = tuple[Keys, Floats, NDArray[np.bool_] | None]


def compares_all(rows: int, factory: str | None, target_recall: float) -> bool:
    """Return whether an index of so many rows is searched exactly."""
    return factory == EXACT or (factory is None and (rows < _MOST or target_recall >= 1))


def nearest_of(blocks: Iterable[Block], units: Floats, k: int) -> list[Ranking]:
    """Return the k nearest rows of each unit vector (q, d), best first; equal ones by key."""
    answers: list[Ranking] = [(np.empty(0, np.int64), np.empty(0, np.float32))] * len(units)
    for keys, vectors, allowed in blocks:
        products = units @ vectors.T
        for query, unit in enumerate(units):
            known, scores = answers[query]
            least = scores[-1] if len(scores) == k else -np.inf
            near = np.flatnonzero(products[query] >= least - EQUAL)
            if allowed is not None:
                near = near[allowed[near]]
            if len(near) > k:  # the exact scores of those alone that may be among them
                highest = products[query, near]
                near = near[highest >= np.partition(highest, -k)[-k] - EQUAL]
            scores = np.concatenate([scores, exact_scores(vectors[near], unit)])
            answers[query] = best(np.concatenate([known, keys[near]]), scores, k)
    return answers


def in_blocks(
    keys: Keys, vectors: Floats, queries: int, allowed: NDArray[np.bool_] | None = None
) -> Iterator[Block]:
    """Yield rows in blocks whose products with so many queries fit in memory."""
    size = max(_FEWEST, _PRODUCTS // max(queries, 1))
    for start in range(0, len(keys), size):
        part = slice(start, start + size)
        yield keys[part], vectors[part], None if allowed is None else allowed[part]


@dataclass
class ExactFile:
    """The vectors (m, d) of m rows and their keys (m,), ascending."""

    keys: Keys
    about: dict[str, Any]  #: what it was made of
    vectors: Floats

    @classmethod
    def of_store(cls, store: Store, **about: Any) -> "ExactFile":
        """Return the rows of a store."""
        keys, vectors = map(np.concatenate, zip(*store.units(), strict=True))
        return cls(keys, {**about, "factory": EXACT, "recall": None}, vectors)

    def nearest(
        self, units: Floats, k: int, allowed: NDArray[np.bool_] | None = None
    ) -> list[Ranking]:
        """Return the k nearest rows of each query (q, d); of those that are allowed, (m,)."""
        return nearest_of(in_blocks(self.keys, self.vectors, len(units), allowed), units, k)

    def write(self, path: Path) -> None:
        """Write a file."""
        write_derived(path, self.about, {"keys": self.keys, "vectors": self.vectors.ravel()})

    @classmethod
    def read(cls, about: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> "ExactFile":
        """Return the rows of a file that was read."""
        keys = arrays["keys"]
        return cls(keys, about, arrays["vectors"].reshape(len(keys), -1))
