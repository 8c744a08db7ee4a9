"""Metrics on arrays: rank correlation of cosines with gold scores, retrieval, and their bootstrap
intervals.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.precision import unit

Floats = NDArray[np.floating]
Doubles = NDArray[np.float64]
Positions = NDArray[np.int64]

#: Resamples and seed of every interval, so that equal input has equal intervals.
RESAMPLES = 1000
BOOTSTRAP_SEED = 42

_CHUNK = 64  # resamples drawn at a time; fixed, because a seed's draws depend on it


def cosine(first: Floats, second: Floats) -> Doubles:
    """Return the cosine of each row of ``first`` (n, d) with that of ``second``, (n,) float64.

    A NaN in a vector counts as 0, and a zero vector has the cosine 0, as in the papers' evaluation.
    """
    a = np.nan_to_num(np.asarray(first, dtype=np.float64))
    b = np.nan_to_num(np.asarray(second, dtype=np.float64))
    products = np.einsum("nd,nd->n", a, b)
    squares_a = np.einsum("nd,nd->n", a, a)
    squares_b = np.einsum("nd,nd->n", b, b)
    norms = np.sqrt(squares_a * squares_b)
    result = np.zeros(len(a))
    np.divide(products, norms, out=result, where=norms > 0)
    return result


def spearman(scores: Floats, gold: Floats) -> float:
    """Return Spearman's rank correlation of (n,) similarities with (n,) gold scores.

    Ties have mid-ranks. The correlation of a constant, or with a NaN, is 0.
    """
    if np.isnan(scores).any() or np.isnan(gold).any():
        return 0.0
    once = np.ones((len(gold), 1))
    return float(resampled_spearman([ResampledRanks(scores)], ResampledRanks(gold), once)[0, 0])


def highest_spearman(gold: Floats) -> float:
    """Return the highest correlation that similarities without ties can have with gold scores.

    With ties in the gold scores it is below 1: at most about 0.866 for two levels.
    """
    ranks = np.argsort(np.argsort(gold, kind="stable"))
    return spearman(ranks.astype(np.float64), gold)


def area_under_curve(scores: Floats, gold: Floats) -> float:
    """Return the area under the ROC curve for gold scores of two levels.

    It is the share of (higher, lower) pairs that the similarities put in the right order; ties
    count half (Hanley and McNeil, 1982).
    """
    scores = np.nan_to_num(scores)
    is_high = gold == np.max(gold)
    low = np.sort(scores[~is_high])
    not_above = np.searchsorted(low, scores[is_high], side="right")
    below = np.searchsorted(low, scores[is_high], side="left")
    return float((not_above + below).mean() / (2 * len(low)))


def bootstrap_intervals(scores: Floats, gold: Floats) -> list[tuple[float, float]]:
    """Return the 95% interval of the Spearman correlation of each row (k, n) with gold (n,).

    It is the percentile interval of a bootstrap. The n pairs are drawn with replacement, once for
    all rows (Efron and Tibshirani 1993, section 13.3); equal seeds draw equal pairs for equal n.
    """
    return average_intervals([scores], [gold])


def average_intervals(
    scores: Sequence[Floats], gold: Sequence[Floats]
) -> list[tuple[float, float]]:
    """Return the 95% interval of the mean of each system's Spearman correlations on t tasks."""
    return [percentile_interval(row) for row in resampled_averages(scores, gold)]


def resampled_averages(scores: Sequence[Floats], gold: Sequence[Floats]) -> Doubles:
    """Return each system's mean Spearman correlation on t tasks in each resample, (k, resamples).

    Task i has similarities (k, n) of k systems and gold scores (n,). Its pairs are drawn by
    ``BOOTSTRAP_SEED + i``, the same for all systems: the tasks are independent samples.
    """
    draws = []
    for i, (task_scores, task_gold) in enumerate(zip(scores, gold, strict=True)):
        score_ranks = [ResampledRanks(row) for row in task_scores]
        gold_ranks = ResampledRanks(task_gold)
        correlations = [
            resampled_spearman(score_ranks, gold_ranks, counts)
            for counts in resample_counts(len(task_gold), RESAMPLES, BOOTSTRAP_SEED + i)
        ]
        draws.append(np.concatenate(correlations, axis=1))
    averages: Doubles = np.mean(draws, axis=0)
    return averages


