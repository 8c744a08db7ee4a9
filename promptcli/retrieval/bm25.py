"""BM25 over texts, which finds names and codes that vectors miss.

The stem counts of indexed texts are stored in a file; newer texts are counted in memory. Scores
equal those of a single count over all rows.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array, vstack

from promptcli.data.vectors.precision import Floats
from promptcli.errors import CheckFailedError
from promptcli.models.language import main_language
from promptcli.retrieval.derived import Source, read_derived, write_derived
from promptcli.retrieval.ranking import (
    DEPTH,
    JoinedRanking,
    Match,
    Ranking,
    join_rankings,
    top_k,
)
from promptcli.retrieval.store import Keys
from promptcli.retrieval.words import stemmer_of, words, words_of_each

#: Version of the rules that split texts into words and reduce words to stems.
WORD_RULE = 5
#: Bonus for an exact word match, as a share of its idf; also granted if the whole query occurs
#: literally and contains signs, such as C++.
WRITTEN = 0.1
#: BM25's saturation of repeated words (k1), and its penalty on long texts (b).
K1, B = 1.5, 0.75

_ARRAYS = ("lengths", "stems", "starts", "places", "counts")  # of ``WordCounts``
#: Upper bound of the rounding error of float32 sums in any order.
_ROUNDING = 1e-4
_SIGNS = re.compile(r"\w[^\w\s]+\w|[^\w\s]\w|\w[#+*]")

#: Returns the texts of rows.
TextsOf = Callable[[Keys], Sequence[str]]


class _Stems(dict[str, int]):
    """Word -> the number of its stem; each word is stemmed once."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self._stem = stemmer_of(language)
        self.numbers: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        self[word] = self.numbers.setdefault(self._stem(word), len(self.numbers))
        return self[word]


@dataclass(frozen=True)
class WordCounts:
    """The counts of v stems in m texts, by stem (compressed sparse columns)."""

    lengths: NDArray[np.int32]  #: (m,) words of each text
    stems: NDArray[np.uint64]  #: (v,) hashes, ascending
    starts: NDArray[np.int64]  #: (v + 1,) the start of each stem's rows
    places: NDArray[np.int32]  #: rows with the stem, ascending
    counts: Floats  #: the stem's count in each row
    language: str  #: of the stems
    source: Source

    @classmethod
    def of_texts(
        cls, blocks: Iterable[Sequence[str]], language: str = "", source: Source | None = None
    ) -> "WordCounts":
        """Count the words of texts, given in blocks."""
        stems = None
        lengths, parts = [np.empty(0, np.int32)], []
        for texts in blocks:
            if stems is None:
                language = language or main_language(texts)
                stems = _Stems(language)
            found, rows = words_of_each(texts)
            numbers = np.fromiter(map(stems.__getitem__, found), np.int32, len(found))
            size = (len(texts), len(stems.numbers))
            parts.append(coo_array((np.ones(len(found), np.int32), (rows, numbers)), size).tocsr())
            lengths.append(np.bincount(rows, minlength=len(texts)).astype(np.int32))
        names = {} if stems is None else stems.numbers
        for part in parts:
            part.resize(part.shape[0], len(names))  # type: ignore[arg-type, call-arg]
        hashes = np.fromiter(map(_hash, names), np.uint64, len(names))
        order = np.argsort(hashes)
        counts = vstack(parts, format="csc")[:, order] if parts else csc_array((0, 0))
        counts.sort_indices()
        return cls(
            np.maximum(np.concatenate(lengths), 1),
            hashes[order],
            counts.indptr.astype(np.int64),
            counts.indices.astype(np.int32),
            counts.data.astype(np.float32),
            language,
            source or Source(),
        )

    def rows_with(self, stem: str) -> tuple[NDArray[np.int32], Floats]:
        """Return the places of the texts with a stem, and its count in each."""
        wanted = np.uint64(_hash(stem))
        place = self.stems.searchsorted(wanted)
        if place == len(self.stems) or self.stems[place] != wanted:
            return self.places[:0], self.counts[:0]
        rows = slice(self.starts[place], self.starts[place + 1])
        return self.places[rows], self.counts[rows]

    def write(self, path: Path) -> None:
        """Write a file."""
        about = {"language": self.language, "rule": WORD_RULE}
        arrays = {name: array for name, array in vars(self).items() if name in _ARRAYS}
        write_derived(path, self.source, about, arrays)

    @classmethod
    def read(cls, path: Path) -> "WordCounts":
        """Open a file, memory-mapped.

        Raises:
            CheckFailedError: It is damaged, or counts other words.
        """
        source, about, arrays = read_derived(path)
        if about["rule"] != WORD_RULE:
            raise CheckFailedError(f"{path} has another version")
        return cls(**arrays, language=about["language"], source=source)


