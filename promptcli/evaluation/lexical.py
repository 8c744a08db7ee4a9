"""BM25 over texts: it finds the names and codes that vectors miss; and its joining with cosines."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import Floats
from promptcli.errors import CheckFailedError, one_line
from promptcli.evaluation.words import words

Numbers = NDArray[np.int64]
Ranking = tuple[Numbers, Floats]  #: rows and their scores, best first

#: Files of a stored index.
LEXICAL_FILES = {
    "data_name": "lexical-data.npy",
    "indices_name": "lexical-rows.npy",
    "indptr_name": "lexical-words.npy",
    "vocab_name": "lexical-words.json",
    "params_name": "lexical.json",
}
#: The version of the rule that parts texts into words: an index keeps it beside its BM25.
WORD_RULE = 2
#: The weight of words in a joined ranking, if no row has a word of the query, and what it gains if
#: one row has all of them; that of the cosine is the rest.
LEAST_WEIGHT, GAINED_WEIGHT = 0.2, 0.6
#: Rows of each ranking that are joined, at least.
DEPTH = 100
#: Of BM25: how soon a repeated word stops counting more, and how much long texts count less.
K1, B = 1.5, 0.75


class JoinedRanking(NamedTuple):
    """k rows that were ranked by cosine and by BM25 together, best first; all of shape (k,)."""

    rows: Numbers
    cosines: Floats
    bm25: Floats
    cosine_ranks: Numbers  #: among the rows that vectors found, from 1; 0: not one of them
    bm25_ranks: Numbers  #: among the rows that words found, from 1; 0: not one of them

    def take(self, places: Numbers) -> "JoinedRanking":
        """Return the rows at some places of the ranking."""
        return JoinedRanking(
            self.rows[places],
            self.cosines[places],
            self.bm25[places],
            self.cosine_ranks[places],
            self.bm25_ranks[places],
        )


class Lexical:
    """BM25 (Lucene's, with ``K1`` and ``B``) of m texts, by bm25s."""

    def __init__(self, model: Any, rows: Numbers) -> None:
        self._model = model
        self._rows = rows

    @classmethod
    def build(cls, texts: Sequence[str], rows: Numbers) -> "Lexical":
        """Count the words of texts, (m,), whose numbers are ``rows``, ascending."""
        import bm25s  # which takes 0.15 s

        # bm25s would number words in no certain order
        vocabulary: dict[str, int] = {}
        ids: list[list[int]] = []
        for text in texts:
            ids_of_text = []
            for word in words(text) or [""]:
                ids_of_text.append(vocabulary.setdefault(word, len(vocabulary)))
            ids.append(ids_of_text)
        model = bm25s.BM25(k1=K1, b=B)
        model.index((ids, vocabulary), show_progress=False)
        return cls(model, rows)

    def write(self, folder: Path) -> None:
        self._model.save(folder, show_progress=False, **LEXICAL_FILES)

    @classmethod
    def read(cls, folder: Path, rows: Numbers) -> "Lexical":
        """Open its files, memory-mapped."""
        import bm25s  # which takes 0.15 s

        try:
            model = bm25s.BM25.load(
                folder, mmap=True, show_progress=False, verbosity=0, **LEXICAL_FILES
            )
            if model.scores["num_docs"] != len(rows) or not isinstance(model.vocab_dict, dict):
                raise ValueError(f"they are not of {len(rows):,} rows")
        except Exception as error:  # whatever its files say
            raise _damage_error(error, str(folder)) from None
        return cls(model, rows)

    def rank(self, query: str, k: int, allowed: NDArray[np.bool_] | None) -> Ranking:
        """Return the k rows with the highest scores, above 0, best first; equal scores by row."""
        return self.best(self.scores(query), k, allowed)

    def scores(self, query: str) -> Floats:
        """Return the score of each of the m texts."""
        ids = self._model.vocab_dict
        known = [ids[word] for word in words(query, query=True) if word in ids]
        if not known:
            return np.zeros(len(self._rows), np.float32)
        try:
            scores: Floats = self._model.get_scores_from_ids(known)
        except (LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise _damage_error(error, "this index") from None
        return scores

    def coverage(self, query: str, row: int) -> float:
        """Return how much of the query's words a row has, see ``coverage``."""
        ids = self._model.vocab_dict
        starts = self._model.scores["indptr"]
        asked = dict.fromkeys(words(query, query=True))
        texts_with = np.zeros(len(asked))
        has = np.zeros(len(asked), bool)
        place = np.searchsorted(self._rows, row)
        for column, word in enumerate(asked):
            if word in ids:
                first, last = starts[ids[word] : ids[word] + 2]
                texts_with[column] = last - first
                has[column] = place in self._model.scores["indices"][first:last]
        return coverage(texts_with, has, len(self._rows))

    def best(self, scores: Floats, k: int, allowed: NDArray[np.bool_] | None) -> Ranking:
        """Return the rows of the k highest of the m scores; see ``rank``."""
        if allowed is not None:
            scores = np.where(allowed[self._rows], scores, 0)
        places = best_places(scores, k)
        return self._rows[places], scores[places]

    def scores_of(self, scores: Floats, rows: Numbers) -> Floats:
        """Return those of the m scores that belong to these rows."""
        chosen: Floats = scores[np.searchsorted(self._rows, rows)]
        return chosen


class QueryWords:
    """BM25 for one query of texts that are read once: only the query's words are counted.

    It needs no library, and no memory for the words of the texts.
    """

    def __init__(self, query: str) -> None:
        self._asked = words(query, query=True)
        self._columns = {word: place for place, word in enumerate(dict.fromkeys(self._asked))}
        self._texts_with = np.zeros(len(self._columns))
        self._texts = 0
        self._length = 0

    def count(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return how often each of the query's w words is in each of m texts, (m, w), and the
        number of words of each text, (m,).
        """
        counts = np.zeros((len(texts), len(self._columns)), np.int32)
        lengths = np.zeros(len(texts), np.int32)
        columns = self._columns
        for row, text in enumerate(texts):
            found = words(text)
            lengths[row] = len(found) or 1
            for word in columns.keys() & found:
                counts[row, columns[word]] = found.count(word)
        self._texts_with += (counts > 0).sum(axis=0)
        self._texts += len(texts)
        self._length += int(lengths.sum())
        return counts, lengths

    def scores(self, counts: NDArray[np.int32], lengths: NDArray[np.int32]) -> Floats:
        """Return BM25 of m texts, beside all texts that were counted."""
        times = np.array([self._asked.count(word) for word in self._columns])
        rarity = idf(self._texts_with, self._texts)
        norm = K1 * (1 - B + B * lengths * self._texts / max(self._length, 1))
        gains = counts / (counts + norm[:, None])
        scores: Floats = (gains @ (rarity * times)).astype(np.float32)
        return scores

    def coverage(self, counts: NDArray[np.int32]) -> float:
        """Return how much of the query's words a text with these counts, (w,), has."""
        return coverage(self._texts_with, counts > 0, self._texts)


def coverage(texts_with: NDArray[Any], has: NDArray[np.bool_], texts: int) -> float:
    """Return how much of a query's words a text has, from 0 to 1: the share of their ``idf``.

    Args:
        texts_with: For each of w words, the number of texts that have it.
        has: Whether the text has the word, (w,).
        texts: Number of all texts.
    """
    if not has.any():
        return 0.0
    rarity = idf(texts_with, texts)
    return float(rarity[has].sum() / rarity.sum())


def idf(texts_with: NDArray[Any], texts: int) -> NDArray[np.float64]:
    """Return the inverse document frequency of words as BM25 has it: how rare they are."""
    rarity: NDArray[np.float64] = np.log1p((texts - texts_with + 0.5) / (texts_with + 0.5))
    return rarity


def best_places(scores: Floats, k: int) -> Numbers:
    """Return the places of the k highest scores above 0, best first; equal scores by place."""
    places = np.flatnonzero(scores > 0)
    if len(places) > k:
        kth_highest = np.partition(scores[places], -k)[-k]
        places = places[scores[places] >= kth_highest]
    return places[np.lexsort((places, -scores[places]))][:k]


def _damage_error(error: Exception, name: str) -> CheckFailedError:
    reason = one_line(error, 100) or type(error).__name__
    return CheckFailedError(
        f"the words of {name} are damaged ({reason}): `promptcli index compact` counts them again"
    )


def join_rankings(
    by_vectors: Ranking,
    by_words: Ranking,
    k: int,
    covered: float,
    cosines_of: Callable[[Numbers], Floats],
    bm25_of: Callable[[Numbers], Floats],
) -> JoinedRanking:
    """Return the k best of the rows that vectors or words found, best first; equal ones by row.

    Each row has its cosine and its BM25, whichever found it. The lowest and highest cosine of
    these rows become 0 and 1, and BM25 is divided by the highest; the joined score is their
    weighted mean (a convex combination: Bruch et al., 2023, "An Analysis of Fusion Functions for
    Hybrid Retrieval"). Words have the weight ``LEAST_WEIGHT + GAINED_WEIGHT * covered``: a row
    with all words of a query answers it, one with the only common word may not. The scale of a
    model's cosines does not matter.

    Args:
        by_vectors: Rows and cosines, best first.
        by_words: Rows and BM25, best first.
        k: Most rows to return.
        covered: How much of the query's words the best row by BM25 has, see ``coverage``.
        cosines_of: Returns the cosines of rows that only words found.
        bm25_of: Returns BM25 of rows that only vectors found.
    """
    rows = np.union1d(by_vectors[0], by_words[0])
    cosines, cosine_ranks = _filled(rows, by_vectors, cosines_of)
    bm25, bm25_ranks = _filled(rows, by_words, bm25_of)
    weight = LEAST_WEIGHT + GAINED_WEIGHT * covered
    scores = (1 - weight) * _scaled(cosines)
    if bm25.any():
        scores += weight * bm25 / bm25.max()
    best = np.lexsort((rows, -scores.astype(np.float32)))[:k]
    return JoinedRanking(
        rows[best],
        cosines[best].astype(np.float32),
        bm25[best].astype(np.float32),
        cosine_ranks[best],
        bm25_ranks[best],
    )


def ways_of(answer: JoinedRanking) -> Iterator[tuple[str, float, int | None, int | None]]:
    """Yield for each row of an answer what found it, its BM25, and its ranks by cosine and by BM25.

    What found it is the one way that has it among its first k, for an answer of k rows: ``meaning``
    or ``words``; else ``both``.
    """
    k = len(answer.rows)
    columns = answer.bm25, answer.cosine_ranks, answer.bm25_ranks
    for bm25, *ranks in zip(*(column.tolist() for column in columns), strict=True):
        by_meaning, by_words = (0 < rank <= k for rank in ranks)
        found_by = "both"
        if by_meaning != by_words:
            found_by = "meaning" if by_meaning else "words"
        yield found_by, bm25, ranks[0] or None, ranks[1] or None


def _filled(
    rows: Numbers, ranking: Ranking, others: Callable[[Numbers], Floats]
) -> tuple[NDArray[np.float64], Numbers]:
    """Return the scores of rows, those that a ranking lacks by ``others``, and their ranks."""
    ranks = np.zeros(len(rows), np.int64)
    ranks[np.searchsorted(rows, ranking[0])] = np.arange(1, 1 + len(ranking[0]))
    scores = np.empty(len(rows))
    scores[np.searchsorted(rows, ranking[0])] = ranking[1]
    lacking = ranks == 0
    if lacking.any():
        scores[lacking] = others(rows[lacking])
    return scores, ranks


def _scaled(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return scores on a scale from 0, the lowest, to 1, the highest."""
    if not len(scores) or scores.max() == scores.min():
        return np.zeros(len(scores))
    low = scores.min()
    scaled: NDArray[np.float64] = (scores - low) / (scores.max() - low)
    return scaled
