"""Rows of token ids of any lengths in one array, which is faster and smaller than lists of ids."""

import functools
import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

_INTEGER = "i"  #: C's integer: an id
_ID_BYTES = array(_INTEGER).itemsize


class RaggedIds:
    """n rows of token ids, one after the other in an array. Indexing returns a row as a list."""

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
    def repeat(cls, ids: Sequence[int], counts: np.ndarray) -> "RaggedIds":
        """Return a row for each of n ``counts``: the ids, repeated that many times."""
        matrix = np.empty((int(counts.sum()), len(ids)), np.intc)
        matrix[:] = ids
        return cls(matrix.ravel(), counts * len(ids))

    @classmethod
    def split_at(cls, end: int | None, ids: np.ndarray) -> "RaggedIds":
        """Return the rows of an array in which the id ``end`` closes each row, without that id."""
        stays = ids != end
        lengths = np.flatnonzero(~stays)
        lengths[1:] -= lengths[:-1] + 1
        return cls(ids[stays], lengths)

    @classmethod
    def join(cls, blocks: "Sequence[RaggedIds]") -> "RaggedIds":
        """Return the rows of all blocks, one block after the other."""
        if len(blocks) == 1:
            return blocks[0]
        ids = [np.empty(0, np.intc), *(block.ids for block in blocks)]
        lengths = [np.empty(0, np.int64), *(block.lengths for block in blocks)]
        return cls(np.concatenate(ids), np.concatenate(lengths))

    @classmethod
    def join_rows(cls, blocks: "Sequence[RaggedIds]") -> "RaggedIds":
        """Return row i of every block as one row, for each i."""
        in_order = np.arange(len(blocks) * len(blocks[0])).reshape(len(blocks), -1).T
        rows = cls.join(blocks).take(in_order.ravel())
        return cls(rows.ids, rows.lengths.reshape(-1, len(blocks)).sum(1))

    def surround(self, before: Sequence[int], after: Sequence[int]) -> "RaggedIds":
        """Return the rows with the same ids before and after each."""
        if not before and not after:
            return self
        once = np.ones(len(self), np.int64)
        blocks = [RaggedIds.repeat(before, once), self, RaggedIds.repeat(after, once)]
        return RaggedIds.join_rows(blocks)

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """The index of each row's first id, (n,)."""
        starts: np.ndarray = self.lengths.cumsum() - self.lengths
        return starts

    def take(self, numbers: np.ndarray) -> "RaggedIds":
        """Return the rows of these numbers."""
        return self.take_ranges(self.starts[numbers], self.lengths[numbers])

    def slice_rows(self, bounds: slice) -> "RaggedIds":
        """Return each row without some ids at its start and end.

        ``bounds`` is like ``slice(1, -1)``; each bound is None or counted from its own end.
        """
        start, stop = bounds.start or 0, bounds.stop or 0
        return self.take_ranges(self.starts + start, (self.lengths - start + stop).clip(min=0))

    def take_ranges(self, starts: np.ndarray, lengths: np.ndarray) -> "RaggedIds":
        """Return a row for each start, an index of the array, and each length."""
        ends = lengths.cumsum()
        indices = np.repeat(starts - ends + lengths, lengths)
        indices += np.arange(len(indices))
        return RaggedIds(self.ids[indices], lengths)

    def remove(self, token: int) -> "RaggedIds":
        """Return the rows without an id."""
        stays = self.ids != token
        return RaggedIds(self.ids[stays], self._sums(stays))

    def replace_by(self, table: "RaggedIds") -> "RaggedIds":
        """Return the rows with each id i replaced by row i of a table."""
        replacements = table.take(self.ids)
        return RaggedIds(replacements.ids, self._sums(replacements.lengths))

    def _sums(self, numbers: np.ndarray) -> np.ndarray:
        """Return the sum over each row, (n,), of one number for each id."""
        sums_before = np.concatenate([[0], numbers.cumsum(dtype=np.int64)])
        ends = self.starts + self.lengths
        sums: np.ndarray = sums_before[ends] - sums_before[self.starts]
        return sums

    def fill_empty(self, token: int) -> "RaggedIds":
        """Return the rows, with an id in each empty one."""
        if self.lengths.all():
            return self
        fillings = RaggedIds.repeat([token], (self.lengths == 0).astype(np.int64))
        return RaggedIds.join_rows([self, fillings])

    def to_matrix(self, width: int, pad: int) -> np.ndarray:
        """Return the rows as a matrix (n, ``width``) int64, padded with an id."""
        if (self.lengths == width).all():
            return self.ids.reshape(len(self), width).astype(np.int64)
        matrix = np.full((len(self), width), pad, dtype=np.int64)
        matrix[np.arange(width) < self.lengths[:, None]] = self.ids
        return matrix

    def to_bytes(self) -> list[bytes]:
        """Return the ids of each row as C's integers."""
        content = self.ids.tobytes()
        ends = (self.lengths.cumsum() * _ID_BYTES).tolist()
        return [content[start:end] for start, end in itertools.pairwise([0, *ends])]

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
