"""A search's view of one generation of an index: its vectors and derived files.

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
from promptcli.retrieval.bm25 import Bm25, WordCounts
from promptcli.retrieval.derived import EXACT, VECTORS, WORDS, Source
from promptcli.retrieval.origin import Origin
from promptcli.retrieval.ranking import (
    DEPTH,
    JoinedRanking,
    Ranking,
    Way,
    exact_scores,
    nearest_of,
    take,
    top_k,
)
from promptcli.retrieval.store import Keys, Store
from promptcli.storage.files import is_writable

_MOST = 100_000  # up to this number, all rows are compared by default
#: Number of rows from which derived files are built, and share of changed rows that rebuilds them.
FEW, SHARE = 1000, 0.1
#: Up to this number of filtered rows are compared one by one, in any index.
_FEW_ALLOWED = 20_000
_PARTS = 4  # parts ranked at first for each requested row


class Derived:
    """The derived files of a store, in its folder or in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._contents: dict[str, Any] = {}  # by file name

    def get(self, name: str) -> Any:
        """Return the content of a derived file; None if rows are few. Call inside
        ``store.reading``.

        A damaged, missing or outdated file is rebuilt.
        """
        content, folder = self._read(name), self._store.folder
        if content is None and folder is not None and self._is_wanted(name):
            note(f"{folder / name} is missing, damaged or outdated; it is rebuilt")
            content = self._rebuild(name)
        return content

    def _read(self, name: str) -> Any:
        """Return the content of a file, read again if it lacks many rows; None if it has none of
        the present vectors.
        """
        if self._lacks_many(self._contents.get(name)) and self._store.folder is not None:
            with contextlib.suppress(FileNotFoundError, CheckFailedError):
                self._contents[name] = self._open(name)
        content = self._contents.get(name)
        return content if self._has_vectors(content) else None

    def _has_vectors(self, content: Any) -> bool:
        return content is not None and content.source.vectors == self._store.settings.vectors

    def _lacks_many(self, content: Any) -> bool:
        if not self._has_vectors(content):
            return True
        return bool(self._store.places - content.source.places > self._few)

    @property
    def _few(self) -> float:
        """The largest number of rows that may be newer than a derived file, or removed."""
        return max(FEW, SHARE * len(self._store))

    def _open(self, name: str) -> Any:
        assert self._store.folder is not None
        path = self._store.folder / name
        if name == WORDS:
            return WordCounts.read(path)
        from promptcli.retrieval.vectors import FaissIndex

        return FaissIndex.read(path)

    def _is_wanted(self, name: str) -> bool:
        settings, rows = self._store.settings, len(self._store)
        if name == WORDS:
            return settings.lexical and rows > FEW
        if settings.factory is None:
            return rows >= _MOST and settings.target_recall < 1
        return rows > 0 and settings.factory != EXACT

    def update(self, *, always: bool = False) -> None:
        """Rebuild the files that lack too many changes, or all."""
        store = self._store
        with store.reading():
            # takes half as long if the index itself is approximate
            is_halved = store.settings.factory is None and self._is_wanted(VECTORS)
            kind = "float16" if is_halved else "float32"
            gone = store.places - len(store)
            is_due = always or gone > self._few or kind != store.file.kind
        if is_due:
            with store.changing():
                store.rewrite(kind)
        for name in (VECTORS, WORDS):
            with store.reading():
                is_due = self._is_wanted(name) and self._lacks_many(self._read(name))
            if is_due:
                self._rebuild(name)

    def _rebuild(self, name: str) -> Any:
        store = self._store
        with store.reading():
            settings, vectors = store.settings, store.units
        source = Source(settings.vectors, len(vectors))
        content: Any
        if name == WORDS:
            content = WordCounts.of_texts(store.text_blocks(0, len(vectors)), source=source)
        else:
            from promptcli.retrieval.vectors import make_faiss_index

            factory, target = settings.factory, settings.target_recall
            content = make_faiss_index(vectors, factory, target, source)
        if store.folder is not None and is_writable(store.folder):
            content.write(store.folder / name)
            content = self._open(name)  # memory-mapped
        self._contents[name] = content
        return content


