"""BM25 over texts: it finds the names and codes that vectors miss.

The counts of stems are kept in a file; the texts of rows that are newer are counted in memory.
Scores are those of all rows together, as if they had been counted at once.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array, vstack

from promptcli.data.vectors.formats import Floats
from promptcli.errors import CheckFailedError
from promptcli.models.language import main_language
from promptcli.retrieval.derived import read_derived, write_derived
from promptcli.retrieval.ranking import DEPTH, Match, Ranking, best
from promptcli.retrieval.store import Keys
from promptcli.retrieval.words import stemmer_of, words, words_of_each

#: The version of the rule that parts texts into words, and words into stems.
WORD_RULE = 5
#: What a row gains for a query's word that it has as it is written, and not only its stem, as a
#: share of the word's ``idf``; and for the whole query, if it has signs: C++.
WRITTEN = 0.1
#: How soon a repeated word stops counting more, and how much long texts count less.
K1, B = 1.5, 0.75

_SIGNS = re.compile(r"\w[^\w\s]+\w|[^\w\s]\w|\w[#+*]")

#: Returns the texts of rows.
TextsOf = Callable[[Keys], Sequence[str]]


class _Stems(dict[str, int]):
    """A word -> the number of its stem; each word's stem is looked for once."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self._stem = stemmer_of(language)
        self.numbers: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        self[word] = self.numbers.setdefault(self._stem(word), len(self.numbers))
        return self[word]


@dataclass(frozen=True)
class WordCounts:
    """How often each of v stems is in each of m texts, by stem (compressed sparse columns)."""

    keys: Keys  #: (m,) of the rows, ascending
    lengths: NDArray[np.int32]  #: (m,) words of each text
    stems: NDArray[np.uint64]  #: (v,) hashes, ascending
    starts: NDArray[np.int64]  #: (v + 1,) where the rows of each stem begin
    places: NDArray[np.int32]  #: rows with the stem, ascending
    counts: Floats  #: of the stem in each
    about: dict[str, Any]  #: the language of the stems, and what the counts were made of

    @classmethod
    def of_texts(
        cls, blocks: Iterable[tuple[Any, Sequence[str]]], language: str = "", **about: Any
    ) -> "WordCounts":
        """Count the words of texts, given in blocks of keys and texts."""
        stems = None
        keys, lengths, parts = [np.empty(0, np.int64)], [np.empty(0, np.int32)], []
        for block_keys, texts in blocks:
            if stems is None:
                language = language or main_language(texts)
                stems = _Stems(language)
            found, rows = words_of_each(texts)
            numbers = np.fromiter(map(stems.__getitem__, found), np.int32, len(found))
            size = (len(texts), len(stems.numbers))
            parts.append(coo_array((np.ones(len(found), np.int32), (rows, numbers)), size).tocsr())
            keys.append(np.array(block_keys, np.int64))
            lengths.append(np.bincount(rows, minlength=len(texts)).astype(np.int32))
        names = {} if stems is None else stems.numbers
        for part in parts:
            part.resize(part.shape[0], len(names))  # type: ignore[arg-type, call-arg]
        hashes = np.fromiter(map(_hash, names), np.uint64, len(names))
        order = np.argsort(hashes)
        counts = vstack(parts, format="csc")[:, order] if parts else csc_array((0, 0))
        counts.sort_indices()
        return cls(
            np.concatenate(keys),
            np.maximum(np.concatenate(lengths), 1),
            hashes[order],
            counts.indptr.astype(np.int64),
            counts.indices.astype(np.int32),
            counts.data.astype(np.float32),
            {"language": language, "rule": WORD_RULE, **about},
        )

    def rows_with(self, stem: str) -> tuple[NDArray[np.int32], Floats]:
        """Return the places of the texts with a stem, and how often each has it."""
        wanted = np.uint64(_hash(stem))
        place = np.searchsorted(self.stems, wanted)
        if place == len(self.stems) or self.stems[place] != wanted:
            return self.places[:0], self.counts[:0]
        rows = slice(self.starts[place], self.starts[place + 1])
        return self.places[rows], self.counts[rows]

    def write(self, path: Path) -> "WordCounts":
        """Write a file, and return it as it is read again."""
        names = [each.name for each in fields(self) if each.name != "about"]
        write_derived(path, self.about, {name: getattr(self, name) for name in names})
        return self.read(path)

    @classmethod
    def read(cls, path: Path) -> "WordCounts":
        """Open a file, memory-mapped.

        Raises:
            CheckFailedError: It is damaged, or counts other words.
        """
        about, arrays = read_derived(path)
        if about["rule"] != WORD_RULE:
            raise CheckFailedError(f"{path} is of another version")
        return cls(**arrays, about=about)


