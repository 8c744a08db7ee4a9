"""Rankings of rows by cosine and by words (BM25), their fusion, and the hits of a search."""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.precision import Floats
from promptcli.errors import UsageError
from promptcli.extensions import Table
from promptcli.retrieval.store import Keys

Way = Literal["both", "meaning", "words"]

#: Weight of words in a joined ranking if one row has all words of the query, and its maximum if
#: no row has all; the cosine has the rest. See ``weight_of_words``.
COVERED_WEIGHT, PARTIAL_WEIGHT = 0.8, 0.5
#: Words lose weight if the nearest rows stand out further than this, see ``stand_out``.
STANDING_OUT, LOST_WEIGHT = 0.5, 3
#: Fewest rows of each ranking to join.
DEPTH = 100
#: Scores that differ by less may be equal.
EQUAL = 1e-6
#: Scores are compared to six decimals, like the printed ones.
ROUNDING = 5e-7
#: Default cosine from which two rows are near-duplicates.
NEAR = 0.95
#: By 1 if a row is among the first by cosine, plus 2 if it is among the first by BM25.
_FOUND_BY = np.array(["both", "meaning", "words", "both"])
_PRODUCTS = 1 << 24  # products of vectors held at once
_FEWEST = 8192  # fewest rows per block
#: Of a hit ranked by both: the way that found it, its BM25, and its ranks by cosine and by words.
WAY_FIELDS = ("found_by", "bm25", "cosine_rank", "bm25_rank")
#: Name -> a function of an index, a query, its hits and the way in which they were ranked. It
#: returns an ``Explanation`` for each hit; None if it has none.
EXPLAINERS = Table[Any]("explainers", {})


class Explanation(NamedTuple):
    """Why a hit was found, by one row of ``EXPLAINERS``."""

    figures: Any  #: JSON-ready
    line: str  #: the same in words
    marked: Collection[str] = ()  #: words of the hit


class Hit(NamedTuple):
    """One answer: rank from 1, the row's id and text (None in an index without texts), its score,
    and other columns.

    The score is the cosine, or BM25 in a search by words alone. ``found_by`` is set if both ranked.
    """

    rank: int
    id: int | str
    text: str | None
    score: float
    columns: dict[str, Any] | None = None  #: None in an index without further columns
    #: ``meaning`` or ``words`` if only this ranking has the row among its first k; else ``both``
    found_by: str | None = None
    bm25: float | None = None
    cosine_rank: int | None = None  #: by cosine alone; None if the row was not compared
    bm25_rank: int | None = None  #: by words alone
    file: str | None = None  #: source of the row, in an index of files
    #: current state of its file: ``changed`` or ``gone``; None: unchanged
    stale: str | None = None
    explanation: dict[str, Explanation] | None = None  #: see ``explain``

    def explain(self) -> dict[str, Explanation]:
        """Return the reasons for the hit, by the names of ``EXPLAINERS``.

        Raises:
            UsageError: The search did not ask for explanations.
        """
        if self.explanation is None:
            raise UsageError(
                "the search kept no explanations; search with explain=True", parameter="explain"
            )
        return self.explanation

    def way(self) -> dict[str, Any]:
        """Return which of two rankings found the hit, and its scores and ranks there; empty if only
        one ranked.
        """
        return {} if self.found_by is None else {name: getattr(self, name) for name in WAY_FIELDS}

    def document(self) -> dict[str, Any]:
        """Return rank, id, text and score, and ``way``, JSON-ready."""
        shown = {name: getattr(self, name) for name in ("rank", "id", "text", "score")}
        return shown | self.way()


class Match(NamedTuple):
    """How well the best row by words matches a query."""

    covered: float  #: the row's share of the query's words, weighted by rarity
    strength: float  #: the row's score divided by the highest ``idf``, at most 1


class Ranking(NamedTuple):
    """Rows ranked by cosine or by BM25, best first; both arrays have shape (k,)."""

    keys: Keys
    scores: Floats

    def ways(self) -> Iterator[dict[str, Any]]:
        """Yield an empty dictionary for each row: no other ranking could have found it."""
        return itertools.repeat({}, len(self.keys))


class JoinedRanking(NamedTuple):
    """k rows ranked jointly by cosine and BM25, best first; all arrays have shape (k,)."""

    keys: Keys
    scores: Floats  #: cosines
    found_by: NDArray[np.str_]  #: see ``Hit``
    bm25: Floats
    cosine_ranks: NDArray[np.int64]  #: rank among the rows that vectors found, from 1; 0: not found
    bm25_ranks: NDArray[np.int64]  #: rank among the rows that words found, from 1; 0: not found

    def ways(self) -> Iterator[dict[str, Any]]:
        """Yield for each row the way that found it, its BM25, and its ranks by cosine and by words,
        with the names of ``Hit``.
        """
        columns = [column.tolist() for column in self[2:]]
        for found_by, bm25, *ranks in zip(*columns, strict=True):
            figures = (found_by, bm25, *(rank or None for rank in ranks))
            yield dict(zip(WAY_FIELDS, figures, strict=True))


def take(ranking: Ranking | JoinedRanking, places: Sequence[int]) -> Ranking | JoinedRanking:
    """Return the rows at some places of a ranking."""
    columns: Iterator[Any] = (column[places] for column in ranking)
    return type(ranking)(*columns)


def exact_scores(vectors: Floats, unit: Floats) -> Floats:
    """Return the cosines (m,) of unit vectors (m, d) with one unit vector (d,), each computed
    separately.
    """
    products = vectors.astype(np.float64) * unit.astype(np.float64)
    scores: Floats = np.minimum(products.sum(axis=1), 1).astype(np.float32)
    return scores