class Snapshot:
    """One generation of an index."""

    def __init__(self, store: Store, derived: Derived) -> None:
        self._store = store
        self._derived = derived
        self.state = store.state
        self.origin = Origin.from_dict(store.settings.origin)
        self.rows = len(store)
        self.index = derived.get(VECTORS)  #: FAISS's index; None: every row is compared
        self._units = store.units
        self._live_mask = store.live_mask
        self._indexed = 0 if self.index is None else self.index.rows
        self._newer = self._units[self._indexed :].astype(np.float32, copy=False)

    @cached_property
    def words(self) -> Bm25:
        """BM25 of all rows."""
        file = self._derived.get(WORDS) or WordCounts.of_texts([])
        newer = self._store.text_blocks(len(file.lengths), len(self._units))
        counts = WordCounts.of_texts(newer, file.language)
        return Bm25([file, counts], self._store.texts, self._live_mask)

    def rank(
        self, texts: Sequence[str], units: Any, k: int, way: Way, allowed: Keys | None
    ) -> Sequence[Ranking | JoinedRanking]:
        """Return the k best rows for each query, given as a text and a unit vector."""
        k = min(k, self.rows)
        if way == "meaning":
            return self.nearest(units, k, allowed)
        if way == "words":
            return [self.words.ask(text).rank(k, allowed) for text in texts]
        depth = max(k, DEPTH)
        joined = []
        nearest = self.nearest(units, depth, allowed)
        for text, unit, by_vectors in zip(texts, units, nearest, strict=True):

            def cosines_of(keys: Keys, unit: Any = unit) -> Any:
                return exact_scores(self._units[keys], unit)

            joined.append(self.words.ask(text).join(by_vectors, k, depth, cosines_of, allowed))
        return joined

    def rank_best_parts(
        self, texts: Sequence[str], units: Any, k: int, way: Way, allowed: Keys | None
    ) -> Sequence[Ranking | JoinedRanking]:
        """Return the best part of each of the k best rows, for each query; see ``rank``."""
        count = min(_PARTS * k, self.rows)
        while True:
            rankings = []
            for ranking in self.rank(texts, units, count, way, allowed):
                first: dict[str, int] = {}
                for place, (_, name, *_) in enumerate(self._store.records(ranking.keys)):
                    first.setdefault(name, place)
                rankings.append(take(ranking, list(first.values())[:k]))
            if count == self.rows or all(len(ranking.keys) == k for ranking in rankings):
                return rankings
            count = min(_PARTS * count, self.rows)

    def nearest(self, units: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """Return the k nearest rows of each unit vector (q, d), best first; all if k is larger.

        Ties are ordered by row. If an approximate search finds fewer than k of the existing rows,
        it is widened.
        """
        if allowed is not None and len(allowed) <= _FEW_ALLOWED:
            found = nearest_of(self._units[allowed], units, k)
            return [Ranking(allowed[places], scores) for places, scores in found]
        mask = self._live_mask
        if allowed is not None:
            mask = np.zeros(len(self._units), bool)
            mask[allowed] = True
        rows = self._indexed
        if rows == 0:
            return nearest_of(self._newer, units, k, mask)
        older_mask, newer_mask = (None, None) if mask is None else (mask[:rows], mask[rows:])
        older: list[Ranking] = self.index.nearest(units, k, self._units, older_mask)
        if not len(self._newer):
            return older
        newer = nearest_of(self._newer, units, k, newer_mask)
        return [
            top_k(np.concatenate([keys, rows + places]), np.concatenate([scores, more]), k)
            for (keys, scores), (places, more) in zip(older, newer, strict=True)
        ]