def _hash(stem: str) -> int:
    """Return 64 bits: among a million stems no two are expected to have the same."""
    return int.from_bytes(blake2b(stem.encode("utf-8", "replace"), digest_size=8).digest(), "big")


class Bm25:
    """BM25 (Lucene's, with ``K1`` and ``B``) of rows.

    Args:
        parts: The counts of their words, by keys; of one language.
        texts_of: Returns the texts of rows.
        gone: Keys of rows that do not count.
    """

    def __init__(
        self, parts: Sequence[WordCounts], texts_of: TextsOf, gone: Sequence[int] = ()
    ) -> None:
        self._parts = parts
        self.texts_of = texts_of
        self.stem = stemmer_of(parts[0].about["language"])
        self.keys = np.concatenate([part.keys for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        self._is_live = ~np.isin(self.keys, gone)
        self.count = int(self._is_live.sum())
        mean = lengths.sum(where=self._is_live) / max(self.count, 1)
        self.norm = (K1 * (1 - B + B * lengths / max(mean, 1))).astype(np.float32)

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> "Bm25":
        """Count texts in memory; their keys are their numbers from 0."""
        counts = WordCounts.of_texts([(range(len(texts)), texts)])
        return cls([counts], lambda keys: [texts[key] for key in keys.tolist()])

    def ask(self, query: str) -> "WordScores":
        """Return the scores of all rows for a query."""
        return WordScores(self, query)

    def rows_with(self, stem: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the places of the live rows with a stem, ascending, and how often each has it."""
        start = 0
        found = []
        for part in self._parts:
            places, counts = part.rows_with(stem)
            found.append((places + start, counts))
            start += len(part.keys)
        places, counts = map(np.concatenate, zip(*found, strict=True))
        if self.count == len(self.keys):
            return places, counts
        live = self._is_live[places]
        return places[live], counts[live]


class WordScores:
    """The scores of rows for one query: BM25 of stems, and ``WRITTEN`` for words as written."""

    def __init__(self, bm25: Bm25, query: str) -> None:
        self._bm25 = bm25
        written = words(query, query=True)
        self._scores = np.zeros(len(bm25.keys), np.float32)
        self._places: dict[str, NDArray[Any]] = {}
        self._rarity: dict[str, float] = {}
        for stem, times in Counter(map(bm25.stem, written)).items():
            places, counts = bm25.rows_with(stem)
            self._places[stem], self._rarity[stem] = places, idf(len(places), bm25.count)
            weight = np.float32(times * self._rarity[stem])
            gains = weight * counts / (counts + bm25.norm.take(places))
            np.add.at(self._scores, places, gains)  # twice as fast as += by index
        self._gains = {word: WRITTEN * self._rarity[bm25.stem(word)] for word in written}
        self._literal = query.strip().casefold() if _SIGNS.search(query) else None

    def rank(self, k: int, allowed: Keys | None = None) -> Ranking:
        """Return the rows of the k highest scores above 0, best first; equal ones by key.

        As they are written, words are looked for in the best ``DEPTH`` rows by stems.
        """
        scores = self._scores
        if allowed is not None:
            scores = np.where(np.isin(self._bm25.keys, allowed), scores, 0)
        places = np.flatnonzero(scores > 0)
        most = max(k, DEPTH)
        found = scores[places]
        if len(places) > most:
            enough = found >= np.partition(found, -most)[-most]
            places, found = places[enough], found[enough]
        keys, _ = best(self._bm25.keys[places], found, most)
        return best(keys, self.scores_of(keys), k)

    def scores_of(self, keys: Keys) -> Floats:
        """Return the scores of rows."""
        scores: Floats = self._scores[np.searchsorted(self._bm25.keys, keys)]
        return scores + np.array(
            [self._gain(text) for text in self._bm25.texts_of(keys)], np.float32
        )

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
        place = np.searchsorted(self._bm25.keys, keys[0])
        has = [self._rarity[stem] for stem, places in self._places.items() if place in places]
        covered = sum(has) / sum(self._rarity.values()) if has else 0.0
        return Match(covered, min(1.0, float(scores[0]) / idf(0, self._bm25.count)))


def idf(texts_with: int, texts: int) -> float:
    """Return the inverse document frequency of a word as BM25 has it: how rare it is."""
    return float(np.log1p((texts - texts_with + 0.5) / (texts_with + 0.5)))
