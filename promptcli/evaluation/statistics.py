"""Metrics on arrays: rank correlation of cosines with gold scores, retrieval, and their bootstrap
intervals.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.precision import unit

Floats = NDArray[np.floating]

#: resamples and seed of every printed interval, so that equal input prints equal intervals
RESAMPLES = 1000
SEED = 42

_CHUNK = 64  #: resamples drawn at a time: fixed, since a seed's draws depend on it


def cosine(first: Floats, second: Floats) -> NDArray[np.float64]:
    """Return the cosine of each row of ``first`` (n, d) with the same row of ``second`` (n, d),
    (n,) in float64.

    A NaN in a vector counts as 0 and a zero vector has the cosine 0 (the papers' evaluation does
    the same).
    """
    a = np.nan_to_num(np.asarray(first, dtype=np.float64))
    b = np.nan_to_num(np.asarray(second, dtype=np.float64))
    norms = np.sqrt(np.einsum("nd,nd->n", a, a) * np.einsum("nd,nd->n", b, b))
    result = np.zeros(len(a))
    np.divide(np.einsum("nd,nd->n", a, b), norms, out=result, where=norms > 0)
    return result


def spearman(scores: Floats, gold: Floats) -> float:
    """Return Spearman's rank correlation of (n,) similarities with (n,) gold scores, with mid-ranks
    for ties.

    An undefined correlation (a constant, a NaN) is 0.
    """
    if np.isnan(scores).any() or np.isnan(gold).any():
        return 0.0
    once = np.ones((len(gold), 1))
    return float(resampled_spearman([ResampledRanks(scores)], ResampledRanks(gold), once)[0, 0])


def bootstrap_intervals(
    scores: Floats, gold: Floats, *, resamples: int = RESAMPLES, seed: int = SEED
) -> list[tuple[float, float]]:
    """Return the 95% percentile interval of the Spearman correlation of each of k rows (k, n) with
    gold scores (n,).

    The n pairs are drawn with replacement, once for all rows (Efron and Tibshirani 1993, section
    13.3); equal seeds draw equal pairs for equal n.
    """
    return [interval(row) for row in _draws(scores, gold, resamples, seed)]


def average_intervals(
    scores: Sequence[Floats],
    gold: Sequence[Floats],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> list[tuple[float, float]]:
    """Return the 95% percentile interval of the mean of each system's Spearman correlations on t
    tasks.
    """
    return [
        interval(row) for row in resampled_averages(scores, gold, resamples=resamples, seed=seed)
    ]


def resampled_averages(
    scores: Sequence[Floats],
    gold: Sequence[Floats],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> NDArray[np.float64]:
    """Return the mean of each system's Spearman correlations on t tasks in each resample, (k,
    resamples).

    Task i has similarities (k, n) of k systems and gold scores (n,). Its pairs are drawn by ``seed
    + i``, the same for all systems: the tasks are independent samples.
    """
    draws = [
        _draws(rows, of, resamples, seed + i)
        for i, (rows, of) in enumerate(zip(scores, gold, strict=True))
    ]
    averages: NDArray[np.float64] = np.mean(draws, axis=0)
    return averages


def resampled_mean(values: NDArray[np.float64], seed: int = SEED) -> NDArray[np.float64]:
    """Return the mean of n values in each resample; lists of n values are drawn in pairs."""
    counts = resample_counts(len(values), RESAMPLES, seed)
    return np.concatenate([values @ chunk for chunk in counts]) / len(values)


def resampled_mean_of_means(tasks: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the mean of t tasks' mean values in each resample, (resamples,).

    Task i is drawn by ``SEED + i``.
    """
    draws = [resampled_mean(values, SEED + number) for number, values in enumerate(tasks)]
    means: NDArray[np.float64] = np.mean(draws, axis=0)
    return means


