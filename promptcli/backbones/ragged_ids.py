"""Rows of token ids of any lengths in one array, so that no Python object per id is made between
tokenizer and batches.
"""

import functools
import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

_INTEGER = "i"  #: C's integer: an id
_ID_BYTES = array(_INTEGER).itemsize


class RaggedIds:
    """n rows of token ids, one after the other; indexing returns a row as a list."""

    def __init__(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        self.ids = ids  #: (sum of lengths,) int32
        self.lengths = lengths  #: (n,) int64

    @classmethod
    def of(cls, rows: "Iterable[Sequence[int]]") -> "RaggedIds":
        """Return lists of ids as rows; ``RaggedIds`` are returned unchanged."""
        if isinstance(rows, RaggedIds):
            return rows
        # bytes are joined many times faster than lists
        packed = [array(_INTEGER, row).tobytes() for row in rows]
        lengths = np.fromiter(map(len, packed), np.int64, len(packed)) // _ID_BYTES
        return cls(np.frombuffer(b"".join(packed), np.intc), lengths)

    @classmethod
    def repeated(cls, ids: Sequence[int], counts: np.ndarray) -> "RaggedIds":
        """Return a row for each of n ``counts``: the ids, repeated that many times."""
        whole = np.empty((int(counts.sum()), len(ids)), np.intc)
        whole[:] = ids
        return cls(whole.ravel(), counts * len(ids))

    @classmethod
    def ended_by(cls, end: int | None, ids: np.ndarray) -> "RaggedIds":
        """Return the rows of an array in which the id ``end`` closes each row, without it."""
        stays = ids != end
        lengths = np.flatnonzero(~stays)
        lengths[1:] -= lengths[:-1] + 1
        return cls(ids[stays], lengths)

    @classmethod
    def joined(cls, parts: "Sequence[RaggedIds]") -> "RaggedIds":
        """Return the rows of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        ids = [np.empty(0, np.intc), *(part.ids for part in parts)]
        lengths = [np.empty(0, np.int64), *(part.lengths for part in parts)]
        return cls(np.concatenate(ids), np.concatenate(lengths))

    @classmethod
    def side_by_side(cls, parts: "Sequence[RaggedIds]") -> "RaggedIds":
        """Return row i of every part as one row, for each i."""
        in_order = np.arange(len(parts) * len(parts[0])).reshape(len(parts), -1).T
        rows = cls.joined(parts).take(in_order.ravel())
        return cls(rows.ids, rows.lengths.reshape(-1, len(parts)).sum(1))

    def between(self, before: Sequence[int], after: Sequence[int]) -> "RaggedIds":
        """Return the rows with the same ids before and after each."""
        if not before and not after:
            return self
        once = np.ones(len(self), np.int64)
        parts = [RaggedIds.repeated(before, once), self, RaggedIds.repeated(after, once)]
        return RaggedIds.side_by_side(parts)

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """Where each row begins, (n,)."""
        starts: np.ndarray = self.lengths.cumsum() - self.lengths
        return starts

    def take(self, numbers: np.ndarray) -> "RaggedIds":
        """Return the rows of these numbers."""
        return self.ranges(self.starts[numbers], self.lengths[numbers])

    def within(self, part: slice) -> "RaggedIds":
        """Return a part of each row, without some ids at its start and end.

        ``part`` is like ``slice(1, -1)``; each bound is None or counted from its own end.
        """
        start, stop = part.start or 0, part.stop or 0
        return self.ranges(self.starts + start, (self.lengths - start + stop).clip(min=0))

    def ranges(self, starts: np.ndarray, lengths: np.ndarray) -> "RaggedIds":
        """Return a row of ``lengths`` ids from each start in the array."""
        ends = lengths.cumsum()
        places = np.repeat(starts - ends + lengths, lengths)
        places += np.arange(len(places))
        return RaggedIds(self.ids[places], lengths)

    def without(self, token: int) -> "RaggedIds":
        """Return the rows without an id."""
        stays = self.ids != token
        return RaggedIds(self.ids[stays], self._sums(stays))

    def replaced(self, table: "RaggedIds") -> "RaggedIds":
        """Return the rows with each id replaced by that row of a table."""
        replacements = table.take(self.ids)
        return RaggedIds(replacements.ids, self._sums(replacements.lengths))

    def _sums(self, numbers: np.ndarray) -> np.ndarray:
        """Return the sum over each row, (n,), of one number for each id."""
        until = np.concatenate([[0], numbers.cumsum(dtype=np.int64)])
        sums: np.ndarray = until[self.starts + self.lengths] - until[self.starts]
        return sums

    def filled(self, token: int) -> "RaggedIds":
        """Return the rows with an id in those that are empty."""
        if self.lengths.all():
            return self
        fillings = RaggedIds.repeated([token], (self.lengths == 0).astype(np.int64))
        return RaggedIds.side_by_side([self, fillings])

    def padded(self, width: int, pad: int) -> np.ndarray:
        """Return the rows as a matrix (n, ``width``) int64, filled up with an id at their ends."""
        if (self.lengths == width).all():
            return self.ids.reshape(len(self), width).astype(np.int64)
        matrix = np.full((len(self), width), pad, dtype=np.int64)
        matrix[np.arange(width) < self.lengths[:, None]] = self.ids
        return matrix

    def packed(self) -> list[bytes]:
        """Return the packed ids of each row."""
        whole = self.ids.tobytes()
        ends = (self.lengths.cumsum() * _ID_BYTES).tolist()
        return [whole[start:end] for start, end in itertools.pairwise([0, *ends])]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> list[int]:
        """Return one row as a list of ids."""
        start = self.starts[number]
        row: list[int] = self.ids[start : start + self.lengths[number]].tolist()
        return row

    def __iter__(self) -> Iterator[list[int]]:
        ids = self.ids.tolist()
        ends = self.lengths.cumsum().tolist()
        return (ids[start:end] for start, end in itertools.pairwise([0, *ends]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Iterable):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
