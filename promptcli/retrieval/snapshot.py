"""What a search needs of one generation of an index: derived files, and the rows newer than these.

Newer rows are compared exactly, rows that are gone are left out. Beyond a tenth of changes the
derived files are made again.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from promptcli.data.vectors.formats import Floats
from promptcli.errors import CheckFailedError, UsageError
from promptcli.notes import note
from promptcli.retrieval.bm25 import Bm25, WordCounts
from promptcli.retrieval.derived import VECTORS, WORDS, read_derived
from promptcli.retrieval.exact import EXACT, ExactFile, compares_all, in_blocks, nearest_of
from promptcli.retrieval.ranking import (
    DEPTH,
    JoinedRanking,
    Ranking,
    Way,
    best,
    exact_scores,
    join_rankings,
)
from promptcli.retrieval.store import Keys, Store
from promptcli.storage.files import is_writable

#: Changed rows from which derived files are made, and made again beyond this share of their rows.
FEW, SHARE = 1000, 0.1
#: Up to this number of rows that a filter allows are compared one by one, in any index.
_FEW_ALLOWED = 20_000


class Derived:
    """The derived files of a store, in its folder or in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = None if store.path is None else store.path.parent
        self._made: dict[str, Any] = {}  # by the names of the files
        self._states: dict[str, Any] = {}  # of the files when they were read

    def get(self, name: str, *, make: bool = True) -> Any:
        """Return what a derived file holds, inside ``store.reading``; None if rows are few.

        One that is damaged, missing or too old is made again, unless ``make`` is false.
        """
        problem = self._read(name)
        if problem and make and self._folder is not None and self._wants(name):
            note(f"{self._folder / name} {problem}; it is made again")
            self._make(name)
        return self._made.get(name)

    def _read(self, name: str) -> str:
        """Read a file if it is new, and return why there is none of this index."""
        problem = "is missing"
        if self._folder is not None:
            path = self._folder / name
            state = _state_of(path)
            if state != self._states.get(name):
                self._made.pop(name, None)
                self._states[name] = state
                if state is not None:
                    try:
                        self._made[name] = self._open(path)
                    except CheckFailedError as error:
                        problem = str(error).removeprefix(f"{path} ")
        if name in self._made:
            about, settings = self._made[name].about, self._store.settings
            if about["name"] == settings["name"] and about["generation"] >= settings["oldest"]:
                return ""
            del self._made[name]
            problem = "is of another state of the index"
        return problem

    def _open(self, path: Path) -> Any:
        if path.name == WORDS:
            return WordCounts.read(path)
        about, arrays = read_derived(path)
        if about["factory"] == EXACT:
            return ExactFile.read(about, arrays)
        from promptcli.retrieval.vectors import VectorFile

        return VectorFile.read(path, about, arrays["keys"], self._store.vectors)

    def _wants(self, name: str) -> bool:
        settings = self._store.settings
        if name == WORDS and not settings["lexical"]:
            return False
        return len(self._store) > (0 if name == VECTORS and settings["factory"] else FEW)

    def update(self, *, always: bool = False) -> None:
        """Make the files again that lack too many changes, or any."""
        for name in (VECTORS, WORDS):
            with self._store.reading():
                if not self._wants(name):
                    continue
                made = self.get(name, make=False)
                most = 0 if always else max(FEW, SHARE * len(self._store))
                is_due = made is None or self._changes(made) > most
            if is_due:
                self._make(name)

    def oldest(self) -> int:
        """Return the generation of the oldest file."""
        generations = [made.about["generation"] for made in self._made.values()]
        return int(min([self._store.generation, *generations]))

    def _changes(self, made: Any) -> int:
        """Return how many rows came or went since a file was made."""
        new = self._store.one("SELECT count(*) FROM rows WHERE key>?", _last(made.keys))
        gone = "SELECT count(*) FROM gone WHERE generation>?"
        return int(new + self._store.one(gone, made.about["generation"]))

    def _make(self, name: str) -> None:
        store = self._store
        with store.reading():
            settings = store.settings
            about = {"name": settings["name"], "generation": store.generation}
            factory, target = settings["factory"], settings["target_recall"]
            is_exact = compares_all(len(store), factory, target)
        made: Any
        if name == WORDS:
            blocks = store.blocks("SELECT key, coalesce(text, '') FROM rows")
            texts = (([key for key, _ in rows], [text for _, text in rows]) for rows in blocks)
            made = WordCounts.of_texts(texts, **about)
        elif is_exact:
            made = ExactFile.of_store(store, **about)
        else:
            from promptcli.retrieval.vectors import make_vector_file

            try:
                made = make_vector_file(store, **about)
            except (UsageError, RuntimeError):
                note(f"{factory} does not fit {len(store):,} rows: every row is compared")
                made = ExactFile.of_store(store, **about)
        self._made[name] = made
        if self._folder is not None and is_writable(self._folder):
            made.write(self._folder / name)
            del self._made[name]
            self._states.pop(name, None)
            self._read(name)


