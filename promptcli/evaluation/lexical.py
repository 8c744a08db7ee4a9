"""BM25 over texts: it finds the names and codes that vectors miss; and its joining with cosines."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import Floats
from promptcli.errors import CheckFailedError, one_line
from promptcli.evaluation.words import stemmer_of, words, words_of_each
from promptcli.models.language_choice import main_language

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
#: The version of the rule that parts texts into words, and words into stems: an index keeps it
#: beside its BM25.
WORD_RULE = 3
#: What a row gains for a query's word that it has as it is written, and not only its stem, as a
#: share of the word's ``idf``.
WRITTEN = 0.1
#: The weight of words in a joined ranking if one row has all words of the query, and, if it has
#: none of them, at most; that of the cosine is the rest. See ``weight_of_words``.
COVERED_WEIGHT, PARTIAL_WEIGHT = 0.8, 0.5
#: What words lose if vectors have found rows that stand out further than this, see ``stand_out``.
STANDING_OUT, LOST_WEIGHT = 0.5, 3
#: Rows of each ranking that are joined, at least.
DEPTH = 100
#: Of BM25: how soon a repeated word stops counting more, and how much long texts count less.
K1, B = 1.5, 0.75

_TOGETHER = 1024  #: texts whose words are counted at once
_MOST_WORDS = 1 << 20  #: that are remembered while texts are read

#: Returns the texts of rows.
TextsOf = Callable[[Numbers], Sequence[str]]


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


class Match(NamedTuple):
    """How well the best row by words answers a query."""

    covered: float  #: how much of the query's words it has, see ``coverage``
    strength: float  #: its score beside the highest ``idf``, at most 1

    @classmethod
    def of(
        cls, score: float, has: NDArray[np.bool_], rarity: NDArray[np.float64], texts: int
    ) -> "Match":
        """Return that of a row with a score and some of the query's words.

        Args:
            score: Of the row, by words.
            has: Whether the row has each of w words, (w,).
            rarity: The ``idf`` of the words, (w,).
            texts: Number of all texts.
        """
        [highest] = idf(np.zeros(1), texts)
        return cls(coverage(rarity, has), min(1.0, score / highest))


#: The match of a query for which words find no row.
NO_MATCH = Match(0.0, 0.0)


class Lexical:
    """BM25 (Lucene's, with ``K1`` and ``B``) of the stems of m texts, by bm25s."""

    def __init__(self, model: Any, rows: Numbers, language: str, texts_of: TextsOf) -> None:
        self.language = language  #: in which words have their stems, see ``stemmer_of``
        self.rows = rows
        self.ids: dict[str, int] = model.vocab_dict  #: stem -> its number
        self._model = model
        self.texts_of = texts_of

    @classmethod
    def build(
        cls, texts: Sequence[str], rows: Numbers, texts_of: TextsOf | None = None
    ) -> "Lexical":
        """Count the words of texts, (m,), whose numbers are ``rows``, ascending.

        ``texts_of`` finds them later; None: they stay in memory.
        """
        import bm25s  # which takes 0.15 s

        language = main_language(texts)
        stem = stemmer_of(language)
        # bm25s would number words in no certain order
        vocabulary: dict[str, int] = {}
        ids: list[list[int]] = []
        for text in texts:
            ids_of_text = []
            for word in words(text) or [""]:
                ids_of_text.append(vocabulary.setdefault(word and stem(word), len(vocabulary)))
            ids.append(ids_of_text)
        model = bm25s.BM25(k1=K1, b=B)
        model.index((ids, vocabulary), show_progress=False)

        def in_memory(chosen: Numbers) -> Sequence[str]:
            return [texts[place] for place in np.searchsorted(rows, chosen).tolist()]

        return cls(model, rows, language, texts_of or in_memory)

    def write(self, folder: Path) -> None:
        self._model.save(folder, show_progress=False, **LEXICAL_FILES)

    @classmethod
    def read(cls, folder: Path, rows: Numbers, language: str, texts_of: TextsOf) -> "Lexical":
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
        return cls(model, rows, language, texts_of)

    def rank(self, query: str, k: int, allowed: NDArray[np.bool_] | None) -> Ranking:
        """Return the k rows with the highest scores, above 0, best first; equal scores by row."""
        return self.ask(query).rank(k, allowed)

    def ask(self, query: str) -> "WordScores":
        """Return the scores of all rows for a query."""
        return WordScores(self, query)

    def scores(self, stems: Sequence[str]) -> Floats:
        """Return BM25 of each of the m texts for the stems of a query."""
        known = [self.ids[stem] for stem in stems if stem in self.ids]
        if not known:
            return np.zeros(len(self.rows), np.float32)
        try:
            scores: Floats = self._model.get_scores_from_ids(known)
        except (LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise _damage_error(error, "this index") from None
        return scores

    def places_with(self, stem: str) -> Numbers:
        """Return which of the m texts have a stem."""
        if stem not in self.ids:
            return np.empty(0, np.int64)
        first, last = self._model.scores["indptr"][self.ids[stem] : self.ids[stem] + 2]
        places: Numbers = self._model.scores["indices"][first:last]
        return places


class WordScores:
    """The scores of an index's rows for one query: BM25 of stems, and ``WRITTEN`` for words."""

    def __init__(self, lexical: Lexical, query: str) -> None:
        self._lexical = lexical
        asked = AskedWords(query, lexical.language)
        self._scores = lexical.scores(asked.stems)
        self._places = [lexical.places_with(stem) for stem in asked.columns]
        self._rarity = idf(np.array([len(places) for places in self._places]), len(lexical.rows))
        self._asked = asked

    def rank(self, k: int, allowed: NDArray[np.bool_] | None = None) -> Ranking:
        """Return the rows of the k highest scores above 0, best first; equal ones by row.

        As they are written, words are looked for in the best ``DEPTH`` rows by stems.
        """
        scores = self._scores
        if allowed is not None:
            scores = np.where(allowed[self._lexical.rows], scores, 0)
        rows = self._lexical.rows[best_places(scores, max(k, DEPTH))]
        scores_of_rows = self.scores_of(rows)
        order = np.lexsort((rows, -scores_of_rows))[:k]
        return rows[order], scores_of_rows[order]

    def scores_of(self, rows: Numbers) -> Floats:
        """Return the scores of rows."""
        chosen: Floats = self._scores[np.searchsorted(self._lexical.rows, rows)]
        return chosen + self._asked.gains(self._lexical.texts_of(rows), self._rarity)

    def match(self, ranking: Ranking) -> Match:
        """Return how well the first row of a ranking answers the query."""
        rows, scores = ranking
        if not len(rows):
            return NO_MATCH
        place = np.searchsorted(self._lexical.rows, rows[0])
        has = np.array([place in places for places in self._places], bool)
        return Match.of(float(scores[0]), has, self._rarity, len(self._lexical.rows))


class AskedWords:
    """The words of a query, and their stems."""

    def __init__(self, query: str, language: str) -> None:
        written = words(query, query=True)
        self.stem = stemmer_of(language)
        self.stems = [self.stem(word) for word in written]
        #: stem -> its place among the query's w stems
        self.columns = {stem: place for place, stem in enumerate(dict.fromkeys(self.stems))}
        self._written = dict(zip(written, self.stems, strict=True))

    def gains(self, texts: Sequence[str], rarity: NDArray[np.float64]) -> Floats:
        """Return the gain of each of m texts for words in exactly the query's form, (m,).

        ``rarity`` is the ``idf`` of each stem, (w,).
        """
        weights = {
            word: WRITTEN * rarity[self.columns[stem]] for word, stem in self._written.items()
        }
        gains = np.zeros(len(texts), np.float32)
        for row, text in enumerate(texts):
            gains[row] = sum(weights[word] for word in weights.keys() & words(text))
        return gains


class _ColumnOfWord(dict[str, int]):
    """A word -> the place of its stem among a query's, or -1; each word's stem is looked for once.

    Most words of texts have no stem of the query, so a dictionary is what this costs.
    """

    def __init__(self, asked: AskedWords) -> None:
        super().__init__()
        self._asked = asked

    def __missing__(self, word: str) -> int:
        if len(self) > _MOST_WORDS:
            self.clear()
        self[word] = column = self._asked.columns.get(self._asked.stem(word), -1)
        return column


class QueryWords:
    """BM25 for one query of texts that are read once: only the query's words are counted.

    It needs no memory for the words of the texts.
    """

    def __init__(self, query: str, language: str) -> None:
        self._asked = AskedWords(query, language)
        self._column_of = _ColumnOfWord(self._asked)
        self._texts_with = np.zeros(len(self._asked.columns))
        self._texts = 0
        self._length = 0

    def count(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return how often each of the query's w stems is in each of m texts, (m, w), and the
        number of words of each text, (m,).
        """
        counts = np.zeros((len(texts), len(self._asked.columns)), np.int32)
        lengths = np.zeros(len(texts), np.int32)
        for start in range(0, len(texts), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            counts[part], lengths[part] = self._count_some(texts[part])
        self._texts_with += (counts > 0).sum(axis=0)
        self._texts += len(texts)
        self._length += int(lengths.sum())
        return counts, lengths

    def _count_some(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        words, rows = words_of_each(texts)
        lengths = np.bincount(rows, minlength=len(texts)).astype(np.int32)
        columns = np.fromiter(map(self._column_of.__getitem__, words), np.int64, len(words))
        is_asked = columns >= 0
        counts = np.zeros((len(texts), len(self._asked.columns)), np.int32)
        np.add.at(counts, (rows[is_asked], columns[is_asked]), 1)
        return counts, np.maximum(lengths, 1)

    def scores(self, counts: NDArray[np.int32], lengths: NDArray[np.int32]) -> Floats:
        """Return BM25 of m texts, beside all texts that were counted."""
        stems = self._asked.stems
        times = np.array([stems.count(stem) for stem in self._asked.columns])
        norm = K1 * (1 - B + B * lengths * self._texts / max(self._length, 1))
        shares = counts / (counts + norm[:, None])
        scores: Floats = (shares @ (self._rarity * times)).astype(np.float32)
        return scores

    def gains(self, texts: Sequence[str]) -> Floats:
        """Return the gains of m texts for words in exactly the query's form."""
        return self._asked.gains(texts, self._rarity)

    def match(self, counts: NDArray[np.int32], score: float) -> Match:
        """Return how well a text with these counts, (w,), and this score answers the query."""
        return Match.of(score, counts > 0, self._rarity, self._texts)

    @property
    def _rarity(self) -> NDArray[np.float64]:
        return idf(self._texts_with, self._texts)


def coverage(rarity: NDArray[np.float64], has: NDArray[np.bool_]) -> float:
    """Return how much of a query's words a text has, from 0 to 1: the share of their rarity.

    Args:
        rarity: The ``idf`` of each of w words.
        has: Whether the text has the word, (w,).
    """
    if not has.any():
        return 0.0
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
    match: Match,
    cosines_of: Callable[[Numbers], Floats],
    bm25_of: Callable[[Numbers], Floats],
) -> JoinedRanking:
    """Return the k best of the rows that vectors or words found, best first; equal ones by row.

    Each row has its cosine and its BM25, whichever found it. The lowest and highest cosine of
    these rows become 0 and 1, and BM25 is divided by the highest; the joined score is their
    weighted mean (a convex combination: Bruch et al., 2023, "An Analysis of Fusion Functions for
    Hybrid Retrieval"); see ``weight_of_words``. The scale of a model's cosines does not matter.

    Args:
        by_vectors: Rows and cosines, best first.
        by_words: Rows and BM25, best first.
        k: Most rows to return.
        match: Of the best row by BM25.
        cosines_of: Returns the cosines of rows that only words found.
        bm25_of: Returns BM25 of rows that only vectors found.
    """
    rows = np.union1d(by_vectors[0], by_words[0])
    cosines, cosine_ranks = _filled(rows, by_vectors, cosines_of)
    bm25, bm25_ranks = _filled(rows, by_words, bm25_of)
    weight = weight_of_words(by_vectors[1], match)
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


def weight_of_words(cosines: Floats, match: Match) -> float:
    """Return how much words count beside vectors, from 0 to ``COVERED_WEIGHT``.

    A row with all words of a query answers it, one with some common words may not. Then words count
    by their strength, and vectors are trusted if the rows that they found stand out: paraphrases
    share few words, and are far nearer than the other rows.

    Args:
        cosines: Those of the nearest rows, highest first.
        match: Of the best row by words.
    """
    doubt = LOST_WEIGHT * max(0.0, stand_out(cosines[:DEPTH]) - STANDING_OUT)
    partial = PARTIAL_WEIGHT * match.strength**2 - doubt
    return max(0.0, COVERED_WEIGHT * match.covered + (1 - match.covered) * partial)


def stand_out(cosines: Floats) -> float:
    """Return how far the nearest row is from the nearest tenth's last one, as a part of the way to
    the last of all.
    """
    if len(cosines) < 2 or cosines[0] == cosines[-1]:
        return 0.0
    return float((cosines[0] - cosines[(len(cosines) - 1) // 10]) / (cosines[0] - cosines[-1]))


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