def _hash(stem: str) -> int:
    """Return a 64-bit hash; no collision is expected among a million stems."""
    return int.from_bytes(blake2b(stem.encode("utf-8", "replace"), digest_size=8).digest(), "big")


class Bm25:
    """BM25 (Lucene's, with ``K1`` and ``B``) over rows.

    Args:
        parts: The word counts of the rows, part after part, in one language. A row's key is its
            place in them.
        texts_of: Returns the texts of rows.
        live_mask: (n,) whether each row counts; None: all.
    """

    def __init__(
        self, parts: Sequence[WordCounts], texts_of: TextsOf, live_mask: Any = None
    ) -> None:
        self._parts = [part for part in parts if len(part.lengths)]
        self.texts_of = texts_of
        self.stem = stemmer_of(parts[-1].language)
        lengths = np.concatenate([part.lengths for part in parts])
        self.live_mask = np.ones(len(lengths), bool) if live_mask is None else live_mask
        self.count = int(self.live_mask.sum())
        mean = lengths.sum(where=self.live_mask) / max(self.count, 1)
        self.norm = (K1 * (1 - B + B * lengths / max(mean, 1))).astype(np.float32)

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> "Bm25":
        """Count texts in memory; their keys are their numbers from 0."""
        counts = WordCounts.of_texts([texts])
        return cls([counts], lambda keys: [texts[key] for key in keys.tolist()])

    def ask(self, query: str) -> "WordScores":
        """Return the scores of rows for a query."""
        return WordScores(self, query)

    def rows_with(self, stem: str) -> tuple[NDArray[np.int32], Floats]:
        """Return the keys of the rows with a stem, ascending, and its count in each."""
        if len(self._parts) == 1:
            return self._parts[0].rows_with(stem)
        start, keys, counts = 0, [np.empty(0, np.int32)], [np.empty(0, np.float32)]
        for part in self._parts:
            places, of_part = part.rows_with(stem)
            keys.append(places + np.int32(start))
            counts.append(of_part)
            start += len(part.lengths)
        return np.concatenate(keys), np.concatenate(counts)


class Stem:
    """A stem of a query, and its contribution to the scores of rows: at most ``weight``."""

    def __init__(self, bm25: Bm25, name: str, times: int) -> None:
        self._norm = bm25.norm
        self._keys, self._counts = bm25.rows_with(name)
        #: number of rows with the stem
        self.count = len(self._keys)
        if bm25.count < len(bm25.live_mask):
            self.count = int(np.count_nonzero(bm25.live_mask[self._keys]))
        self.rarity = idf(self.count, bm25.count)
        self.weight = times * self.rarity

    def add(self, scores: Floats) -> None:
        """Add the contributions to the scores (n,) of all rows."""
        gains = self.weight * self._counts / (self._counts + self._norm.take(self._keys))
        np.add.at(scores, self._keys, gains)  # twice as fast as += by index

    def gains(self, keys: Keys) -> Floats:
        """Return what is added to the scores of rows."""
        times = self.times(keys)
        gains: Floats = self.weight * times / (times + self._norm.take(keys))
        return gains

    def times(self, keys: Keys) -> Floats:
        """Return how often each row has it."""
        if not len(self._keys):
            return np.zeros(len(keys), np.float32)
        wanted = keys.astype(np.int32)
        places = self._keys.searchsorted(wanted)
        has = self._keys.take(places, mode="clip") == wanted
        times: Floats = has * self._counts.take(places, mode="clip")
        return times


