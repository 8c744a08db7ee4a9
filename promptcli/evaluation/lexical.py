"""BM25 over texts, by bm25s (extra ``lexical``): it finds the names and codes that vectors miss."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import Floats
from promptcli.errors import CheckFailedError, one_line, require

Numbers = NDArray[np.int64]

#: Files of a stored index.
FILES = {
    "data_name": "lexical-data.npy",
    "indices_name": "lexical-rows.npy",
    "indptr_name": "lexical-words.npy",
    "vocab_name": "lexical-words.json",
    "params_name": "lexical.json",
}
#: The version of the rule that parts texts into words: BM25 that was counted by another one is
#: counted again.
WORD_RULE = 2
#: The weight of words in a joined score; that of the cosine is the rest.
WEIGHT = 0.4
#: Rows of each ranking that are joined, at least.
DEPTH = 100


class Lexical:
    """BM25 (Lucene's, k1 1.5, b 0.75) of m texts."""

    def __init__(self, model: Any, rows: Numbers) -> None:
        self._model, self._rows = model, rows

    @classmethod
    def build(cls, texts: Sequence[str], rows: Numbers) -> "Lexical":
        """Count the words of texts, (m,), whose numbers are ``rows``, ascending."""
        # the library that it takes is not wanted by a search of vectors
        from promptcli.evaluation.words import (
            words,
        )

        bm25s = load_library()
        # bm25s numbers words in no certain order
        vocabulary, ids = (
            dict[str, int](),
            list[list[int]](),
        )
        for text in texts:
            ids.append(
                [vocabulary.setdefault(word, len(vocabulary)) for word in words(text) or [""]]
            )
        model = bm25s.BM25()
        model.index((ids, vocabulary), show_progress=False)
        return cls(model, rows)

    def write(self, folder: Path) -> None:
        self._model.save(folder, show_progress=False, **FILES)

    @classmethod
    def read(cls, folder: Path, rows: Numbers) -> "Lexical":
        """Open its files, memory-mapped."""
        bm25s = load_library()
        try:
            model = bm25s.BM25.load(folder, mmap=True, show_progress=False, verbosity=0, **FILES)
            if model.scores["num_docs"] != len(rows) or not isinstance(model.vocab_dict, dict):
                raise ValueError(f"they are not of {len(rows):,} rows")
        except Exception as error:  # whatever its files say
            raise _damaged(error, str(folder)) from None
        return cls(model, rows)

    def rank(self, query: str, k: int, allowed: NDArray[np.bool_] | None) -> tuple[Numbers, Floats]:
        """Return the k rows with the highest scores, above 0, best first; equal scores by row."""
        from promptcli.evaluation.words import words

        asked = words(query, query=True)
        known = [self._model.vocab_dict[word] for word in asked if word in self._model.vocab_dict]
        if not known:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        try:
            scores = self._model.get_scores_from_ids(known)
        except (LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise _damaged(error, "this index") from None
        if allowed is not None:
            scores[~allowed[self._rows]] = 0
        places = np.flatnonzero(scores > 0)
        if len(places) > k:
            places = places[scores[places] >= np.partition(scores[places], -k)[-k]]
        places = places[np.lexsort((places, -scores[places]))][:k]
        return self._rows[places], scores[places]


def _damaged(error: Exception, name: str) -> CheckFailedError:
    reason = one_line(error, 100) or type(error).__name__
    return CheckFailedError(
        f"the words of {name} are damaged ({reason}): `promptcli index compact` counts them again"
    )


def load_library() -> Any:
    """Return bm25s; refuse to work without it."""
    require("bm25s", extra="lexical")
    return importlib.import_module("bm25s")


def joined(
    vectors: tuple[Numbers, Floats], words: tuple[Numbers, Floats], k: int
) -> tuple[Numbers, Floats]:
    """Return the k rows with the highest sum of 0.6 cosine and 0.4 BM25, best first, equal ones by
    row.

    BM25 is divided by the query's best. A row that only words found has the lowest cosine of those
    that vectors found.
    """
    rows = np.unique(np.concatenate([vectors[0], words[0]]))
    cosines, shares = np.full(len(rows), vectors[1].min(initial=1), np.float64), np.zeros(len(rows))
    cosines[np.searchsorted(rows, vectors[0])] = vectors[1]
    shares[np.searchsorted(rows, words[0])] = words[1] / words[1].max(initial=0)
    scores = ((1 - WEIGHT) * cosines + WEIGHT * shares).astype(np.float32)
    order = np.lexsort((rows, -scores))[:k]
    return rows[order], scores[order]
