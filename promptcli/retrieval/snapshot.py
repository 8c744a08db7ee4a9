"""What a search needs of one generation of an index: derived files, and the rows newer than these.

Newer rows are compared exactly, rows that are gone are left out. Beyond a tenth of changes the
derived files are made again.
"""

import functools
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import Floats
from promptcli.errors import CheckFailedError
from promptcli.notes import note
from promptcli.retrieval.bm25 import WORD_RULE, Bm25, WordFile
from promptcli.retrieval.derived import VECTORS, WORDS
from promptcli.retrieval.ranking import Ranking, best, exact_scores
from promptcli.retrieval.store import Keys, Store
from promptcli.storage.files import is_writable

if TYPE_CHECKING:  # FAISS
    from promptcli.retrieval.vectors import Effort, VectorFile

#: Changed rows from which derived files are made, and made again beyond this share of their rows.
FEW, SHARE = 1000, 0.1
#: Up to this number of rows that a filter allows are compared one by one, in any index.
_FEW_ALLOWED = 20_000
_MARGIN = 16  # candidates beyond k: FAISS rounds their scores
_EQUAL = 1e-6  # scores that differ by less may be equal


class Derived:
    """The derived files of a store, in its folder or in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.folder = None if store.path is None else store.path.parent
        self.vectors: VectorFile | None = None
        self.words: WordFile | None = None
        self._name = ""
        self._read_states: dict[str, Any] = {}

    def read(self, *, make: bool = True) -> None:
        """Open the files that are new; make those again that are damaged or missing."""
        if self._name != self._store.settings["name"]:  # another index has taken its place
            self._name = self._store.settings["name"]
            self.vectors = self.words = None
            self._read_states.clear()
        if self.folder is not None:
            kinds = [("vectors", VECTORS)] + [("words", WORDS)] * self._store.settings["lexical"]
            for name, file in kinds:
                self._read_one(name, self.folder / file, make=make)

    def _read_one(self, name: str, path: Path, *, make: bool) -> None:
        try:
            state = path.stat()
            mark: Any = (state.st_ino, state.st_mtime_ns)
        except FileNotFoundError:
            mark = None
        problem = f"{path} is missing"
        if mark is not None and mark == self._read_states.get(name) and self._fits(name):
            return
        self._read_states[name] = mark
        setattr(self, name, None)
        if mark is not None:
            try:
                setattr(self, name, self._opened(name, path.parent))
                problem = f"{path} is of another state of the index"
            except CheckFailedError as error:
                problem = str(error)
        if make and getattr(self, name) is None and self._wants(name):
            note(f"{problem}; it is made again")
            self._make(name)

    def _opened(self, name: str, folder: Path) -> Any:
        """Return a derived file; None if it is of another index, or of too old a state."""
        settings = self._store.settings
        if name == "words":
            words, about = WordFile.read(folder)
            is_ours = about["name"] == settings["name"] and about["rule"] == WORD_RULE
            return words if is_ours and words.generation >= settings["oldest"] else None
        from promptcli.retrieval.vectors import VectorFile

        vectors, about = VectorFile.read(folder)
        is_ours = about["name"] == settings["name"]
        return vectors if is_ours and vectors.generation >= settings["oldest"] else None

    def _fits(self, name: str) -> bool:
        made = getattr(self, name)
        return made is not None and made.generation >= self._store.settings["oldest"]

    def _wants(self, name: str) -> bool:
        settings = self._store.settings
        if name == "words" and not settings["lexical"]:
            return False
        return len(self._store) > FEW or bool(name == "vectors" and settings["factory"])

    def update(self, *, always: bool = False) -> None:
        """Make the files again that lack too many changes, or all of them."""
        for name in ("vectors", "words"):
            with self._store.reading():
                self.read(make=False)
                changes = self._changes(name)
                wanted = self._wants(name)
                most = max(FEW, SHARE * len(self._store))
            if wanted and (changes > most or getattr(self, name) is None or (always and changes)):
                self._make(name)

    def _changes(self, name: str) -> int:
        """Return how many rows came or went since a file was made."""
        made = getattr(self, name)
        last = made.keys[-1] if made is not None and len(made.keys) else 0
        new = self._store.one("SELECT count(*) FROM rows WHERE key>?", int(last))
        generation = -1 if made is None else made.generation
        return int(
            new + self._store.one("SELECT count(*) FROM gone WHERE generation>?", generation)
        )

    def _make(self, name: str) -> None:
        store = self._store
        made: Any
        if name == "words":
            blocks = store.blocks("SELECT key, text FROM rows")
            texts = (
                ([key for key, _ in block], [text or "" for _, text in block]) for block in blocks
            )
            with store.reading():
                generation = store.generation
            made = WordFile.of_texts(texts, generation)
        else:
            from promptcli.retrieval.vectors import make_vector_file

            made = make_vector_file(
                store, lambda file: functools.partial(_search_by_effort, file, store)
            )
        if self.folder is not None and is_writable(self.folder):
            about = {"name": store.settings["name"], "generation": made.generation}
            made = made.write(self.folder, about)
        setattr(self, name, made)


class Snapshot:
    """One generation of an index."""

    def __init__(self, store: Store, derived: Derived) -> None:
        self._store = store
        self.state = store.state
        self.file = derived.vectors
        self.rows = len(store)
        self._words = derived.words
        self._keys = np.empty(0, np.int64) if self.file is None else self.file.keys
        newer = "SELECT key, vector FROM vectors WHERE key>? ORDER BY key"
        found = store.sql.execute(newer, (_last(self._keys),)).fetchall()
        self.newer_keys = np.array([key for key, _ in found], np.int64)
        joined = b"".join([vector for _, vector in found])
        width = store.settings["width"]
        self._newer_vectors = np.frombuffer(joined, np.float32).reshape(len(found), width)
        self._is_live = None if self.file is None else self._live(self._keys, self.file.generation)

    def _live(self, keys: Keys, generation: int) -> NDArray[np.bool_] | None:
        """Return which rows of a derived file are not gone; None: all."""
        query = "SELECT key FROM gone WHERE generation>?"
        gone = [key for (key,) in self._store.sql.execute(query, (generation,))]
        if not gone:
            return None
        return ~np.isin(keys, np.array(gone, np.int64))

    @cached_property
    def words(self) -> Bm25:
        """BM25 of all rows."""
        file = self._words
        keys = np.empty(0, np.int64) if file is None else file.keys
        newer = "SELECT key, text FROM rows WHERE key>? ORDER BY key"
        found = self._store.sql.execute(newer, (_last(keys),)).fetchall()
        is_live = None if file is None else self._live(keys, file.generation)
        newer_keys = np.array([key for key, _ in found], np.int64)
        texts = [text or "" for _, text in found]
        return Bm25(file, is_live, newer_keys, texts, self._store.texts)

    def cosines(self, unit: Floats, keys: Keys) -> Floats:
        """Return the cosines of rows with a unit vector (d,)."""
        return exact_scores(self._store.vectors(keys), unit)

    def nearest(self, units: Floats, k: int, allowed: Keys | None = None) -> list[Ranking]:
        """Return the k nearest rows of each unit vector (q, d), best first; all if k is larger.

        Equal scores are ordered by row. If an approximate search finds fewer than k rows though
        there are more, it looks further.
        """
        if allowed is not None and len(allowed) <= _FEW_ALLOWED:
            vectors = self._store.vectors(allowed)
            return [best(allowed, exact_scores(vectors, unit), k) for unit in units]
        mask = self._is_live
        newer_keys, newer_vectors = self.newer_keys, self._newer_vectors
        if allowed is not None:
            inside = np.isin(newer_keys, allowed)
            newer_keys, newer_vectors = newer_keys[inside], newer_vectors[inside]
            is_allowed = np.isin(self._keys, allowed)
            mask = is_allowed if mask is None else mask & is_allowed
        if self.file is None:
            found = [(np.empty(0, np.int64), np.empty(0, np.float32))] * len(units)
        else:
            found = search_file(self.file, self._store.vectors, units, k, mask)
        answers = []
        for unit, (keys, scores) in zip(units, found, strict=True):
            products = np.einsum("nd,d->n", newer_vectors, unit)
            near = slice(None)
            if len(products) > k:
                least = np.partition(products, -k)[-k]
                near = products >= least - _EQUAL
            newer_scores = exact_scores(newer_vectors[near], unit)
            keys = np.concatenate([keys, newer_keys[near]])
            answers.append(best(keys, np.concatenate([scores, newer_scores]), k))
        return answers


def search_file(
    file: "VectorFile",
    vectors_of: Any,
    units: Floats,
    k: int,
    mask: NDArray[np.bool_] | None,
    effort: "Effort | None" = None,
) -> list[Ranking]:
    """Return the k nearest rows of a FAISS index, scored by their vectors.

    Args:
        file: The index.
        vectors_of: Returns the vectors of keys.
        units: (q, d) queries.
        k: Rows of each.
        mask: (m,) rows that may be answers; None: all.
        effort: Of the search; None: that of the file, and more if it finds too few rows.
    """
    available = len(file.keys) if mask is None else int(np.count_nonzero(mask))
    wanted = min(k, available)
    if not wanted:
        return [(np.empty(0, np.int64), np.empty(0, np.float32))] * len(units)
    places = file.candidates(units, min(available, k + _MARGIN), mask, effort)
    if effort is None and not file.exact:
        for greater in file.greater_efforts():
            short = [query for query, found in enumerate(places) if len(found) < wanted]
            if not short:
                break
            further = file.candidates(units[short], k + _MARGIN, mask, greater)
            for query, found in zip(short, further, strict=True):
                places[query] = found
    answers = []
    for unit, found in zip(units, places, strict=True):
        while True:
            keys = file.keys[found]
            ranking = best(keys, exact_scores(vectors_of(keys), unit), len(keys))
            scores = ranking[1]
            # ties may go beyond the fetched rows
            if not file.exact or len(found) >= available or scores[k - 1] - scores[-1] >= _EQUAL:
                break
            [found] = file.candidates(unit[None], min(available, 2 * len(found)), mask)
        answers.append((ranking[0][:k], ranking[1][:k]))
    return answers


def _search_by_effort(
    file: "VectorFile", store: Store, units: Floats, k: int, effort: "Effort"
) -> list[Ranking]:
    return search_file(file, store.vectors, units, k, None, effort)


def _last(keys: Sequence[int] | Keys) -> int:
    return int(keys[-1]) if len(keys) else 0