class WordScores:
    """The scores of rows for one query: BM25 of stems, plus ``WRITTEN`` for exact words."""

    def __init__(self, bm25: Bm25, query: str) -> None:
        self._bm25 = bm25
        written = words(query, query=True)
        times = Counter(map(bm25.stem, written))
        stems = {stem: Stem(bm25, stem, count) for stem, count in times.items()}
        self._stems = sorted(stems.values(), key=lambda stem: stem.count)  # the rarest first
        self._gains = {word: WRITTEN * stems[bm25.stem(word)].rarity for word in written}
        self._literal = query.strip().casefold() if _SIGNS.search(query) else None

    def rank(self, k: int, allowed: Keys | None = None) -> Ranking:
        """Return the rows of the k highest scores above 0, best first; ties by key.

        Exact words are looked for only in the best ``DEPTH`` rows by stems.
        """
        most = max(k, DEPTH)
        keys, _ = top_k(*self._highest(most, allowed), most)
        return top_k(keys, self.scores_of(keys), k)

    def join(
        self,
        by_vectors: Ranking,
        k: int,
        depth: int,
        cosines_of: Callable[[Keys], Floats],
        allowed: Keys | None = None,
    ) -> JoinedRanking:
        """Return the k best of the rows that vectors found and of the ``depth`` best by words; see
        ``join_rankings``.
        """
        by_words = self.rank(depth, allowed)
        match = self.match(by_words)
        return join_rankings(by_vectors, by_words, k, match, cosines_of, self.scores_of)

    def _highest(self, k: int, allowed: Keys | None) -> Ranking:
        """Return the keys and stem scores of the k best rows, and of a few others.

        Rare words decide the candidate rows; common words are looked up in these alone (MaxScore:
        Turtle and Flood, 1995, "Query Evaluation: Strategies and Optimizations").
        """
        counts = self._bm25.live_mask
        if allowed is not None:
            counts = np.zeros(len(counts), bool)
            counts[allowed] = True
        scores = np.zeros(len(counts), np.float32)
        most = sum(stem.weight for stem in self._stems)  # that the words left can add
        added = 0
        keys = None  # those that may be the best, once they are fewer than the rows with a word
        for stem in self._stems:
            if keys is None and k <= added < stem.count:
                found = np.flatnonzero((scores > 0) & counts)
                if _kth_highest(scores[found], k) > most:
                    keys = found  # a row without any word so far cannot be among the best
            if keys is None:
                stem.add(scores)
                added += stem.count
            else:
                keys = keys[scores[keys] >= _kth_highest(scores[keys], k) - most]
                scores[keys] += stem.gains(keys)
            most -= stem.weight
        if keys is None:
            keys = np.flatnonzero((scores > 0) & counts)
        keys = keys[scores[keys] >= _kth_highest(scores[keys], k)]
        return Ranking(keys, scores[keys])

    def scores_of(self, keys: Keys) -> Floats:
        """Return the scores of rows."""
        scores = np.array([self._gain(text) for text in self._bm25.texts_of(keys)], np.float32)
        for stem in self._stems:
            scores += stem.gains(keys)
        return scores

    def _gain(self, text: str) -> float:
        gain: float = sum(self._gains[word] for word in self._gains.keys() & words(text))
        if self._literal is not None and self._literal in text.casefold():
            gain += sum(self._gains.values())
        return gain

    def match(self, ranking: Ranking) -> Match:
        """Return how well the first row of a ranking answers the query."""
        keys, scores = ranking
        if not len(keys):
            return Match(0.0, 0.0)
        has = [stem.rarity for stem in self._stems if stem.times(keys[:1])[0]]
        covered = sum(has) / sum(stem.rarity for stem in self._stems) if has else 0.0
        return Match(covered, min(1.0, float(scores[0]) / idf(0, self._bm25.count)))


def _kth_highest(scores: Floats, k: int) -> float:
    """Return the k-th highest score, less a margin for rounding; 0 if there are fewer scores."""
    return float(np.partition(scores, -k)[-k]) * (1 - _ROUNDING) if len(scores) > k else 0.0


def idf(texts_with: int, texts: int) -> float:
    """Return BM25's inverse document frequency of a word."""
    return float(np.log1p((texts - texts_with + 0.5) / (texts_with + 0.5)))