def top_k(keys: Keys, scores: Floats, k: int) -> Ranking:
    """Return the k highest scores and their keys, best first; ties by key."""
    order = np.lexsort((keys, -scores))[:k]
    return Ranking(keys[order], scores[order])


def nearest_of(
    vectors: Floats, units: Floats, k: int, allowed: NDArray[np.bool_] | None = None
) -> list[Ranking]:
    """Return the k nearest of n rows to each unit vector (q, d), best first; ties by row.

    Args:
        vectors: (n, d) of the rows.
        units: (q, d) the queries.
        k: Rows of each query.
        allowed: (n,) whether each row may be an answer; None: all.
    """
    answers = [Ranking(np.empty(0, np.int64), np.empty(0, np.float32))] * len(units)
    size = max(_FEWEST, _PRODUCTS // max(len(units), 1))
    for start in range(0, len(vectors), size):
        block = vectors[start : start + size].astype(np.float32, copy=False)
        products = units @ block.T
        for query, unit in enumerate(units):
            known, scores = answers[query]
            least = scores[-1] if len(scores) == k else -np.inf
            near = np.flatnonzero(products[query] >= least - EQUAL)
            if allowed is not None:
                near = near[allowed[start + near]]
            if len(near) > k:  # exact scores only for possible answers
                highest = products[query, near]
                near = near[highest >= np.partition(highest, -k)[-k] - EQUAL]
            scores = np.concatenate([scores, exact_scores(block[near], unit)])
            answers[query] = top_k(np.concatenate([known, start + near]), scores, k)
    return answers


def reaches(score: float, least: float) -> bool:
    """Return whether a score is at least ``least``, within rounding."""
    return bool(score >= least - ROUNDING)


def join_rankings(
    by_vectors: Ranking,
    by_words: Ranking,
    k: int,
    match: Match,
    cosines_of: Callable[[Keys], Floats],
    bm25_of: Callable[[Keys], Floats],
) -> JoinedRanking:
    """Return the k best of the rows that vectors or words found, best first; ties by key.

    Each row has its cosine and its BM25, whichever ranking found it. Cosines are scaled from 0 (the
    lowest) to 1 (the highest), and BM25 is divided by its highest. The joined score is their
    weighted mean (a convex combination: Bruch et al., 2023, "An Analysis of Fusion Functions for
    Hybrid Retrieval"); see ``weight_of_words``. The scale of a model's cosines has no effect.

    Args:
        by_vectors: Rows and cosines, best first.
        by_words: Rows and BM25, best first.
        k: Maximum number of rows.
        match: Match of the best row by BM25.
        cosines_of: Returns the cosines of rows that only words found.
        bm25_of: Returns BM25 of rows that only vectors found.
    """
    keys = np.union1d(by_vectors.keys, by_words.keys)
    cosines, cosine_ranks = _fill_in(keys, by_vectors, cosines_of)
    bm25, bm25_ranks = _fill_in(keys, by_words, bm25_of)
    weight = weight_of_words(by_vectors.scores, match)
    scores = (1 - weight) * _scale(cosines)
    if bm25.any():
        scores += weight * bm25 / bm25.max()
    first = np.lexsort((keys, -scores.astype(np.float32)))[:k]
    ranks = cosine_ranks[first], bm25_ranks[first]
    by_meaning, by_bm25 = ((0 < each) & (each <= len(first)) for each in ranks)
    return JoinedRanking(
        keys[first],
        cosines[first].astype(np.float32),
        _FOUND_BY[by_meaning + 2 * by_bm25],
        bm25[first].astype(np.float32),
        *ranks,
    )


def weight_of_words(cosines: Floats, match: Match) -> float:
    """Return the weight of words beside vectors, from 0 to ``COVERED_WEIGHT``.

    A row with all words of a query answers it; a row with some common words may not. In the second
    case, words count by their strength, and vectors prevail if their best scores are outliers:
    paraphrases share few words, and are far nearer than the other rows.

    Args:
        cosines: Cosines of the nearest rows, highest first.
        match: Match of the best row by words.
    """
    doubt = LOST_WEIGHT * max(0.0, stand_out(cosines[:DEPTH]) - STANDING_OUT)
    partial = PARTIAL_WEIGHT * match.strength**2 - doubt
    return max(0.0, COVERED_WEIGHT * match.covered + (1 - match.covered) * partial)


def stand_out(cosines: Floats) -> float:
    """Return the gap from the nearest row to the last of the nearest tenth, as a share of its gap
    to the last row.
    """
    if len(cosines) < 2 or cosines[0] == cosines[-1]:
        return 0.0
    return float((cosines[0] - cosines[(len(cosines) - 1) // 10]) / (cosines[0] - cosines[-1]))


def _fill_in(
    keys: Keys, ranking: Ranking, others: Callable[[Keys], Floats]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the scores of rows, with missing ones from ``others``, and their ranks."""
    ranks = np.zeros(len(keys), np.int64)
    places = np.searchsorted(keys, ranking.keys)
    ranks[places] = np.arange(1, 1 + len(places))
    scores = np.empty(len(keys))
    scores[places] = ranking.scores
    lacking = ranks == 0
    if lacking.any():
        scores[lacking] = others(keys[lacking])
    return scores, ranks


def _scale(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return scores on a scale from 0, the lowest, to 1, the highest."""
    if not len(scores) or scores.max() == scores.min():
        return np.zeros(len(scores))
    scaled: NDArray[np.float64] = (scores - scores.min()) / (scores.max() - scores.min())
    return scaled
