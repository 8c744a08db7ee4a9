"""BM25 over texts, which finds names and codes that vectors miss.

The stem counts of indexed texts are stored in a file; newer texts are counted in memory. The scores
are the same as if all rows were counted at once.
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
from promptcli.retrieval.array_files import Source, read_derived, write_derived
from promptcli.retrieval.ranking import (
    JOIN_DEPTH,
    JoinedRanking,
    Match,
    Ranking,
    join_rankings,
    top_k,
)
from promptcli.retrieval.store import Keys
from promptcli.retrieval.words import stemmer_of, words, words_of_each

#: Version of the rules by which texts are split into words and words are stemmed.
WORD_RULE = 5
#: Bonus for a word of the query that a text has in the same form, as a share of the word's idf. A
#: query with signs, such as C++, also gives a text that contains it all its words' bonuses.
EXACT_WORD_BONUS = 0.1
#: BM25's saturation of repeated words (k1), and its penalty on long texts (b).
K1, B = 1.5, 0.75

#: Upper bound of the relative rounding error of a float32 sum, in any order.
_SUM_ROUNDING = 1e-4
_SIGNS = re.compile(r"\w[^\w\s]+\w|[^\w\s]\w|\w[#+*]")

#: Returns the texts of rows.
TextsOf = Callable[[Keys], Sequence[str]]


class _Stems(dict[str, int]):
    """Maps a word to the number of its stem; each word is stemmed once."""

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
    language: str  #: language of the stems
    source: Source

    @classmethod
    def of_texts(
        cls, blocks: Iterable[Sequence[str]], language: str = "", source: Source | None = None
    ) -> "WordCounts":
        """Count the words of texts, given in blocks."""
        stems = None
        lengths = [np.empty(0, np.int32)]
        matrices = []
        for texts in blocks:
            if stems is None:
                language = language or main_language(texts)
                stems = _Stems(language)
            block_words, rows = words_of_each(texts)
            columns = np.fromiter(map(stems.__getitem__, block_words), np.int32, len(block_words))
            shape = (len(texts), len(stems.numbers))
            ones = np.ones(len(columns), np.int32)
            matrices.append(coo_array((ones, (rows, columns)), shape).tocsr())
            lengths.append(np.bincount(rows, minlength=len(texts)).astype(np.int32))
        stem_numbers = {} if stems is None else stems.numbers
        for matrix in matrices:  # later blocks have further stems
            matrix.resize(matrix.shape[0], len(stem_numbers))  # type: ignore[arg-type, call-arg]
        hashes = np.fromiter(map(_hash, stem_numbers), np.uint64, len(stem_numbers))
        order = np.argsort(hashes)
        counts = vstack(matrices, format="csc")[:, order] if matrices else csc_array((0, 0))
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
        stem_hash = np.uint64(_hash(stem))
        index = self.stems.searchsorted(stem_hash)
        if index == len(self.stems) or self.stems[index] != stem_hash:
            return self.places[:0], self.counts[:0]
        postings = slice(self.starts[index], self.starts[index + 1])
        return self.places[postings], self.counts[postings]

    def write(self, path: Path) -> None:
        """Write a file."""
        description = {"language": self.language, "rule": WORD_RULE}
        names = ("lengths", "stems", "starts", "places", "counts")
        arrays = {name: getattr(self, name) for name in names}
        write_derived(path, self.source, description, arrays)

    @classmethod
    def read(cls, path: Path) -> "WordCounts":
        """Open a file, memory-mapped.

        Raises:
            CheckFailedError: The file is damaged, or another version's.
        """
        source, description, arrays = read_derived(path)
        if description["rule"] != WORD_RULE:
            raise CheckFailedError(f"{path} has another version")
        return cls(**arrays, language=description["language"], source=source)


def _hash(stem: str) -> int:
    """Return a 64-bit hash; no collision is expected among a million stems."""
    return int.from_bytes(blake2b(stem.encode("utf-8", "replace"), digest_size=8).digest(), "big")


class Bm25:
    """BM25 (Lucene's, with ``K1`` and ``B``) over rows.

    Args:
        blocks: The word counts of the rows, in order and in one language. The keys of the rows
            number them from 0.
        texts_of: Returns the texts of rows.
        live_mask: (n,) whether each row counts; None: all.
    """

    def __init__(
        self, blocks: Sequence[WordCounts], texts_of: TextsOf, live_mask: Any = None
    ) -> None:
        self._blocks = [block for block in blocks if len(block.lengths)]
        self.texts_of = texts_of
        self.stem = stemmer_of(blocks[-1].language)
        lengths = np.concatenate([block.lengths for block in blocks])
        self.live_mask = np.ones(len(lengths), bool) if live_mask is None else live_mask
        self.count = int(self.live_mask.sum())  #: number of live rows
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
        if len(self._blocks) == 1:
            return self._blocks[0].rows_with(stem)
        first = 0
        all_keys = [np.empty(0, np.int32)]
        all_counts = [np.empty(0, np.float32)]
        for block in self._blocks:
            places, counts = block.rows_with(stem)
            all_keys.append(places + np.int32(first))
            all_counts.append(counts)
            first += len(block.lengths)
        return np.concatenate(all_keys), np.concatenate(all_counts)


class Stem:
    """A stem of a query, and its contribution to the scores of rows: at most ``weight``.

    Args:
        bm25: BM25 of the rows.
        name: The stem.
        count: Number of times that the query has it.
    """

    def __init__(self, bm25: Bm25, name: str, count: int) -> None:
        self._norm = bm25.norm
        self._keys, self._counts = bm25.rows_with(name)
        self.rows = len(self._keys)  #: number of rows with the stem
        if bm25.count < len(bm25.live_mask):
            self.rows = int(np.count_nonzero(bm25.live_mask[self._keys]))
        self.idf = idf(self.rows, bm25.count)
        self.weight = count * self.idf

    def add_to(self, scores: Floats) -> None:
        """Add the contributions to the scores (n,) of all rows."""
        gains = self.weight * self._counts / (self._counts + self._norm.take(self._keys))
        np.add.at(scores, self._keys, gains)  # twice as fast as += by index

    def gains(self, keys: Keys) -> Floats:
        """Return the contributions to the scores of rows."""
        counts = self.counts(keys)
        gains: Floats = self.weight * counts / (counts + self._norm.take(keys))
        return gains

    def counts(self, keys: Keys) -> Floats:
        """Return how often each row has the stem."""
        if not len(self._keys):
            return np.zeros(len(keys), np.float32)
        keys = keys.astype(np.int32)
        indices = self._keys.searchsorted(keys)
        has_stem = self._keys.take(indices, mode="clip") == keys
        counts: Floats = has_stem * self._counts.take(indices, mode="clip")
        return counts


class WordScores:
    """The scores of rows for one query: BM25 of stems, plus the bonuses of exact words."""

    def __init__(self, bm25: Bm25, query: str) -> None:
        self._bm25 = bm25
        query_words = words(query, query=True)
        counts = Counter(map(bm25.stem, query_words))
        stems = {name: Stem(bm25, name, count) for name, count in counts.items()}
        self._stems = sorted(stems.values(), key=lambda stem: stem.rows)  # the rarest first
        self._bonuses = {
            word: EXACT_WORD_BONUS * stems[bm25.stem(word)].idf for word in query_words
        }
        self._literal = query.strip().casefold() if _SIGNS.search(query) else None

    def rank(self, k: int, allowed: Keys | None = None) -> Ranking:
        """Return the rows of the k highest scores above 0, best first; ties by key.

        Exact words are looked up only in the best ``JOIN_DEPTH`` rows by stems.
        """
        keys = self._best_by_stems(max(k, JOIN_DEPTH), allowed)
        return top_k(keys, self.scores_of(keys), k)

    def join(
        self,
        by_vectors: Ranking,
        k: int,
        depth: int,
        cosines_of: Callable[[Keys], Floats],
        allowed: Keys | None = None,
    ) -> JoinedRanking:
        """Return the k best of the rows that vectors found and of the ``depth`` best rows by words;
        see ``join_rankings``.
        """
        by_words = self.rank(depth, allowed)
        match = self.match(by_words)
        return join_rankings(by_vectors, by_words, k, match, cosines_of, self.scores_of)

    def _best_by_stems(self, k: int, allowed: Keys | None) -> Keys:
        """Return the keys of the k best rows by stems.

        Rare words decide the candidate rows; common words are looked up only in these (MaxScore:
        Turtle and Flood, 1995, "Query Evaluation: Strategies and Optimizations").
        """
        mask = self._bm25.live_mask
        if allowed is not None:
            mask = np.zeros(len(mask), bool)
            mask[allowed] = True
        scores = np.zeros(len(mask), np.float32)
        max_gain = sum(stem.weight for stem in self._stems)  # of the stems that are not yet added
        added_rows = 0
        keys = None  # the candidates, once they are fewer than the rows with the next stem
        for stem in self._stems:
            if keys is None and k <= added_rows < stem.rows:
                scored_keys = np.flatnonzero((scores > 0) & mask)
                if _kth_highest(scores[scored_keys], k) > max_gain:
                    keys = scored_keys  # a row without any stem so far cannot be among the best
            if keys is None:
                stem.add_to(scores)
                added_rows += stem.rows
            else:
                keys = keys[scores[keys] >= _kth_highest(scores[keys], k) - max_gain]
                scores[keys] += stem.gains(keys)
            max_gain -= stem.weight
        if keys is None:
            keys = np.flatnonzero((scores > 0) & mask)
        keys = keys[scores[keys] >= _kth_highest(scores[keys], k)]
        return top_k(keys, scores[keys], k).keys

    def scores_of(self, keys: Keys) -> Floats:
        """Return the scores of rows."""
        scores = np.zeros(len(keys), np.float32)
        for index, text in enumerate(self._bm25.texts_of(keys)):
            exact_words = self._bonuses.keys() & words(text)
            bonus: float = sum(self._bonuses[word] for word in exact_words)
            if self._literal is not None and self._literal in text.casefold():
                bonus += sum(self._bonuses.values())
            scores[index] = bonus
        for stem in self._stems:
            scores += stem.gains(keys)
        return scores

    def match(self, ranking: Ranking) -> Match:
        """Return how well the first row of a ranking answers the query."""
        keys, scores = ranking
        if not len(keys):
            return Match(0.0, 0.0)
        covered_idf = sum(stem.idf for stem in self._stems if stem.counts(keys[:1])[0])
        covered = covered_idf / sum(stem.idf for stem in self._stems)
        return Match(covered, min(1.0, float(scores[0]) / idf(0, self._bm25.count)))


def _kth_highest(scores: Floats, k: int) -> float:
    """Return the k-th highest score, minus a margin for rounding; 0 for at most k scores."""
    if len(scores) <= k:
        return 0.0
    return float(np.partition(scores, -k)[-k]) * (1 - _SUM_ROUNDING)


def idf(texts_with_word: int, texts: int) -> float:
    """Return BM25's inverse document frequency of a word."""
    return float(np.log1p((texts - texts_with_word + 0.5) / (texts_with_word + 0.5)))
