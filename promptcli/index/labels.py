"""What an index keeps of each row but its vector: id and text, as Arrow columns. Knows nothing of FAISS or of folders.

The columns of a stored index are memory-mapped: opening them reads nothing, an answer reads its own row.
"""

import bisect
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from promptcli.data.vectors.formats import Floats
from promptcli.errors import CheckFailedError
from promptcli.index.rows import Hit, Ids, RowNumbers, is_number
from promptcli.storage.parts import SMALL

#: Of the columns as they are written.
_TYPES = (pa.int64(), pa.large_string())
#: Rows that stand together in a file: each such group has a page of its own that opening reads.
_CHUNK = 1 << 20


class RowLabels:
    """Ids and texts of n rows."""

    def __init__(self, ids: Any, texts: Any) -> None:
        self._ids, self._texts = ids, texts

    @classmethod
    def of(cls, ids: Ids, texts: Sequence[str] | None, start: int = 0) -> "RowLabels":
        """Make the columns from n ids, numbers among them counted from ``start``, and n texts (or None)."""
        return cls(
            _column(ids, start), None if texts is None else pa.chunked_array([pa.array(texts, pa.large_string())])
        )

    @classmethod
    def joined(cls, parts: "Sequence[RowLabels]") -> "RowLabels":
        """Return the rows of all parts, one after another; numbers next to texts as ids become texts."""
        kind = pa.large_string() if any(part.text_ids for part in parts) else pa.int64()
        ids = [chunk for part in parts for chunk in part._ids.cast(kind).chunks]
        has = all(part.has_texts for part in parts)
        texts = pa.chunked_array([chunk for part in parts for chunk in part._texts.chunks]) if has else None
        return cls(pa.chunked_array(ids, kind), texts)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def has_texts(self) -> bool:
        """Whether the rows have texts."""
        return self._texts is not None

    @property
    def text_ids(self) -> bool:
        """Whether the ids are texts rather than numbers."""
        return bool(self._ids.type == pa.large_string())

    @property
    def nbytes(self) -> int:
        """Bytes of both columns."""
        return int(self._ids.nbytes + (self._texts.nbytes if self.has_texts else 0))

    def part(self, start: int, kept: NDArray[np.bool_]) -> "RowLabels":
        """Return the rows from ``start`` on where ``kept`` (m,) holds."""
        mask = pa.array(kept)
        columns = [
            None if one is None else one.slice(start, len(kept)).filter(mask) for one in (self._ids, self._texts)
        ]
        return RowLabels(*columns)

    def at(self, row: int) -> tuple[int | str, str | None]:
        """Return a row's id and text."""
        return self._name(row), self._text(row)

    @functools.cached_property
    def _name(self) -> Callable[[int], Any]:
        return _cells(self._ids)

    @functools.cached_property
    def _text(self) -> Callable[[int], Any]:
        return _cells(self._texts) if self.has_texts else lambda row: None

    def hits(self, rows: RowNumbers, scores: Floats) -> list[Hit]:
        """Return rows and their scores, best first, as hits."""
        name, text = self._name, self._text
        found = enumerate(zip(rows.tolist(), scores.tolist(), strict=True), 1)
        return [Hit(rank, name(row), text(row), score) for rank, (row, score) in found]

    def where(self, names: Collection[str]) -> Iterator[tuple[int, str]]:
        """Yield the rows whose id, as text, is one of ``names``, with the id; nothing but the column is read."""
        wanted: Any = list(names)
        if not self.text_ids:
            wanted = [int(name) for name in names if is_number(name)]
        wanted, start = pa.array(wanted, self._ids.type), 0
        for chunk in self._ids.chunks:
            for row in np.flatnonzero(pc.is_in(chunk, value_set=wanted).to_numpy(zero_copy_only=False)).tolist():
                yield start + row, str(chunk[row].as_py())
            start += len(chunk)

    def write(self, path: Path, name: str) -> None:
        """Write the column ``id`` or ``text`` as an Arrow file."""
        table = pa.table({name: self._ids if name == "id" else self._texts})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            for start in range(0, table.num_rows, _CHUNK):  # rows come in many small chunks
                writer.write_table(table.slice(start, _CHUNK).combine_chunks())

    @classmethod
    def read(cls, ids: Path, texts: Path | None) -> "RowLabels":
        """Open what ``write`` wrote.

        Raises:
            ValueError: a file that is none of theirs, or not equally many rows in both.
        """
        names = [(ids, "id"), *([(texts, "text")] if texts else [])]
        try:
            columns = [_read(path, name) for path, name in names]
        except (pa.ArrowException, OSError, KeyError) as error:
            raise ValueError(f"its columns cannot be read: {str(error).splitlines()[0][:120]}") from None
        for column, types in zip(columns, (_TYPES, _TYPES[1:]), strict=False):
            if column.null_count or column.type not in types:
                raise ValueError(f"a column of {column.type} does not hold {' or '.join(map(str, types))}")
        if len({len(column) for column in columns}) > 1:
            raise ValueError("ids and texts are not equally many")
        return cls(columns[0], columns[1] if texts else None)


def _read(path: Path, name: str) -> Any:
    column = pa.ipc.open_file(pa.memory_map(str(path))).read_all().column(name)
    column.validate(full=path.stat().st_size <= SMALL)
    return column


def _cells(column: Any) -> Callable[[int], Any]:
    """Return what reads one cell of a column of whole numbers or texts without nulls.

    From Arrow's buffers: several times as fast as through its scalars, which would take a tenth of a search.
    """
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    ends = np.cumsum([len(chunk) for chunk in chunks]).tolist()
    # a row minus the end of its chunk, plus this, is its place in the chunk's buffer
    shifts = [len(chunk) + chunk.offset - end for chunk, end in zip(chunks, ends, strict=True)]
    numbers = [memoryview(chunk.buffers()[1]).cast("q") for chunk in chunks]  # values, or where texts start

    def number(row: int) -> int:
        chunk = bisect.bisect_right(ends, row)
        value: int = numbers[chunk][row + shifts[chunk]]
        return value

    if column.type == pa.int64():
        return number
    content = [memoryview(chunk.buffers()[2] or b"") for chunk in chunks]

    def text(row: int) -> str:
        chunk = bisect.bisect_right(ends, row)
        starts, own = numbers[chunk], row + shifts[chunk]
        try:
            return str(content[chunk][starts[own] : starts[own + 1]], "utf-8")
        except UnicodeDecodeError:  # in a file too large to be looked at whole when it is opened
            raise CheckFailedError(
                f"row {row} of the index holds bytes that are no text: it is damaged; build it again"
            ) from None

    return text


def _column(ids: Ids, start: int) -> Any:
    texts = not isinstance(ids, range) and any(isinstance(value, str) for value in ids)
    if texts:
        named = [value if isinstance(value, str) else str(start + value) for value in ids]
        return pa.chunked_array([pa.array(named, pa.large_string())])
    return pa.chunked_array([pc.add(pa.array(ids, pa.int64()), start)])
