"""Rankings of rows by cosine and by words (BM25), their fusion, and the rows as hits."""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.data.input_files import split_columns
from promptcli.data.vectors.precision import Floats
from promptcli.errors import UsageError
from promptcli.extensions import Table
from promptcli.retrieval.store import Keys, Mask, Store
from promptcli.storage.files import sha256

RankBy = Literal["both", "meaning", "words"]

#: The weight of words in a joined ranking if one row has all words of the query, and its maximum if
#: no row has all of them; the cosine has the rest. See ``weight_of_words``.
COVERED_WEIGHT, PARTIAL_WEIGHT = 0.8, 0.5
#: Words lose weight if the gap of the nearest rows is a larger share than the first number; the
#: second number is multiplied with the excess. See ``weight_of_words``.
_MAX_GAP_SHARE, _LOST_WEIGHT = 0.5, 3
#: Rows of each ranking to join, if the search does not ask for more.
JOIN_DEPTH = 100
#: Scores may be equal if their difference is smaller.
SCORE_TOLERANCE = 1e-6
#: Half of the last printed decimal: scores are compared to six decimals.
SCORE_ROUNDING = 5e-7
#: Default cosine from which two rows are near-duplicates.
NEAR_COSINE = 0.95
#: The index is 1 if a row is among the first by cosine, plus 2 if it is among the first by BM25.
_FOUND_BY = np.array(["both", "meaning", "words", "both"])
_PRODUCTS_PER_BLOCK = 1 << 24
_MIN_ROWS_PER_BLOCK = 8192
#: Name -> a function of an index, a query, its hits and the ranking (a ``RankBy``). It returns an
#: ``Explanation`` for each hit, or None for a hit that it cannot explain.
EXPLAINERS = Table[Any]("explainers", {})


class Explanation(NamedTuple):
    """Why a hit was found, by one function of ``EXPLAINERS``."""

    figures: Any  #: JSON-ready
    line: str  #: the figures as a line of text
    marked: Collection[str] = ()  #: words of the hit to mark


class Hit(NamedTuple):
    """One answer: its rank from 1, and the row's id, text, score and other columns.

    The text is None in an index without texts. The score is the cosine, or BM25 in a search by
    words alone. ``found_by``, ``bm25`` and the two ranks are None unless the search was by both.
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
    bm25_rank: int | None = None  #: by words alone; None if no word was found
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

    def joined_fields(self) -> dict[str, Any]:
        """Return the fields of a search by both, JSON-ready; empty for another search."""
        if self.found_by is None:
            return {}
        names = ("found_by", "bm25", "cosine_rank", "bm25_rank")
        return {name: getattr(self, name) for name in names}

    def document(self) -> dict[str, Any]:
        """Return rank, id, text and score, and ``joined_fields``, JSON-ready."""
        fields = {name: getattr(self, name) for name in ("rank", "id", "text", "score")}
        return fields | self.joined_fields()


class Match(NamedTuple):
    """How well the best row by words matches a query."""

    covered: float  #: the row's share of the query's words, weighted by rarity
    strength: float  #: the row's score divided by the highest ``idf``, at most 1


class Ranking(NamedTuple):
    """Rows ranked by cosine or by BM25, best first; both arrays have shape (k,)."""

    keys: Keys
    scores: Floats

    def joined_fields(self) -> Iterator[tuple[Any, ...]]:
        """Yield an empty tuple for each row; only a ``JoinedRanking`` has these fields."""
        return itertools.repeat((), len(self.keys))


class JoinedRanking(NamedTuple):
    """k rows ranked jointly by cosine and BM25, best first; all arrays have shape (k,)."""

    keys: Keys
    scores: Floats  #: cosines
    found_by: NDArray[np.str_]  #: see ``Hit``
    bm25: Floats
    cosine_ranks: NDArray[np.int64]  #: rank among the rows that vectors found, from 1; 0: not found
    bm25_ranks: NDArray[np.int64]  #: rank among the rows that words found, from 1; 0: not found

    def joined_fields(self) -> Iterator[tuple[Any, ...]]:
        """Yield ``found_by``, ``bm25``, ``cosine_rank`` and ``bm25_rank`` of each row's ``Hit``."""
        columns = [column.tolist() for column in self[2:]]
        for found_by, bm25, cosine_rank, bm25_rank in zip(*columns, strict=True):
            yield found_by, bm25, cosine_rank or None, bm25_rank or None


