"""The rows of an index: segments, each searched by itself and the answers merged, and which rows are masked.

A deleted row stays in its segment, masked, until segments are written anew.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from promptcli.data.vectors.formats import BLOCK, Floats
from promptcli.errors import UsageError
from promptcli.index.factory import Effort, check_training, copy, make, needed, reason, row_bytes
from promptcli.index.labels import RowLabels
from promptcli.index.rows import Hit, RowNumbers, Rows, unit_rows
from promptcli.index.segment import Mask, Segment, of_vectors

#: What a process takes before the first row is read.
_STARTED = 600 << 20
#: FAISS's vectors double when they are full, so that for a moment three times their size is there.
_GROWTH = 3


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


#: Rows that a filter leaves and that are compared one by one, whatever the index.
_FEW = 20_000


class Stack:
    """Segments one on another; rows are numbered through all of them, masked ones too."""

    def __init__(self, segments: list[Segment], deleted: RowNumbers | None = None) -> None:
        self.segments = segments
        masked = np.zeros(sum(map(len, segments)), bool)
        masked[[] if deleted is None else deleted] = True
        self.masked = masked

    def __len__(self) -> int:
        return self._count

    @property
    def masked(self) -> Mask:
        """Over all rows, whether each is masked; set as a whole."""
        return self._masked

    @masked.setter
    def masked(self, masked: Mask) -> None:
        self._masked, self._count = masked, len(masked) - int(masked.sum())

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
        self, units: Floats, k: int, allowed: Mask | None, effort: Effort, *, exact: bool = False
    ) -> list[tuple[RowNumbers, Floats]]:
        """Return rows and scores of the k nearest of each query, best first.

        Args:
            units: (q, d), of length 1.
            k: At least 1.
            allowed: The rows that may be answers, masked ones too; None: all that are not masked.
            effort: Of approximate segments.
            exact: The segments are exact.
        """
        if allowed is not None and not exact and 0 < allowed.sum() <= _FEW:
            few = np.flatnonzero(allowed)
            among = of_vectors(self.vectors(few)).search(units, k, None, effort)
            return [(few[rows], scores) for rows, scores in among]
        allowed = ~self.masked if allowed is None and len(self) < len(self.masked) else allowed
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
        found, start = np.empty((len(rows), self.segments[0].index.d), np.float32), 0
        for segment in self.segments:
            own = (rows >= start) & (rows < start + len(segment))
            if own.any():
                found[own] = segment.vectors(rows[own] - start)
            start += len(segment)
        return found

    def rewrite(self, first: int, builder: Builder, more: Callable[[], None] = lambda: None) -> None:
        """Write the segments from ``first`` on anew without what is deleted, and what ``more`` adds after them."""
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
