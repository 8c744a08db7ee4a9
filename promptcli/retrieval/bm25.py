"""BM25 over texts: it finds the names and codes that vectors miss.

The counts of stems are kept in a file; the texts of rows that are newer are counted for each query.
Scores are those of all rows together, as if they had been counted at once.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array, vstack

from promptcli.data.vectors.formats import Floats
from promptcli.models.language_choice import main_language
from promptcli.retrieval.derived import WORDS, read_derived, write_derived
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
        number = self.numbers.setdefault(self._stem(word), len(self.numbers))
        self[word] = number
        return number


@dataclass(frozen=True)
class WordFile:
    """How often each of v stems is in each of m texts, by stem (compressed sparse columns)."""

    keys: Keys  #: (m,) of the rows, ascending
    lengths: NDArray[np.int32]  #: (m,) words of each text
    stems: NDArray[np.uint64]  #: (v,) hashes, ascending
    starts: NDArray[np.int64]  #: (v + 1,) where the rows of each stem begin
    places: NDArray[np.int32]  #: rows with the stem, ascending
    counts: Floats  #: of the stem in each
    language: str  #: of the stems
    generation: int = 0

    @classmethod
    def of_texts(
        cls, blocks: Iterable[tuple[Any, Sequence[str]]], generation: int = 0
    ) -> "WordFile":
        """Count the words of texts, given in blocks of keys and texts."""
        stems: _Stems | None = None
        language = ""
        keys, lengths, parts = [np.empty(0, np.int64)], [np.empty(0, np.int32)], []
        for block_keys, texts in blocks:
            if stems is None:
                language = main_language(texts)
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
        counts = csc_array((0, 0), dtype=np.int32)
        if parts:
            counts = vstack(parts, format="csc")[:, order]
        counts.sort_indices()
        return cls(
            np.concatenate(keys),
            np.maximum(np.concatenate(lengths), 1),
            hashes[order],
            counts.indptr.astype(np.int64),
            counts.indices.astype(np.int32),
            counts.data.astype(np.float32),
            language,
            generation,
        )

    def rows_with(self, stem: str) -> tuple[NDArray[np.int32], Floats]:
        """Return the places of the texts with a stem, and how often each has it."""
        wanted = _hash(stem)
        place = int(np.searchsorted(self.stems, np.uint64(wanted)))
        if place == len(self.stems) or int(self.stems[place]) != wanted:
            return self.places[:0], self.counts[:0]
        rows = slice(self.starts[place], self.starts[place + 1])
        return self.places[rows], self.counts[rows]

    def write(self, folder: Path, about: dict[str, Any]) -> "WordFile":
        """Write the file, and return it as it is read again."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        about |= {"language": self.language, "rule": WORD_RULE}
        write_derived(folder / WORDS, about, arrays)
        return self.read(folder)[0]

    @classmethod
    def read(cls, folder: Path) -> "tuple[WordFile, dict[str, Any]]":
        """Open the file of a folder, memory-mapped, and return also its description."""
        about, arrays = read_derived(folder / WORDS)
        return cls(**arrays, language=about["language"], generation=about["generation"]), about


_ARRAYS = ("keys", "lengths", "stems", "starts", "places", "counts")


def _hash(stem: str) -> int:
    """Return 64 bits: among a million stems no two are expected to have the same."""
    return int.from_bytes(blake2b(stem.encode("utf-8", "replace"), digest_size=8).digest(), "big")


