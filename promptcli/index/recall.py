"""recall@10 of an approximate index against exact search. Knows nothing of FAISS.

The queries are rows of the index itself, each without its own row: finding oneself is no merit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
RowNumbers = Sequence[NDArray[np.int64]]

#: Neighbours that count, and the most rows that are asked for.
NEIGHBOURS, QUERIES = 10, 1000

#: Scores that differ by less are equal: of several equal neighbours any will do.
_EQUAL = 1e-6


@dataclass(frozen=True)
class Recall:
    """Share of the 10 nearest rows that an index finds, over ``queries`` of the ``rows`` that were indexed then."""

    at_10: float
    queries: int
    rows: int


def sample(rows: int) -> NDArray[np.int64]:
    """Return the rows to ask for: up to ``QUERIES``, always the same of equally many."""
    chosen = np.random.default_rng(0).choice(rows, min(QUERIES, rows), replace=False)
    return np.sort(chosen).astype(np.int64)


def recall(units: Floats, asked: NDArray[np.int64], exact: RowNumbers, found: RowNumbers) -> Recall:
    """Compare two searches.

    Args:
        units: (n, d) all rows, of length 1.
        asked: The q rows used as queries.
        exact: For each query the ``NEIGHBOURS + 1`` nearest rows (all, where there are fewer), best first.
        found: The same from the index; may hold fewer.
    """
    wanted = min(NEIGHBOURS, len(units) - 1)
    if wanted == 0:
        return Recall(1.0, len(asked), len(units))
    hits = 0
    for own, true, answer in zip(asked.tolist(), exact, found, strict=True):
        last = _others(units, own, true, wanted).min()
        hits += int((_others(units, own, answer, wanted) >= last - _EQUAL).sum())
    return Recall(hits / (wanted * len(asked)), len(asked), len(units))


def _others(units: Floats, own: int, rows: NDArray[np.int64], wanted: int) -> Floats:
    """Return the exact scores of the first rows other than the query's own."""
    scores: Floats = units[rows[rows != own][:wanted]] @ units[own]
    return scores
