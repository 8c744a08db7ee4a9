"""VectorIndex: cosine search over unit vectors under FAISS. Knows nothing of encoders or of an index's folder.

Its rows stand in segments, each searched by itself and the answers merged. They are numbered through all of them: a
deleted row stays in its segment, masked, until segments are written again.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from promptcli.data.vectors.formats import BLOCK, Floats
from promptcli.errors import PromptcliError, UsageError
from promptcli.index.factory import (
    Effort,
    adjusted,
    check_training,
    choose,
    copy,
    faiss,
    make,
    needed,
    reason,
    row_bytes,
)
from promptcli.index.labels import RowLabels
from promptcli.index.recall import Truth, queries_for, tune
from promptcli.index.rows import Hit, Recall, RowNumbers, Rows, is_number, named_ids, unit_rows
from promptcli.index.segment import Mask, Segment, of_vectors

#: recall@10 to be reached where nothing is said.
TARGET = 0.95
#: Ids that are looked for at once: each look goes through those of the whole index.
_NAMES = 1 << 18
#: Segments of at most so many rows, or of twice as many as come in, are joined with new ones.
_SMALL = 1024
#: Rows that a filter leaves and that are compared one by one, whatever the index.
_FEW = 20_000
#: What a process takes before the first row is read.
_STARTED = 600 << 20
#: FAISS's vectors double when they are full, so that for a moment three times their size is there.
_GROWTH = 3


def set_threads(threads: int) -> None:
    """Let FAISS use that many processor threads."""
    faiss.omp_set_num_threads(threads)


@dataclass
class Builder:
    """Turns blocks into segments, each small enough for the memory, and hands each on when it is whole."""

    empty: Any  #: FAISS's index, trained, without rows.
    store: Callable[[Segment], Segment] = lambda segment: segment  #: Brings a segment to the disk, say.
    memory: int | None = None  #: Bytes that the process may take; None: as many as there are.
    made: list[Segment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._width, self._bytes = self.empty.d, _GROWTH * row_bytes(self.empty)
        self._room = None if self.memory is None else self.memory - _STARTED - self._bytes * BLOCK
        if self._room is not None and self._room < 0:
            least = -(-(_STARTED + self._bytes * BLOCK) // (1 << 20))
            raise UsageError(f"memory of {self.memory // (1 << 20)} MB is too little; give at least {least}MB")  # type: ignore[operator]
        self._index: Any = None
        self._labels: list[RowLabels] = []
        self._held = 0

    def add(self, units: Floats, labels: RowLabels) -> None:
        """Take rows: unit vectors (m, d), and their ids and texts."""
        if self._index is None:
            self._index = copy(self.empty)
        self._index.add(units)
        self._labels.append(labels)
        self._held += self._bytes * len(units) + 3 * labels.nbytes  # Arrow's columns are joined, then written
        if self._room is not None and self._held > self._room:
            self.finish()

    def finish(self) -> list[Segment]:
        """Hand on what is held, and return all segments."""
        if self._index is not None:
            segment = Segment(self._index, RowLabels.joined(self._labels))
            self._index, self._labels, self._held = None, [], 0
            self.made.append(self.store(segment))
        return self.made


def trained(factory: str, rows: Rows) -> Any:
    """Return the index of a factory string without rows, trained on a sample of them.

    Raises:
        UsageError: a factory that FAISS does not make, or too few rows to train it.
    """
    count, width = rows.shape
    index = make(factory, width)
    check_training(index, count, factory)
    if not index.is_trained:
        wanted = max(BLOCK, needed(index))
        units, _ = unit_rows(rows.sample(wanted)[1])
        with refusals(factory, rows.shape):
            index.train(units)
    return index


@contextlib.contextmanager
def refusals(factory: str, shape: tuple[int, int]) -> Iterator[None]:
    """Turn what FAISS raises in the block into one line about the factory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise UsageError(f"factory {factory!r} does not index {shape} vectors: {reason(error)}") from None