class Bm25:
    """BM25 (Lucene's, with ``K1`` and ``B``) of the rows of a word file and of newer ones.

    Args:
        file: Words that are counted; None: none are.
        is_live: (m,) which of its rows are not gone; None: all.
        keys: (t,) of the newer rows.
        texts: (t,) theirs.
        texts_of: Returns the texts of rows.
    """

    def __init__(
        self,
        file: WordFile | None,
        is_live: NDArray[np.bool_] | None,
        keys: Keys,
        texts: Sequence[str],
        texts_of: TextsOf,
    ) -> None:
        self.file = file or WordFile.of_texts([])
        self.language = self.file.language if file else main_language(texts)
        self.texts_of = texts_of
        self.texts = texts
        self.keys = np.concatenate([self.file.keys, keys])
        self._words, self._rows = words_of_each(texts)
        lengths = np.bincount(self._rows, minlength=len(texts))
        lengths = np.concatenate([self.file.lengths, np.maximum(lengths, 1)])
        self.is_live = np.ones(len(self.keys), bool)
        if is_live is not None:
            self.is_live[: len(is_live)] = is_live
        self.count = int(self.is_live.sum())
        mean = lengths.sum(where=self.is_live) / max(self.count, 1)
        self.norm = (K1 * (1 - B + B * lengths / max(mean, 1))).astype(np.float32)

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> "Bm25":
        """Count texts in memory; their keys are their numbers from 0."""
        keys = np.arange(len(texts))
        file = WordFile.of_texts([(keys, texts)])

        def texts_of(chosen: Keys) -> list[str]:
            return [texts[key] for key in chosen.tolist()]

        return cls(file, None, keys[:0], [], texts_of)

    def ask(self, query: str) -> "WordScores":
        """Return the scores of all rows for a query."""
        return WordScores(self, query)

    def rows_with(self, stem: str, column: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the places of the live rows with a stem, ascending, and how often each has it.

        ``column`` are the newer rows with the word, each as often as it has it.
        """
        places, counts = self.file.rows_with(stem)
        if len(column):
            newer, newer_counts = np.unique(column, return_counts=True)
            places = np.concatenate([places, len(self.file.keys) + newer])
            counts = np.concatenate([counts, newer_counts.astype(np.float32)])
        if self.count == len(self.keys):
            return places, counts
        live = self.is_live[places]
        return places[live], counts[live]

    def newer_rows(self, stems: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return for each stem the newer rows with it, each as often as it has it."""
        stem = stemmer_of(self.language)
        column = {name: place for place, name in enumerate(stems)}
        of_word = {word: column.get(stem(word), -1) for word in set(self._words)}
        columns = np.fromiter(map(of_word.__getitem__, self._words), np.int64, len(self._words))
        return [self._rows[columns == place] for place in range(len(stems))]


class WordScores:
    """The scores of rows for one query: BM25 of stems, and ``WRITTEN`` for words as written."""

    def __init__(self, bm25: Bm25, query: str) -> None:
        self._bm25 = bm25
        stem = stemmer_of(bm25.language)
        written = words(query, query=True)
        times: dict[str, int] = {}
        for word in written:
            times[stem(word)] = times.get(stem(word), 0) + 1
        newer = bm25.newer_rows(list(times))
        self._scores = np.zeros(len(bm25.keys), np.float32)
        self._places = []
        for (name, count), column in zip(times.items(), newer, strict=True):
            places, counts = bm25.rows_with(name, column)
            weight = np.float32(count * idf(len(places), bm25.count))
            self._scores[places] += weight * counts / (counts + bm25.norm[places])
            self._places.append(places)
        self._rarity = np.array([idf(len(places), bm25.count) for places in self._places])
        rarity = dict(zip(times, self._rarity.tolist(), strict=True))
        self._gains = {word: WRITTEN * rarity[stem(word)] for word in written}
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
        if len(places) > most:
            places = places[scores[places] >= np.partition(scores[places], -most)[-most]]
        keys, _ = best(self._bm25.keys[places], scores[places], most)
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
        has = np.array([_is_among(place, places) for places in self._places], bool)
        covered = 0.0
        if has.any():
            covered = float(self._rarity[has].sum() / self._rarity.sum())
        return Match(covered, min(1.0, float(scores[0]) / idf(0, self._bm25.count)))


def _is_among(place: Any, places: NDArray[np.int64]) -> bool:
    at = np.searchsorted(places, place)
    return bool(at < len(places) and places[at] == place)


def idf(texts_with: int, texts: int) -> float:
    """Return the inverse document frequency of a word as BM25 has it: how rare it is."""
    return float(np.log1p((texts - texts_with + 0.5) / (texts_with + 0.5)))
