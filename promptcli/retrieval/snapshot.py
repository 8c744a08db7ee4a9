"""The derived files of an index, and a search's view of one generation of the index.

Rows newer than a derived file are compared exactly; removed rows are left out. If more than a tenth
of the rows are new, derived files are rebuilt; if more than a tenth are removed, all files.
"""

import contextlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from promptcli.data.vectors.precision import Floats
from promptcli.errors import CheckFailedError
from promptcli.notes import note
from promptcli.retrieval.array_files import EXACT_FACTORY, FAISS_FILE, WORDS_FILE, Source
from promptcli.retrieval.bm25 import Bm25, WordCounts
from promptcli.retrieval.origin import Origin
from promptcli.retrieval.ranking import (
    JOIN_DEPTH,
    JoinedRanking,
    RankBy,
    Ranking,
    exact_scores,
    nearest_of,
    take_rows,
    top_k,
)
from promptcli.retrieval.store import Keys, Store
from promptcli.storage.files import is_writable

_MIN_APPROXIMATE_ROWS = 100_000  # with fewer rows, all are compared by default
MIN_DERIVED_ROWS = 1000  #: derived files are built for more rows
_MAX_CHANGED_SHARE = 0.1  # share of changed rows beyond which files are rebuilt
#: If a condition leaves at most this number of rows, all of them are compared.
_MAX_COMPARED_ROWS = 20_000
_PARTS_PER_ROW = 4  # number of parts to rank for each requested row, in the first attempt