def two_sided(differences: NDArray[np.float64]) -> float:
    """Return the two-sided p-value of a difference from its resamples, in which both systems have
    the same draws.

    It is twice the share of resamples whose difference lies on the other side of 0 (or on it),
    counting one resample more than was drawn. If none lies there, the normal distribution of their
    mean and deviation says how small it is.
    """
    smaller = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p_value, deviation = (
        min(1.0, 2 * (smaller + 1) / (len(differences) + 1)),
        float(differences.std()),
    )
    if smaller or not deviation:
        return p_value
    return min(p_value, math.erfc(abs(float(differences.mean())) / deviation / math.sqrt(2)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, 1979): of m the i-th smallest times m - i +
    1, rising.
    """
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values, np.float64)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return [float(value) for value in corrected]


def resample_counts(size: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield (size, r) counts, in chunks of r resamples: how often each of ``size`` pairs was
    drawn.
    """
    generator = np.random.default_rng(seed)
    for start in range(0, resamples, _CHUNK):
        width = min(_CHUNK, resamples - start)
        cells = generator.integers(0, size, size=(size, width)) * width + np.arange(width)
        yield (
            np.bincount(cells.ravel(), minlength=size * width)
            .reshape(size, width)
            .astype(np.float64)
        )


class ResampledRanks:
    """Mid-ranks of one list of values inside any resample of it, without sorting again.

    A resample is its counts. Values are sorted once; in a resample the mid-rank of a value is the
    number of smaller draws plus half of one more than the draws equal to it, so a cumulative sum
    over the sorted counts gives all ranks. Ranks are kept twice as large and centred on 0, which
    makes them whole numbers: sums of products are exact.
    """

    def __init__(self, values: Floats) -> None:
        values = np.asarray(values)
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        new = np.ones(len(values), dtype=bool)
        new[1:] = ordered[1:] != ordered[:-1]
        self._starts = np.flatnonzero(new)
        self._tied = len(self._starts) < len(values)
        self.group = np.empty(len(values), dtype=np.intp)  #: (n,) the tie group of each value
        self.group[self.order] = np.cumsum(new) - 1

    def group_sums(self, ordered: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum (n, r) values, sorted like ``order``, inside each tie group: (groups, r)."""
        return np.add.reduceat(ordered, self._starts, axis=0) if self._tied else ordered

    def ranks(
        self, ordered_counts: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return twice the centred mid-rank of each tie group (groups, r), and the sum of its
        squares over draws (r,).

        ``ordered_counts`` (n, r) are those of the values in the order of ``order``.
        """
        drawn = self.group_sums(ordered_counts)
        ranks = np.cumsum(drawn, axis=0)
        total = ranks[-1].copy()
        ranks *= 2
        ranks -= drawn
        ranks -= total
        return ranks, np.einsum("gr,gr,gr->r", drawn, ranks, ranks)


def resampled_spearman(
    scores: list[ResampledRanks], gold: ResampledRanks, counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return Spearman's correlation of each of k score lists with gold in each of r resamples: (k,
    r).
    """
    result = np.zeros((len(scores), counts.shape[1]))
    by_gold = counts[gold.order]
    gold_ranks, gold_squares = gold.ranks(by_gold)
    for row, score in zip(result, scores, strict=True):
        ranks, squares = score.ranks(counts[score.order])
        drawn_ranks = ranks[score.group[gold.order]]
        drawn_ranks *= by_gold
        products = np.einsum("gr,gr->r", gold.group_sums(drawn_ranks), gold_ranks)
        norms = np.sqrt(squares * gold_squares)
        np.divide(products, norms, out=row, where=norms > 0)
    return result


def _draws(scores: Floats, gold: Floats, resamples: int, seed: int) -> NDArray[np.float64]:
    """Return the correlation of each row of (k, n) scores in each resample: (k, resamples)."""
    rows, gold_ranks = [ResampledRanks(row) for row in scores], ResampledRanks(gold)
    chunks = resample_counts(len(gold), resamples, seed)
    return np.concatenate(
        [resampled_spearman(rows, gold_ranks, counts) for counts in chunks], axis=1
    )


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95% percentile interval of resampled figures."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


# Retrieval: the rank of a query's documents when all documents are sorted by cosine.

Grades = Sequence[Mapping[int, float]]  #: numbers of documents of a query -> their grades, above 0
_AT_ONCE = 256  #: queries compared with all documents at a time


def nearest(
    queries: NDArray[np.floating], documents: NDArray[np.floating], depth: int
) -> NDArray[np.int64]:
    """Return the numbers of the documents (m, d) nearest to each query (n, d) by cosine, (n,
    depth), nearest first.

    The earlier of equally near documents comes first. With fewer than ``depth`` documents all are
    returned.
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
    """Return each query's normalised discounted cumulative gain, (n,): the grade over log2(rank +
    1), as trec_eval.

    Source: Jaervelin and Kekaelaeinen 2002; the gain is the grade itself, and the ideal order is of
    all graded documents.
    """
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    result = np.zeros(len(ranked))
    for number, (row, of_query) in enumerate(zip(ranked[:, :depth].tolist(), grades, strict=True)):
        ideal = np.sort(list(of_query.values()))[::-1][:depth]
        gains = np.array([of_query.get(document, 0.0) for document in row])
        result[number] = gains @ discounts[: len(gains)] / (ideal @ discounts[: len(ideal)])
    return result


def recall(ranked: NDArray[np.int64], grades: Grades, depth: int) -> NDArray[np.float64]:
    """Return the share of each query's graded documents that are among its nearest ``depth``,
    (n,).
    """
    rows = zip(ranked[:, :depth].tolist(), grades, strict=True)
    return np.array([len(of_query.keys() & set(row)) / len(of_query) for row, of_query in rows])


def _directions(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    return unit(np.nan_to_num(np.asarray(vectors, dtype=np.float32)))