class VectorIndex:
    """n vectors of width d with their ids and texts."""

    def __init__(
        self,
        segments: list[Segment],
        empty: Any,
        factory: str,
        recall: Recall | None = None,
        effort: Effort = Effort(),  # noqa: B008
        deleted: RowNumbers | None = None,
        numbered: int | None = None,
    ) -> None:
        self.segments = segments
        masked = np.zeros(sum(map(len, segments)), bool)
        masked[[] if deleted is None else deleted] = True
        self.masked = masked
        self.empty = empty  #: FAISS's index, trained, without rows.
        self.factory = factory  #: FAISS's description of the index.
        self.recall = recall  #: recall@10 as measured at the build; None for an exact index.
        self.effort = effort  #: Of a search where nothing else is said.
        self.why = ""  #: How the factory was chosen, where nobody named one.
        #: The number of the next row without an id.
        self.numbered = len(masked) if numbered is None else numbered
        #: Rows of the last ``build`` or ``add`` whose vector is zero; their score is 0 for every query.
        self.zero_rows: list[int] = []
        #: Where a segment goes when it is whole, and the memory that a process may take until then.
        self.store: Callable[[Segment], Segment] = lambda segment: segment
        self.memory: int | None = None

    @classmethod
    def build(
        cls,
        rows: Rows,
        factory: str | None = None,
        *,
        target: float = TARGET,
        memory: int | None = None,
        store: Callable[[Segment], Segment] = lambda segment: segment,
    ) -> "VectorIndex":
        """Index rows in one pass; an approximate index is trained on a sample of them and its recall@10 measured.

        Args:
            rows: n of width d; scaled to length 1 here. Numbers as ids are row numbers.
            factory: FAISS factory string; ``Flat`` is exact. None: chosen from n, d and ``target``.
            target: recall@10, above 0, at most 1.
            memory: Bytes that the process may take; None: what it takes.
            store: Brings a segment to the disk when it is whole, and returns it as it is there.

        Raises:
            UsageError: a factory that FAISS does not make for inner products, too few vectors to train it, a vector
                that is not finite, or too little memory.
        """
        if not 0 < target <= 1:
            raise UsageError(f"a target recall of {target} cannot be; give one above 0 and at most 1")
        count, width = rows.shape
        chosen, why = (factory, "") if factory is not None else choose(count, width, target)
        made = cls([], trained(chosen, rows), chosen)
        made.why, made.store, made.memory = why, store, memory
        truth = None if made.exact else Truth(*rows.sample(queries_for(count)))
        made._take(rows, truth)
        if truth is not None:
            made.recall, made.effort = tune(
                truth, lambda units, k, effort: made.nearest(units, k, effort=effort), made.empty, target
            )
        return made

    @property
    def rows(self) -> int:
        """Number of vectors, n."""
        return self._rows

    @property
    def masked(self) -> Mask:
        """Over all rows, whether each is masked; set as a whole."""
        return self._masked

    @masked.setter
    def masked(self, masked: Mask) -> None:
        self._masked, self._rows = masked, len(masked) - int(masked.sum())

    @property
    def has_texts(self) -> bool:
        """Whether the rows have texts; one without rows has whatever comes."""
        return all(segment.labels.has_texts for segment in self.segments)

    @property
    def text_ids(self) -> bool:
        """Whether some ids are texts rather than numbers: then all are shown so."""
        return any(segment.labels.text_ids for segment in self.segments)

    @property
    def deleted(self) -> RowNumbers:
        """The rows that are masked."""
        return np.flatnonzero(self.masked)

    @property
    def width(self) -> int:
        """Numbers in a vector, d."""
        return int(self.empty.d)

    @property
    def exact(self) -> bool:
        """Whether every vector is compared, in full precision."""
        return type(faiss.downcast_index(self.empty)) in (faiss.IndexFlat, faiss.IndexFlatIP)

    @property
    def trains(self) -> bool:
        """Whether ``empty`` holds what was learned from rows."""
        return not make(self.factory, self.width).is_trained

    def add(self, rows: Rows) -> None:
        """Append rows; row numbers as ids go on from the last row.

        Raises:
            UsageError: another width, texts on one side only, or a vector that is not finite.
        """
        self._check(rows)
        self._take(rows)

    def upsert(self, rows: Rows) -> int:
        """Put rows in the place of those with their ids, and append those whose id is new; return how many were there.

        The rows are read twice, block by block: for their ids, and when they are indexed.

        Raises:
            UsageError: as for ``add``, or an id is given twice.
        """
        self._check(rows)
        old, hashes, numbers, highest = [], [], not self.text_ids, -1
        for names in _names_of(rows):
            old.append(self.where(names)[0])
            hashes.append(np.fromiter(map(hash, names), np.int64, len(names)))
            numbers = numbers and all(map(is_number, names))
            highest = max(highest, max(map(int, names))) if numbers else -1
        _check_once(rows, np.concatenate(hashes))
        before, masked = self.masked, np.concatenate(old)
        self._mask(masked)
        try:
            self._take(rows, names=int if numbers else str)
        except BaseException:
            self.masked = before
            raise
        self.numbered = max(self.numbered, 1 + highest)
        return len(masked)

    def delete(self, ids: Collection[int | str]) -> int:
        """Delete the rows with these ids and return how many they were.

        Raises:
            UsageError: an id that no row has: then nothing is deleted; or FAISS cannot leave rows of it out.
        """
        names = names_of(ids)
        rows, found = self.where(names)
        if unknown := sorted(names - found):
            few = f"{named_ids(unknown)} of {len(names):,}"
            raise UsageError(f"ids that are not in the index: {few}; nothing was deleted")
        self._mask(rows)
        return len(rows)

    def compact(self) -> None:
        """Write all segments again, as few as the memory allows, without the rows that are deleted.

        Raises:
            UsageError: the index does not give its vectors back.
        """
        with refusals(self.factory, (self.rows, self.width)):
            self._rewrite(0, self._builder())

    def search(
        self,
        queries: Floats,
        k: int = 10,
        *,
        nprobe: int | None = None,
        ef: int | None = None,
        allow: Collection[int | str] | None = None,
        deny: Collection[int | str] | None = None,
    ) -> list[list[Hit]]:
        """Return the k nearest rows of each of q queries, best first; all n where k is larger, never a non-row.

        Equal scores stand in the order of the rows, whatever the batch. An approximate index may return fewer.

        Args:
            queries: (q, d); scaled to length 1 here.
            k: At least 1.
            nprobe: Lists of an inverted file (IVF) that are read; None: as measured at the build.
            ef: Candidates that a graph (HNSW) keeps; None: as measured at the build.
            allow: Only rows with these ids may be answers; where they are few, they are compared one by one.
            deny: Rows with these ids may not.

        Raises:
            UsageError: another width, k below 1, a query that is not finite, what the index does not have, or no
                row with one of the ids of ``allow``.
        """
        if not isinstance(k, int | np.integer) or k < 1:
            raise UsageError(f"k is {k!r}; give a whole number, at least 1")
        if queries.ndim != 2 or queries.shape[1] != self.width:
            raise UsageError(f"queries of shape {queries.shape} do not fit an index of width {self.width}")
        effort = adjusted(self.effort, self.empty, self.factory, nprobe=nprobe, ef=ef)
        units, _ = unit_rows(queries, "query")
        allowed = self._allowed(allow, deny)
        return [self.hits(rows, scores) for rows, scores in self.nearest(units, k, allowed, effort)]

    def live(self) -> RowNumbers:
        """Return the rows that are not deleted."""
        return np.flatnonzero(~self.masked)

    def where(self, names: Collection[str]) -> tuple[RowNumbers, set[str]]:
        """Return the rows that have one of these ids and are not deleted, and the ids found."""
        rows: list[int] = []
        found: set[str] = set()
        start = 0
        for segment in self.segments:
            for row, name in segment.labels.where(names):
                if not self.masked[start + row]:
                    rows.append(start + row)
                    found.add(name)
            start += len(segment)
        return np.array(rows, np.int64), found

    def nearest(
        self, units: Floats, k: int, allowed: Mask | None = None, effort: Effort | None = None
    ) -> list[tuple[RowNumbers, Floats]]:
        """Return rows and scores of the k nearest of each query, best first; fewer where there are not as many.

        Args:
            units: (q, d), of length 1.
            k: At least 1.
            allowed: The rows that may be answers, masked ones too; None: all that are not masked.
            effort: Of approximate segments; None: the index's own.
        """
        k, effort = min(k, self.rows), effort or self.effort
        if allowed is not None and not self.exact and 0 < allowed.sum() <= _FEW:
            few = np.flatnonzero(allowed)
            among = of_vectors(self.vectors(few)).search(units, k, None, effort)
            return [(few[rows], scores) for rows, scores in among]
        allowed = ~self.masked if allowed is None and self.rows < len(self.masked) else allowed
        start, parts = 0, []
        for segment in self.segments:
            own = None if allowed is None else allowed[start : start + len(segment)]
            own = None if own is None or own.all() else own
            found = segment.search(units, k, own, effort)
            parts.append([(start + rows, scores) for rows, scores in found] if start else found)
            start += len(segment)
        if len(parts) == 1:
            return parts[0]
        return [_merged([part[number] for part in parts], k) for number in range(len(units))]

    def hits(self, rows: RowNumbers, scores: Floats) -> list[Hit]:
        """Return rows and their scores, best first, as hits."""
        if len(self.segments) == 1:
            return self.segments[0].labels.hits(rows, scores)
        texts, found = self.text_ids, []
        for rank, (row, score) in enumerate(zip(rows.tolist(), scores.tolist(), strict=True), 1):
            segment, own = self._segment_of(row)
            name, text = segment.labels.at(own)
            found.append(Hit(rank, str(name) if texts else name, text, score))
        return found

    def vectors(self, rows: RowNumbers) -> Floats:
        """Return the unit vectors (m, d) of m rows, as exactly as the index keeps them.

        Raises:
            UsageError: it keeps them in a way that does not give them back.
        """
        found, start = np.empty((len(rows), self.width), np.float32), 0
        for segment in self.segments:
            own = (rows >= start) & (rows < start + len(segment))
            if own.any():
                found[own] = segment.vectors(rows[own] - start)
            start += len(segment)
        return found

    def _rewrite(self, first: int, builder: Builder, more: Callable[[], None] = lambda: None) -> None:
        """Write the segments from ``first`` on again without what is deleted, and what ``more`` adds after them."""
        start = sum(map(len, self.segments[:first]))
        kept = start
        for segment in self.segments[first:]:
            for units, labels in segment.blocks(~self.masked[start : start + len(segment)]):
                builder.add(units, labels)
            start += len(segment)
        more()
        made = builder.finish()
        self.segments = [*self.segments[:first], *made]
        self.masked = np.concatenate([self.masked[:kept], np.zeros(sum(map(len, made)), bool)])

    def _check(self, rows: Rows) -> None:
        if rows.shape[1] != self.width:
            raise UsageError(f"vectors of width {rows.shape[1]} do not go into an index of width {self.width}")
        if self.rows and rows.has_texts != self.has_texts:
            has = "has texts and the new rows have none" if self.has_texts else "has no texts and the new rows have"
            raise UsageError(f"the index {has}; build it again from all rows with `promptcli index build`")

    def _builder(self) -> Builder:
        return Builder(self.empty, self.store, self.memory)

    def _take(self, rows: Rows, truth: Truth | None = None, *, names: Callable[[Any], int | str] | None = None) -> None:
        """Append rows, joined with the small segments at the end.

        Numbers as ids count on from the last row, unless ``names`` says what becomes of each id.
        """
        segments, total = self.segments, rows.shape[0]
        first = len(segments)
        while first and len(segments[first - 1]) <= max(_SMALL, 2 * total) and self._keeps_vectors:
            first -= 1
            total += len(segments[first])
        builder, before, start = self._builder(), self.rows, 0
        zeros: list[int] = []

        def new() -> None:
            nonlocal start
            for block in rows.blocks():
                units, none = unit_rows(block.vectors, start=start)
                ids: Any = block.ids if names is None else [names(name) for name in block.ids]
                builder.add(units, RowLabels.of(ids, block.texts, self.numbered if names is None else 0))
                if truth is not None:
                    truth.add(units)
                zeros.extend(before + row for row in none)
                start += len(units)

        with refusals(self.factory, rows.shape):
            self._rewrite(first, builder, new)
        self.numbered, self.zero_rows = self.numbered + start, zeros

    @property
    def _keeps_vectors(self) -> bool:
        """Whether vectors come back as they went in, so that nothing is lost when they are indexed again."""
        index = faiss.downcast_index(self.empty)
        finest = index.refine_index if isinstance(index, faiss.IndexRefine) else getattr(index, "storage", index)
        return int(getattr(faiss.downcast_index(finest), "code_size", 0)) >= 2 * self.width

    def _mask(self, rows: RowNumbers) -> None:
        masked = self.masked.copy()
        masked[rows] = True
        for segment in self.segments[:1]:  # FAISS cannot leave rows of every kind of index out
            some = np.arange(len(segment)) > 0
            try:
                segment.search(np.zeros((1, self.width), np.float32), 1, some, self.effort)
            except PromptcliError as error:
                raise UsageError(f"rows of an index of factory {self.factory!r} cannot be deleted: {error}") from None
        self.masked = masked

    def _allowed(self, allow: Collection[int | str] | None, deny: Collection[int | str] | None) -> Mask | None:
        if allow is None and not deny:
            return None
        allowed = ~self.masked
        if allow is not None:
            rows, _ = self.where(names_of(allow))
            if not len(rows):
                raise UsageError(f"none of the {len(allow):,} allowed ids is in the index; see `promptcli index info`")
            allowed = np.zeros_like(allowed)
            allowed[rows] = True
        if deny:
            allowed[self.where(names_of(deny))[0]] = False
        return allowed

    def _segment_of(self, row: int) -> tuple[Segment, int]:
        for segment in self.segments:
            if row < len(segment):
                return segment, row
            row -= len(segment)
        raise IndexError(row)