class DerivedFiles:
    """The derived files of a store, in its folder or in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._contents: dict[str, Any] = {}  # by file name

    def get(self, name: str) -> Any:
        """Return the content of a derived file; None for few rows. Call inside ``store.reading``.

        A damaged, missing or outdated file is rebuilt.
        """
        content, folder = self._read(name), self._store.folder
        if content is None and folder is not None and self._is_needed(name):
            note(f"{folder / name} is missing, damaged or outdated; it is rebuilt")
            content = self._rebuild(name)
        return content

    def _read(self, name: str) -> Any:
        """Return the content of a file; None if it describes none of the present vectors.

        The file is read again if its content lacks too many rows.
        """
        content = self._contents.get(name)
        if self._lacks_rows(content) and self._store.folder is not None:
            with contextlib.suppress(FileNotFoundError, CheckFailedError):
                content = self._contents[name] = self._open(name)
        return content if self._is_of_present_vectors(content) else None

    def _is_of_present_vectors(self, content: Any) -> bool:
        return content is not None and content.source.vectors == self._store.settings.vectors

    def _lacks_rows(self, content: Any) -> bool:
        """Return whether a content lacks too many rows of the index."""
        if not self._is_of_present_vectors(content):
            return True
        newer_rows = self._store.settings.places - content.source.places
        return bool(newer_rows > self._max_changed_rows())

    def _max_changed_rows(self) -> float:
        return max(MIN_DERIVED_ROWS, _MAX_CHANGED_SHARE * len(self._store))

    def _open(self, name: str) -> Any:
        assert self._store.folder is not None
        path = self._store.folder / name
        if name == WORDS_FILE:
            return WordCounts.read(path)
        from promptcli.retrieval.vectors import FaissIndex

        return FaissIndex.read(path)

    def _is_needed(self, name: str) -> bool:
        settings, rows = self._store.settings, len(self._store)
        if name == WORDS_FILE:
            return settings.lexical and rows > MIN_DERIVED_ROWS
        if settings.factory is None:
            return rows >= _MIN_APPROXIMATE_ROWS and settings.target_recall < 1
        return rows > 0 and settings.factory != EXACT_FACTORY

    def update(self, *, always: bool = False) -> None:
        """Rewrite the vectors if many rows were removed, or ``always``; rebuild outdated files."""
        store = self._store
        with store.reading():
            # for an approximate index, half precision is enough, and takes half the space
            is_halved = store.settings.factory is None and self._is_needed(FAISS_FILE)
            dtype = "float16" if is_halved else "float32"
            removed_rows = store.settings.places - len(store)
            is_due = removed_rows > self._max_changed_rows() or dtype != store.vector_file.dtype
        if is_due or always:
            with store.changing():
                store.rewrite(dtype)
        for name in (FAISS_FILE, WORDS_FILE):
            with store.reading():
                is_due = self._is_needed(name) and self._lacks_rows(self._read(name))
            if is_due:
                self._rebuild(name)

    def _rebuild(self, name: str) -> Any:
        store = self._store
        with store.reading():
            settings, vectors = store.settings, store.all_vectors()
        source = Source(settings.vectors, len(vectors))
        content: Any
        if name == WORDS_FILE:
            content = WordCounts.of_texts(store.text_blocks(0, len(vectors)), source=source)
        else:
            from promptcli.retrieval.vectors import make_faiss_index

            content = make_faiss_index(vectors, settings.factory, settings.target_recall, source)
        if store.folder is not None and is_writable(store.folder):
            content.write(store.folder / name)
            content = self._open(name)  # memory-mapped
        self._contents[name] = content
        return content


class Snapshot:
    """One generation of an index."""

    def __init__(self, store: Store, derived_files: DerivedFiles) -> None:
        self._store = store
        self._derived_files = derived_files
        self.settings = store.settings
        self.origin = Origin.from_dict(store.settings.origin)
        self.rows = len(store)
        self.faiss_index = derived_files.get(FAISS_FILE)  #: None: every row is compared
        self._vectors = store.all_vectors()
        self._live_mask = store.live_mask()
        self._indexed_rows = 0 if self.faiss_index is None else self.faiss_index.rows
        self._newer_vectors = self._vectors[self._indexed_rows :].astype(np.float32, copy=False)

    @cached_property
    def words(self) -> Bm25:
        """BM25 of all rows."""
        file = self._derived_files.get(WORDS_FILE) or WordCounts.of_texts([])
        newer_texts = self._store.text_blocks(len(file.lengths), len(self._vectors))
        newer = WordCounts.of_texts(newer_texts, file.language)
        return Bm25([file, newer], self._store.texts, self._live_mask)

    def rank(
        self, texts: Sequence[str], units: Any, k: int, by: RankBy, allowed: Keys | None
    ) -> Sequence[Ranking | JoinedRanking]:
        """Return the k best rows for each query.

        Args:
            texts: The queries.
            units: (q, d) their unit vectors; None for a ranking by words.
            k: Rows of each query.
            by: The ranking.
            allowed: Keys of the rows that may be answers; None: all.
        """
        k = min(k, self.rows)
        if by == "meaning":
            return self.nearest(units, k, allowed)
        if by == "words":
            return [self.words.ask(text).rank(k, allowed) for text in texts]
        depth = max(k, JOIN_DEPTH)
        joined = []
        rankings = self.nearest(units, depth, allowed)
        for text, unit, by_vectors in zip(texts, units, rankings, strict=True):

            def cosines_of(keys: Keys, unit: Any = unit) -> Any:
                return exact_scores(self._vectors[keys], unit)

            joined.append(self.words.ask(text).join(by_vectors, k, depth, cosines_of, allowed))
        return joined

    def rank_best_parts(
        self, texts: Sequence[str], units: Any, k: int, by: RankBy, allowed: Keys | None
    ) -> Sequence[Ranking | JoinedRanking]:
        """Return the best part of each of the k best rows, for each query; see ``rank``."""
        count = min(_PARTS_PER_ROW * k, self.rows)
        while True:
            rankings = []
            for ranking in self.rank(texts, units, count, by, allowed):
                best_parts: dict[int | str, int] = {}
                for index, row in enumerate(self._store.rows(ranking.keys)):
                    best_parts.setdefault(row.id, index)
                rankings.append(take_rows(ranking, list(best_parts.values())[:k]))
            if count == self.rows or all(len(ranking.keys) == k for ranking in rankings):
                return rankings
            count = min(_PARTS_PER_ROW * count, self.rows)

    def nearest(self, units: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """Return the k nearest rows of each unit vector (q, d), best first; all if k is larger.

        Ties are ordered by row. If an approximate search finds fewer than k of the existing rows,
        the search is widened.
        """
        if allowed is not None and len(allowed) <= _MAX_COMPARED_ROWS:
            rankings = nearest_of(self._vectors[allowed], units, k)
            return [Ranking(allowed[indices], scores) for indices, scores in rankings]
        mask = self._live_mask
        if allowed is not None:
            mask = np.zeros(len(self._vectors), bool)
            mask[allowed] = True
        count = self._indexed_rows
        if count == 0:
            return nearest_of(self._newer_vectors, units, k, mask)
        older_mask = newer_mask = None
        if mask is not None:
            older_mask, newer_mask = mask[:count], mask[count:]
        older: list[Ranking] = self.faiss_index.nearest(units, k, self._vectors, older_mask)
        if not len(self._newer_vectors):
            return older
        newer = nearest_of(self._newer_vectors, units, k, newer_mask)
        rankings = []
        for (keys, scores), (indices, newer_scores) in zip(older, newer, strict=True):
            all_keys = np.concatenate([keys, count + indices])
            rankings.append(top_k(all_keys, np.concatenate([scores, newer_scores]), k))
        return rankings