def resampled_mean(values: Doubles, seed: int = BOOTSTRAP_SEED) -> Doubles:
    """Return the mean of n values in each resample; a seed draws the same indices for equal n."""
    chunks = resample_counts(len(values), RESAMPLES, seed)
    sums = np.concatenate([values @ counts for counts in chunks])
    return sums / len(values)


def mean_interval(values: Doubles) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the mean of n values."""
    return percentile_interval(resampled_mean(values))


def resampled_mean_of_means(tasks: Sequence[Doubles]) -> Doubles:
    """Return the mean of t tasks' mean values in each resample, (resamples,).

    Task i is drawn by ``BOOTSTRAP_SEED + i``.
    """
    draws = [resampled_mean(values, BOOTSTRAP_SEED + number) for number, values in enumerate(tasks)]
    means: Doubles = np.mean(draws, axis=0)
    return means


def two_sided_p_value(differences: Doubles) -> float:
    """Return the two-sided p-value of a difference from its resamples.

    Both systems have the same draws in a resample. The p-value is twice the share of resamples
    whose difference lies on the other side of 0 or on it; 1 is added to both counts, so that the
    share is never 0. If no resample lies there, a normal distribution with the resamples' mean and
    deviation gives the p-value.
    """
    not_above = int((differences <= 0).sum())
    not_below = int((differences >= 0).sum())
    smaller = min(not_above, not_below)
    p_value = min(1.0, 2 * (smaller + 1) / (len(differences) + 1))
    deviation = float(differences.std())
    if smaller or not deviation:
        return p_value
    deviations_from_zero = abs(float(differences.mean())) / deviation
    return min(p_value, math.erfc(deviations_from_zero / math.sqrt(2)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, 1979).

    The i-th smallest of m is multiplied by m - i + 1, raised to the one before it, and at most 1.
    """
    order = np.argsort(p_values, kind="stable")
    ascending = np.asarray(p_values, np.float64)[order]
    multiplied = ascending * np.arange(len(p_values), 0, -1)
    rising = np.maximum.accumulate(multiplied)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(rising, 1)
    return [float(value) for value in corrected]


def resample_counts(size: int, resamples: int, seed: int) -> Iterator[Doubles]:
    """Yield how often each of ``size`` pairs was drawn in r resamples, (size, r)."""
    generator = np.random.default_rng(seed)
    for start in range(0, resamples, _CHUNK):
        width = min(_CHUNK, resamples - start)
        drawn = generator.integers(0, size, size=(size, width))
        cells = drawn * width + np.arange(width)
        counts = np.bincount(cells.ravel(), minlength=size * width)
        yield counts.reshape(size, width).astype(np.float64)


class ResampledRanks:
    """Mid-ranks of one list of values inside any resample of it, without sorting again.

    A resample is given by its counts. Values are sorted once. In a resample, the mid-rank of a
    value is the number of smaller draws plus half of one more than the draws equal to it, so a
    cumulative sum over the sorted counts gives all ranks. Ranks are stored twice as large and
    centred on 0: they are whole numbers, and sums of their products are exact.
    """

    def __init__(self, values: Floats) -> None:
        values = np.asarray(values)
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        starts_group = np.ones(len(values), dtype=bool)
        starts_group[1:] = ordered[1:] != ordered[:-1]
        self._starts = np.flatnonzero(starts_group)
        self._has_ties = len(self._starts) < len(values)
        self.group = np.empty(len(values), dtype=np.intp)  #: (n,) the tie group of each value
        self.group[self.order] = np.cumsum(starts_group) - 1

    def group_sums(self, ordered: Doubles) -> Doubles:
        """Sum (n, r) values, sorted like ``order``, inside each tie group: (groups, r)."""
        if not self._has_ties:
            return ordered
        return np.add.reduceat(ordered, self._starts, axis=0)

    def ranks(self, ordered_counts: Doubles) -> tuple[Doubles, Doubles]:
        """Return twice the centred mid-rank of each tie group (groups, r), and its sum of squares.

        The squares are summed over the draws, (r,). ``ordered_counts`` (n, r) are the counts of the
        values in the order of ``order``.
        """
        drawn = self.group_sums(ordered_counts)
        ranks = np.cumsum(drawn, axis=0)
        total = ranks[-1].copy()
        ranks *= 2
        ranks -= drawn
        ranks -= total
        squares = np.einsum("gr,gr,gr->r", drawn, ranks, ranks)
        return ranks, squares


