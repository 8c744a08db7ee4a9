"""What an index keeps of each row but its vector: id and text. Knows nothing of FAISS or of folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from promptcli.errors import UsageError

Floats = NDArray[np.float32]
Ids = Sequence[int] | Sequence[str]
#: Of the columns as they are written.
_TYPES = (pa.int64(), pa.large_string())

#: File names of the columns; the second is absent where there are no texts.
IDS, TEXTS = "ids.parquet", "texts.parquet"

#: Rows named in a message.
_NAMED = 5


class Hit(NamedTuple):
    """One answer: rank from 1, the row's id and text (None where the index has none), cosine."""

    rank: int
    id: int | str
    text: str | None
    score: float


class RowLabels:
    """Ids and texts of n rows, as Arrow columns: a file of them is opened without making a Python object each."""

    def __init__(self, ids: Any, texts: Any) -> None:
        self._ids, self._texts = ids, texts

    @classmethod
    def of(cls, ids: Ids, texts: Sequence[str] | None) -> "RowLabels":
        """Make the columns from n ids and n texts (or None)."""
        return cls(_column(ids), None if texts is None else pa.chunked_array([pa.array(texts, pa.large_string())]))

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def has_texts(self) -> bool:
        """Whether the rows have texts."""
        return self._texts is not None

    def extended(self, ids: Ids, texts: Sequence[str] | None) -> "RowLabels":
        """Return the rows with more after them.

        Row numbers as ids go on from the last row. Where one side has texts as ids and the other numbers, the
        numbers become texts.

        Raises:
            UsageError: texts on one side only.
        """
        if (texts is None) == self.has_texts:
            has = "has texts and the new rows have none" if self.has_texts else "has no texts and the new rows have"
            raise UsageError(f"the index {has}; build it anew from all rows with `promptcli index build`")
        moved: list[Any] = [len(self) + value if isinstance(value, int) else value for value in ids]
        new = RowLabels.of(moved, texts)
        old_ids, new_ids = self._ids, new._ids
        if old_ids.type != new_ids.type:
            old_ids, new_ids = old_ids.cast(pa.large_string()), new_ids.cast(pa.large_string())
        joined = pa.chunked_array([*old_ids.chunks, *new_ids.chunks])
        if texts is None:
            return RowLabels(joined, None)
        return RowLabels(joined, pa.chunked_array([*self._texts.chunks, *new._texts.chunks]))

    def hits(self, rows: NDArray[np.int64], scores: Floats) -> list[Hit]:
        """Return rows and their scores, best first, as hits."""
        return [
            Hit(rank, self._ids[row].as_py(), self._texts[row].as_py() if self.has_texts else None, score)
            for rank, (row, score) in enumerate(zip(rows.tolist(), scores.tolist(), strict=True), 1)
        ]

    def write_ids(self, path: Path) -> None:
        """Write the ids as a Parquet file."""
        pq.write_table(pa.table({"id": self._ids}), path)

    def write_texts(self, path: Path) -> None:
        """Write the texts as a Parquet file."""
        pq.write_table(pa.table({"text": self._texts}), path, compression="zstd")

    @classmethod
    def read(cls, ids: Path, texts: Path | None) -> "RowLabels":
        """Read what ``write_ids`` and ``write_texts`` wrote.

        Raises:
            ValueError: a file that is none of theirs, or not equally many rows in both.
        """
        try:
            # not memory-mapped, and not the dataset reader, which would keep the files open by name
            columns = [pq.ParquetFile(path).read([name]).column(name) for path, name in _columns(ids, texts)]
            if any(column.null_count or column.type not in _TYPES for column in columns):
                raise ValueError("a column of its Parquet file holds neither texts nor whole numbers")
        except (pa.ArrowException, OSError, KeyError) as error:
            raise ValueError(f"its Parquet file cannot be read: {str(error).splitlines()[0][:120]}") from None
        if len({len(column) for column in columns}) > 1:
            raise ValueError("ids and texts are not equally many")
        return cls(columns[0], columns[1] if texts else None)


def check_counts(vectors: Floats, ids: Ids, texts: Sequence[str] | None) -> None:
    """Refuse vectors that are no (n, d) matrix with n ids and n texts.

    Raises:
        UsageError: they are not.
    """
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise UsageError(f"vectors of shape {vectors.shape} cannot be indexed; give (n, d), at least one row")
    for name, given in (("ids", ids), ("texts", texts)):
        if given is not None and len(given) != len(vectors):
            raise UsageError(f"{len(vectors)} vectors and {len(given)} {name} do not belong together")


def unit_rows(vectors: Floats, name: str = "row") -> tuple[Floats, list[int]]:
    """Return vectors (n, d) scaled to length 1, and the rows that are zero and stay so.

    Raises:
        UsageError: a vector with a NaN or an infinity; the rows are named, counted from 0.
    """
    units = np.array(vectors, dtype=np.float32, order="C")
    wrong = np.flatnonzero(~np.isfinite(units).all(axis=1))
    if len(wrong):
        raise UsageError(f"{named_rows(wrong.tolist(), name)}: the vector has a NaN or an infinity; embed it again")
    # The largest number first: squares of very large or very small float32 numbers are infinite or zero.
    largest = np.abs(units).max(axis=1, keepdims=True)
    units /= np.where(largest > 0, largest, np.float32(1))
    lengths = np.linalg.norm(units, axis=1, keepdims=True)
    units /= np.where(lengths > 0, lengths, np.float32(1))
    return units, np.flatnonzero(largest[:, 0] == 0).tolist()


def named_rows(rows: Sequence[int], name: str = "row") -> str:
    """Return ``row 3`` or ``7 rows (3, 4, 5, 8, 9, ...)``."""
    if len(rows) == 1:
        return f"{name} {rows[0]}"
    plural = {"row": "rows", "query": "queries"}[name]
    return f"{len(rows)} {plural} ({', '.join(map(str, rows[:_NAMED]))}{', ...' if len(rows) > _NAMED else ''})"


def _columns(ids: Path, texts: Path | None) -> list[tuple[Path, str]]:
    return [(ids, "id"), *([(texts, "text")] if texts else [])]


def _column(ids: Ids) -> Any:
    texts = not isinstance(ids, range) and any(isinstance(value, str) for value in ids)
    values = pa.array([str(value) for value in ids], pa.large_string()) if texts else pa.array(ids, pa.int64())
    return pa.chunked_array([values])
