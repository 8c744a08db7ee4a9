"""Segments from rows that are read once, block by block, in bounded memory."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from promptcli.errors import UsageError
from promptcli.index.factory import check_training, copy, make, needed, reason, row_bytes
from promptcli.index.labels import RowLabels
from promptcli.index.rows import BLOCK, Floats, Rows, unit_rows
from promptcli.index.segment import Segment

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