def _state_of(path: Path) -> Any:
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_mtime_ns


class Snapshot:
    """One generation of an index."""

    def __init__(self, store: Store, derived: Derived) -> None:
        self._store = store
        self._derived = derived
        self.state = store.state
        self.rows = len(store)
        self.file = derived.get(VECTORS)
        self._keys = np.empty(0, np.int64) if self.file is None else self.file.keys
        newer = "SELECT key, vector FROM vectors WHERE key>? ORDER BY key"
        found = store.sql.execute(newer, (_last(self._keys),)).fetchall()
        self._newer_keys = np.array([key for key, _ in found], np.int64)
        self._newer_vectors = store.matrix(vector for _, vector in found)
        self._is_live = None
        if self.file is not None and (gone := self._gone(self.file)):
            self._is_live = ~np.isin(self._keys, gone)

    def _gone(self, made: Any) -> list[int]:
        """Return the rows that are gone since a file was made."""
        query = "SELECT key FROM gone WHERE generation>?"
        return [key for (key,) in self._store.sql.execute(query, (made.about["generation"],))]

    @cached_property
    def words(self) -> Bm25:
        """BM25 of all rows."""
        file = self._derived.get(WORDS)
        query = "SELECT key, coalesce(text, '') FROM rows WHERE key>? ORDER BY key"
        last = 0 if file is None else _last(file.keys)
        newer = self._store.sql.execute(query, (last,)).fetchall()
        texts = [text for _, text in newer]
        language = "" if file is None else file.about["language"]
        counts = WordCounts.of_texts([([key for key, _ in newer], texts)], language)
        if file is None:
            return Bm25([counts], self._store.texts)
        return Bm25([file, counts], self._store.texts, self._gone(file))

    def rank(
        self, texts: Sequence[str], units: Any, k: int, way: Way, allowed: Keys | None
    ) -> list[Ranking | JoinedRanking]:
        """Return the k best rows for each query, given as a text and a unit vector."""
        k = min(k, self.rows)
        if way == "meaning":
            return list(self.nearest(units, k, allowed))
        if way == "words":
            return [self.words.ask(text).rank(k, allowed) for text in texts]
        depth = max(k, DEPTH)
        joined: list[Ranking | JoinedRanking] = []
        for text, unit, close in zip(
            texts, units, self.nearest(units, depth, allowed), strict=True
        ):
            asked = self.words.ask(text)
            worded = asked.rank(depth, allowed)

            def cosines(keys: Keys, unit: Any = unit) -> Any:
                return exact_scores(self._store.vectors(keys), unit)

            joined.append(
                join_rankings(close, worded, k, asked.match(worded), cosines, asked.scores_of)
            )
        return joined

    def nearest(self, units: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """Return the k nearest rows of each unit vector (q, d), best first; all if k is larger.

        Equal scores are ordered by row. If an approximate search finds fewer than k rows though
        there are more, it looks further.
        """
        if allowed is not None and len(allowed) <= _FEW_ALLOWED:
            rows = in_blocks(allowed, self._store.vectors(allowed), len(units))
            return nearest_of(rows, units, k)
        mask, newer_mask = self._is_live, None
        if allowed is not None:
            newer_mask = np.isin(self._newer_keys, allowed)
            is_allowed = np.isin(self._keys, allowed)
            mask = is_allowed if mask is None else mask & is_allowed
        rows = in_blocks(self._newer_keys, self._newer_vectors, len(units), newer_mask)
        newer = nearest_of(rows, units, k)
        if self.file is None:
            return newer
        older = self.file.nearest(units, k, mask)
        return [
            best(np.concatenate([one[0], two[0]]), np.concatenate([one[1], two[1]]), k)
            for one, two in zip(older, newer, strict=True)
        ]


def _last(keys: Keys) -> int:
    return int(keys[-1]) if len(keys) else 0
