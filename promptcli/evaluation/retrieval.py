"""Retrieval metrics on arrays: the rank of a query's documents when all documents are sorted by cosine."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.precision import unit
from promptcli.evaluation import statistics

#: Numbers of documents of a query -> their grades, above 0.
Grades = Sequence[Mapping[int, float]]
#: Queries compared with all documents at a time.
_AT_ONCE = 256


def nearest(queries: NDArray[np.floating], documents: NDArray[np.floating], depth: int) -> NDArray[np.int64]:
    """Return the numbers of the documents (m, d) nearest to each query (n, d) by cosine, (n, depth), nearest first.

    Of equally near documents the earlier comes first. With fewer than ``depth`` documents all are returned.
    """
    scaled, depth = _directions(documents), min(depth, len(documents))
    rows = []
    for start in range(0, len(queries), _AT_ONCE):
        cosines = _directions(queries[start : start + _AT_ONCE]) @ scaled.T
        best = np.sort(np.argpartition(-cosines, depth - 1, axis=1)[:, :depth], axis=1)
        order = np.argsort(-np.take_along_axis(cosines, best, axis=1), axis=1, kind="stable")
        rows.append(np.take_along_axis(best, order, axis=1))
    return np.concatenate(rows)


def ndcg(ranked: NDArray[np.int64], grades: Grades, depth: int = 10) -> NDArray[np.float64]:
    """Return each query's normalised discounted cumulative gain, (n,): the grade over log2(rank + 1), as trec_eval.

    Source: Jaervelin and Kekaelaeinen 2002; the gain is the grade itself, and the ideal order is of all graded
    documents.
    """
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    result = np.zeros(len(ranked))
    for number, (row, of_query) in enumerate(zip(ranked[:, :depth].tolist(), grades, strict=True)):
        ideal = np.sort(list(of_query.values()))[::-1][:depth]
        gains = np.array([of_query.get(document, 0.0) for document in row])
        result[number] = gains @ discounts[: len(gains)] / (ideal @ discounts[: len(ideal)])
    return result


def recall(ranked: NDArray[np.int64], grades: Grades, depth: int) -> NDArray[np.float64]:
    """Return the share of each query's graded documents that are among its nearest ``depth``, (n,)."""
    rows = zip(ranked[:, :depth].tolist(), grades, strict=True)
    return np.array([len(of_query.keys() & set(row)) / len(of_query) for row, of_query in rows])


def bootstrap_mean(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the mean of n values."""
    counts = statistics.resample_counts(len(values), statistics.RESAMPLES, statistics.SEED)
    return statistics.interval(np.concatenate([values @ chunk for chunk in counts]) / len(values))


def _directions(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    return unit(np.nan_to_num(np.asarray(vectors, dtype=np.float32)))