def resampled_spearman(
    scores: list[ResampledRanks], gold: ResampledRanks, counts: Doubles
) -> Doubles:
    """Return Spearman's correlation of k score lists with gold in each of r resamples, (k, r)."""
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


def percentile_interval(values: Doubles) -> tuple[float, float]:
    """Return the 95% percentile interval of resampled scores."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


# Retrieval: the ranks of a query's graded documents, with all documents sorted by cosine.

#: Position of a document of a query -> its grade, above 0.
Grades = Sequence[Mapping[int, float]]
_QUERIES_PER_BLOCK = 256  # compared with all documents at a time


def nearest(queries: Floats, documents: Floats, depth: int) -> Positions:
    """Return the positions of the documents nearest to each query by cosine, nearest first.

    Queries are (n, d), documents (m, d), the result is (n, depth), or (n, m) if m is smaller. Of
    equally near documents the earlier comes first.
    """
    depth = min(depth, len(documents))
    unit_queries, unit_documents = (
        unit(np.nan_to_num(np.asarray(vectors, dtype=np.float32)))
        for vectors in (queries, documents)
    )
    ranked = []
    for start in range(0, len(queries), _QUERIES_PER_BLOCK):
        cosines = unit_queries[start : start + _QUERIES_PER_BLOCK] @ unit_documents.T
        nearest_in_any_order = np.argpartition(-cosines, depth - 1, axis=1)[:, :depth]
        # sorted by position, which the stable sort below keeps among equal cosines
        candidates = np.sort(nearest_in_any_order, axis=1)
        candidate_cosines = np.take_along_axis(cosines, candidates, axis=1)
        order = np.argsort(-candidate_cosines, axis=1, kind="stable")
        ranked.append(np.take_along_axis(candidates, order, axis=1))
    return np.concatenate(ranked)


def ndcg(ranked: Positions, grades: Grades, depth: int = 10) -> Doubles:
    """Return each query's normalised discounted cumulative gain (n,), as in trec_eval.

    Source: Jaervelin and Kekaelaeinen 2002; the gain is the grade itself, its discount is log2(rank
    + 1), and the ideal order is of all graded documents.
    """
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    result = np.zeros(len(ranked))
    nearest_documents = ranked[:, :depth].tolist()
    for number, (documents, grade_of) in enumerate(zip(nearest_documents, grades, strict=True)):
        gains = np.array([grade_of.get(document, 0.0) for document in documents])
        ideal_gains = np.sort(list(grade_of.values()))[::-1][:depth]
        reached = gains @ discounts[: len(gains)]
        ideal = ideal_gains @ discounts[: len(ideal_gains)]
        result[number] = reached / ideal
    return result


def recall(ranked: Positions, grades: Grades, depth: int) -> Doubles:
    """Return the share of each query's graded documents among its nearest ``depth``, (n,)."""
    shares = []
    for documents, grade_of in zip(ranked[:, :depth].tolist(), grades, strict=True):
        shares.append(len(grade_of.keys() & set(documents)) / len(grade_of))
    return np.array(shares)


def highest_recall(grades: Grades, depth: int) -> float:
    """Return the highest mean recall: a query has ``depth`` places for its graded documents."""
    return float(np.mean([min(1.0, depth / len(grade_of)) for grade_of in grades]))
