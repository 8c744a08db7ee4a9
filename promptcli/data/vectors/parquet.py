"""Vectors as the column ``embedding`` of a Parquet file, with ids and texts."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from promptcli.data.parquet_files import cells, open_parquet, read_batches
from promptcli.data.tables import Record
from promptcli.data.vectors.vector_format import COLUMN, Content, Floats, VectorFormat, as_floats, row_ids, row_texts
from promptcli.errors import CheckFailedError, UsageError

#: Rows of a file held at once, besides the matrix.
_ROWS = 4096
#: The key of the file's metadata under which a part of a folder says what it is.
ABOUT = b"promptcli"


def _read_parquet(path: Path) -> Content:
    with open_parquet(path, path, mend="make it again") as file:
        columns = columns_of(file, path)
        parts: dict[str, list[Any]] = {name: [] for name in columns}
        matrix, row = np.empty((0, 0), np.float32), 0
        for batch in read_batches(file, _ROWS, columns=columns):
            block = rows_of(batch.column(COLUMN), f"{path}: rows {row + 1} to {row + len(batch)}")
            if row == 0:
                matrix = np.empty((file.metadata.num_rows, block.shape[1]), np.float32)
            if block.shape[1] != matrix.shape[1]:
                raise UsageError(f"{path}: vectors of {matrix.shape[1]} and of {block.shape[1]} numbers")
            matrix[row : row + len(block)] = block
            for name in columns[:-1]:
                parts[name] += cells(batch, name, path)
            row += len(block)
    return row_ids(path, parts.get("id"), row), row_texts(path, parts.get("text")), matrix


def columns_of(file: Any, path: Path) -> list[str]:
    """Return which of ids, texts and vectors an open file holds, in this order.

    Raises:
        UsageError: No vectors, or two columns of one name.
    """
    names = file.schema_arrow.names
    if COLUMN not in names:
        raise UsageError(f"{path}: no column {COLUMN!r}; columns: {', '.join(names)}")
    columns = [name for name in ("id", "text", COLUMN) if name in names]
    if len(columns) < sum(name in columns for name in names):
        raise UsageError(f"{path}: more than one column of a name; columns: {', '.join(names)}")
    return columns


def rows_of(column: Any, where: str) -> Floats:
    """Return a column of lists as a matrix (n, d).

    Raises:
        UsageError: It is another column, or some lists are of another length.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pa.types
    lists = known.is_list(column.type) or known.is_large_list(column.type) or known.is_fixed_size_list(column.type)
    numbers = lists and (known.is_floating(column.type.value_type) or known.is_integer(column.type.value_type))
    lengths = set(pc.list_value_length(column).to_pylist()) if numbers else set()
    values = column.flatten() if numbers else column
    if len(lengths) != 1 or lengths & {None, 0} or values.null_count:
        raise UsageError(f"{where}: {COLUMN!r} is not a list of equally many numbers in every row")
    block: Floats = as_floats(values.to_numpy(zero_copy_only=False)).reshape(len(column), -1)
    return block


def _columns(path: Path) -> Sequence[str]:
    with contextlib.suppress(CheckFailedError), open_parquet(path, path, mend="") as file:
        names: list[str] = file.schema_arrow.names
        return names
    return []  # no vector file; whoever reads it as sentences says what is wrong


class ParquetSink:
    """Columns id (int64 row numbers, or text), text (unless left out), embedding: fixed_size_list."""

    def __init__(self, file: BinaryIO, width: int, with_text: bool) -> None:
        self._file, self._with_text = file, with_text
        self.about: str | None = None  #: what the file is to say of itself; may be set until it is closed
        self._writer: Any = None

    def write(self, records: Sequence[Record], vectors: NDArray[Any]) -> None:
        """Append one window as a row group."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {"id": pa.array([record.id for record in records])}
        if self._with_text:
            columns["text"] = pa.array([record.text for record in records], pa.string())
        columns[COLUMN] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        table = pa.table(columns)
        if self._writer is None:  # the type of the ids shows in the first window
            self._writer = pq.ParquetWriter(self._file, table.schema, compression="zstd", use_dictionary=False)
        self._writer.write_table(table)

    def close(self) -> None:
        """Write the footer."""
        if self._writer is not None:
            if self.about is not None:
                self._writer.add_key_value_metadata({ABOUT: self.about})
            self._writer.close()

    def abandon(self) -> None:
        """Close what will be thrown away."""
        with contextlib.suppress(Exception):  # else the garbage collector closes it, and complains on stderr
            self.close()


PARQUET = VectorFormat(_read_parquet, ParquetSink, _columns)