def _merged(found: list[tuple[RowNumbers, Floats]], k: int) -> tuple[RowNumbers, Floats]:
    rows = np.concatenate([np.empty(0, np.int64), *(part[0] for part in found)])
    scores = np.concatenate([np.empty(0, np.float32), *(part[1] for part in found)])
    order = np.lexsort((rows, -scores))[:k]
    return rows[order], scores[order]


def names_of(ids: Collection[int | str]) -> set[str]:
    """Return ids as texts; a single text, whose letters they would be, is refused."""
    if isinstance(ids, str | bytes):
        raise UsageError(f"ids are {type(ids).__name__}, not a list; give [{ids!r:.40}]")
    return {str(name) for name in ids}


def _names_of(rows: Rows) -> Iterator[list[str]]:
    """Yield the ids as texts, many at once."""
    names: list[str] = []
    for block in rows.blocks():
        names += map(str, block.ids)
        if len(names) >= _NAMES:
            yield names
            names = []
    if names:
        yield names


def _check_once(rows: Rows, hashes: RowNumbers) -> None:
    """Refuse rows of which two have one id, by the hashes of all ids (n,)."""
    ordered = np.sort(hashes)
    equal = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    counts = Counter(name for names in _names_of(rows) for name in names if hash(name) in equal) if equal else {}
    if twice := next((name for name, count in counts.items() if count > 1), None):
        raise UsageError(f"the id {twice!r} is given twice; give each once")
