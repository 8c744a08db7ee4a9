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
#: The weight of words in a joined score; that of the cosine is the rest.
WEIGHT = 0.4
#: Rows of each ranking that are joined, at least.
DEPTH = 100


class Lexical:
    """BM25 (Lucene's, k1 1.5, b 0.75) of m texts."""

    def __init__(self, model: Any, rows: Numbers) -> None:
        self._model = model
        self._rows = rows

    @classmethod
    def build(cls, texts: Sequence[str], rows: Numbers) -> "Lexical":
        """Count the words of texts, (m,), whose numbers are ``rows``, ascending."""
        # the library that it takes is not wanted by a search of vectors
        from promptcli.evaluation.words import words

        bm25s = load_library()
        # bm25s would number words in no certain order
        vocabulary: dict[str, int] = {}
        ids: list[list[int]] = []
        for text in texts:
            ids_of_text = []
            for word in words(text) or [""]:
                ids_of_text.append(vocabulary.setdefault(word, len(vocabulary)))
            ids.append(ids_of_text)
        model = bm25s.BM25()
        model.index((ids, vocabulary), show_progress=False)
        return cls(model, rows)

    def write(self, folder: Path) -> None:
        self._model.save(folder, show_progress=False, **LEXICAL_FILES)

    @classmethod
    def read(cls, folder: Path, rows: Numbers) -> "Lexical":
        """Open its files, memory-mapped."""
        bm25s = load_library()
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
        # the library that it takes is not wanted by a search of vectors
        from promptcli.evaluation.words import words

        ids = self._model.vocab_dict
        known = [ids[word] for word in words(query, query=True) if word in ids]
        if not known:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        try:
            scores = self._model.get_scores_from_ids(known)
        except (LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise _damage_error(error, "this index") from None
        if allowed is not None:
            scores[~allowed[self._rows]] = 0
        places = np.flatnonzero(scores > 0)
        if len(places) > k:
            kth_highest = np.partition(scores[places], -k)[-k]
            places = places[scores[places] >= kth_highest]
        order = np.lexsort((places, -scores[places]))
        best = places[order][:k]
        return self._rows[best], scores[best]


def _damage_error(error: Exception, name: str) -> CheckFailedError:
    reason = one_line(error, 100) or type(error).__name__
    return CheckFailedError(
        f"the words of {name} are damaged ({reason}): `promptcli index compact` counts them again"
    )


def load_library() -> Any:
    """Return bm25s; refuse to work without it."""
    require("bm25s", extra="lexical")
    return importlib.import_module("bm25s")


def join_rankings(by_vectors: Ranking, by_words: Ranking, k: int) -> Ranking:
    """Return the k rows with the highest sum of 0.6 cosine and 0.4 BM25, best first.

    Equal rows are in ascending order. BM25 is divided by the query's best. A row that only words
    found has the lowest cosine of those that vectors found.
    """
    vector_rows, found_cosines = by_vectors
    word_rows, found_bm25 = by_words
    rows = np.unique(np.concatenate([vector_rows, word_rows]))
    cosines = np.full(len(rows), found_cosines.min(initial=1), np.float64)
    cosines[np.searchsorted(rows, vector_rows)] = found_cosines
    shares = np.zeros(len(rows))
    shares[np.searchsorted(rows, word_rows)] = found_bm25 / found_bm25.max(initial=0)
    scores = ((1 - WEIGHT) * cosines + WEIGHT * shares).astype(np.float32)
    order = np.lexsort((rows, -scores))[:k]
    return rows[order], scores[order]