def take_rows(ranking: Ranking | JoinedRanking, indices: Sequence[int]) -> Ranking | JoinedRanking:
    """Return the rows at some indices of a ranking."""
    columns: Iterator[Any] = (column[indices] for column in ranking)
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
    vectors: Floats, units: Floats, k: int, allowed: Mask | None = None
) -> list[Ranking]:
    """Return the k nearest of n rows to each unit vector (q, d), best first; ties by row.

    Args:
        vectors: (n, d) of the rows.
        units: (q, d) the queries.
        k: Rows of each query.
        allowed: (n,) whether each row may be an answer; None: all.
    """
    no_rows = Ranking(np.empty(0, np.int64), np.empty(0, np.float32))
    rankings = [no_rows] * len(units)
    size = max(_MIN_ROWS_PER_BLOCK, _PRODUCTS_PER_BLOCK // max(len(units), 1))
    for start in range(0, len(vectors), size):
        block = vectors[start : start + size].astype(np.float32, copy=False)
        products = units @ block.T
        for query, unit in enumerate(units):
            keys, scores = rankings[query]
            lowest = scores[-1] if len(scores) == k else -np.inf
            near = np.flatnonzero(products[query] >= lowest - SCORE_TOLERANCE)
            if allowed is not None:
                near = near[allowed[start + near]]
            if len(near) > k:  # only possible answers get exact scores
                highest = products[query, near]
                kth_highest = np.partition(highest, -k)[-k]
                near = near[highest >= kth_highest - SCORE_TOLERANCE]
            keys = np.concatenate([keys, start + near])
            scores = np.concatenate([scores, exact_scores(block[near], unit)])
            rankings[query] = top_k(keys, scores, k)
    return rankings


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
    scores = np.zeros(len(keys))
    if len(keys) and cosines.max() > cosines.min():
        scaled = (cosines - cosines.min()) / (cosines.max() - cosines.min())
        scores = (1 - weight) * scaled
    if bm25.any():
        scores += weight * bm25 / bm25.max()
    order = np.lexsort((keys, -scores.astype(np.float32)))[:k]
    cosine_ranks, bm25_ranks = cosine_ranks[order], bm25_ranks[order]
    is_by_cosine = (0 < cosine_ranks) & (cosine_ranks <= len(order))
    is_by_words = (0 < bm25_ranks) & (bm25_ranks <= len(order))
    return JoinedRanking(
        keys[order],
        cosines[order].astype(np.float32),
        _FOUND_BY[is_by_cosine + 2 * is_by_words],
        bm25[order].astype(np.float32),
        cosine_ranks,
        bm25_ranks,
    )


def weight_of_words(cosines: Floats, match: Match) -> float:
    """Return the weight of words in a joined ranking, from 0 to ``COVERED_WEIGHT``.

    A row with all words of a query answers it; a row with some common words may not. In the second
    case, words count by their strength, and vectors prevail if the nearest rows are outliers:
    paraphrases share few words, and are far nearer than the other rows. We measure this by the gap
    from the nearest row to the last of the nearest tenth, as a share of its gap to the last row.

    Args:
        cosines: Cosines of the nearest rows, highest first.
        match: Match of the best row by words.
    """
    cosines = cosines[:JOIN_DEPTH]
    gap_share = 0.0
    if len(cosines) > 1 and cosines[0] != cosines[-1]:
        last_of_tenth = cosines[(len(cosines) - 1) // 10]
        gap_share = float((cosines[0] - last_of_tenth) / (cosines[0] - cosines[-1]))
    lost_weight = _LOST_WEIGHT * max(0.0, gap_share - _MAX_GAP_SHARE)
    partial = PARTIAL_WEIGHT * match.strength**2 - lost_weight
    return max(0.0, COVERED_WEIGHT * match.covered + (1 - match.covered) * partial)


def _fill_in(
    keys: Keys, ranking: Ranking, scores_of: Callable[[Keys], Floats]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the scores and ranks of rows; ``scores_of`` computes those outside the ranking."""
    ranks = np.zeros(len(keys), np.int64)
    indices = np.searchsorted(keys, ranking.keys)
    ranks[indices] = np.arange(1, 1 + len(indices))
    scores = np.empty(len(keys))
    scores[indices] = ranking.scores
    is_unranked = ranks == 0
    if is_unranked.any():
        scores[is_unranked] = scores_of(keys[is_unranked])
    return scores, ranks


def read_hits(store: Store, ranking: Ranking | JoinedRanking) -> list[Hit]:
    """Return the ranked rows as hits; call inside ``store.reading``."""
    rows = store.rows(ranking.keys)
    scores = ranking.scores.tolist()
    columns: Sequence[Any] = [None] * len(rows)
    if store.settings.types:
        columns = store.columns(ranking.keys)
    stale = stale_files(store, {row.source for row in rows if row.source})
    hits = []
    for index, joined_fields in enumerate(ranking.joined_fields()):
        row, score, cells = rows[index], scores[index], columns[index]
        hit = Hit(index + 1, row.displayed_id, row.text, score, cells, *joined_fields)
        if row.source is not None:
            hit = hit._replace(file=row.source, stale=stale.get(row.source))
        hits.append(hit)
    return hits


def stale_files(store: Store, names: Collection[str] | None = None) -> dict[str, str]:
    """Return the files of an index that have since ``changed`` or are ``gone``.

    Args:
        store: The index; call inside ``store.reading``.
        names: Files to check; None: all.
    """
    synced = store.settings.synced
    if not synced:
        return {}
    stale = {}
    for name, before in store.file_states(names).items():
        path = Path(synced["root"]) / split_columns(name)[0]
        try:
            state = path.stat()
        except OSError:
            stale[name] = "gone"
            continue
        if (state.st_size, state.st_mtime_ns) == (before.size, before.modified_ns):
            continue
        if state.st_size != before.size or sha256(path) != before.sha256:
            stale[name] = "changed"
    return stale
