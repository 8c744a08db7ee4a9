"""Vectors in Parquet files: the columns id, text and ``embedding``."""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.data.cells import text_of
from promptcli.data.parquet_files import open_parquet, read_batches, values_of
from promptcli.data.rows import RowBatch
from promptcli.data.vectors.precision import Floats, as_floats
from promptcli.errors import CheckFailedError, UsageError

#: The column of the vectors; in .jsonl, too.
COLUMN = "embedding"
#: The metadata key under which a part of a folder describes itself.
METADATA_KEY = b"promptcli"
#: Rows that are held at once.
BLOCK_ROWS = 16_384
#: The content of a vector file: ids (row numbers, or text), texts or None, and the matrix (n, d) as
#: the file stores it.
Content = tuple[Sequence[int | str], list[str] | None, NDArray[Any]]


class Block(NamedTuple):
    """Consecutive rows."""

    vectors: Floats  #: (m, d)
    ids: Sequence[int | str]  #: in all blocks numbers of rows, from 0, or in all blocks texts
    texts: Sequence[str] | None  #: None if the file has none
    row: int = 0  #: number of the first row
    #: which rows had a blank text, for a file without texts whose manifest says so
    blank: NDArray[np.bool_] | None = None


class ParquetRows:
    """The rows of Parquet files, read block by block, any number of times.

    All files have the same columns: ``embedding``, and perhaps ``id`` and ``text``. Checksums of
    pages are compared if the files have them.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = list(files)
        self._columns = list[str]()
        self.shape = (0, 0)  #: (n, d)
        for path in self._files:
            with _open(path) as file:
                if not file.metadata.num_rows:
                    continue
                columns = _vector_columns(file, path)
                first = next(file.iter_batches(1, columns=[COLUMN])).column(COLUMN)
                width = _vector_rows(first, f"{path}: row 1").shape[1]
                if self.shape[0] and (columns, width) != (self._columns, self.shape[1]):
                    raise UsageError(
                        f"{path} holds {', '.join(columns)} of {width} dimensions; the files before"
                        f" it {', '.join(self._columns)} of {self.shape[1]}"
                    )
                self._columns = columns
                self.shape = (self.shape[0] + file.metadata.num_rows, width)
        if not self.shape[0]:
            names = ", ".join(sorted(map(str, self._files))) or "the folder"
            raise UsageError(
                f"{names:.200} holds no rows; give Parquet files with a column {COLUMN!r}"
            )
        self.has_texts = "text" in self._columns

    @functools.cached_property
    def are_numbered(self) -> bool:
        """Whether the ids of all rows are their numbers from 0."""
        if "id" not in self._columns:
            return True
        return all(
            values_of(batch, "id", path) == list(range(row, row + len(batch)))
            for path, row, batch in self._batches(BLOCK_ROWS, ["id"])
        )

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[Block]:
        """Yield all rows in order, at most ``rows`` at once."""
        for path, row, batch in self._batches(rows, self._columns):
            where = f"{path}: rows from {row}"
            vectors = _vector_rows(batch.column(COLUMN), where)
            if vectors.shape[1] != self.shape[1]:
                raise UsageError(
                    f"{where}: vectors of {self.shape[1]} and of {vectors.shape[1]} dimensions"
                )
            texts = values_of(batch, "text", path) if self.has_texts else None
            if not all(isinstance(text, str) for text in texts or ()):
                raise UsageError(f"{where}: 'text' is not text in every row")
            ids: Sequence[int | str] = range(row, row + len(batch))
            if not self.are_numbered:
                ids = _id_texts(values_of(batch, "id", path), row, path)
            yield Block(vectors, ids, texts, row)

    def _batches(self, rows: int, columns: list[str]) -> Iterator[tuple[Path, int, Any]]:
        """Yield batches of columns, each with its file and the number of its first row."""
        row = 0
        for path in self._files:
            with _open(path) as file:
                batches = read_batches(file, rows, columns=columns)
                for batch in batches if file.metadata.num_rows else ():
                    yield path, row, batch
                    row += len(batch)


def _open(path: Path) -> AbstractContextManager[Any]:
    return open_parquet(path, path, hint="write it again", sums=True)


def _vector_columns(file: Any, path: Path) -> list[str]:
    """Return which of the columns id, text and embedding an open Parquet file has, sorted."""
    names = file.schema_arrow.names
    columns = sorted(name for name in names if name in ("id", "text", COLUMN))
    if COLUMN not in columns or len(set(columns)) < len(columns):
        fault = "several columns with one name" if COLUMN in columns else f"no column {COLUMN!r}"
        raise UsageError(f"{path}: {fault}; columns: {', '.join(names)}")
    return columns


def _vector_rows(column: Any, where: str) -> Floats:
    """Return a column of lists as a matrix (n, d)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if (is_list or pa.types.is_fixed_size_list(kind)) and (
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    ):
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        values = column.flatten()
        if len(lengths) == 1 and lengths[0] and not values.null_count:
            numbers = values.to_numpy(zero_copy_only=False)
            return as_floats(numbers).reshape(len(column), -1)
    raise UsageError(
        f"{where}: {COLUMN!r} is not a list of numbers of the same length in every row"
    )


def _id_texts(ids: list[Any], first: int, path: Path) -> list[str]:
    """Return a column of ids, from row ``first`` on, as texts."""
    texts = list[str]()
    for row, value in enumerate(ids, first + 1):
        try:
            texts.append(text_of("id", value))
        except ValueError as problem:
            raise UsageError(f"{path}: row {row}: 'id' {problem}") from None
    return texts


def read_parquet(path: Path) -> Content:
    """Return the content of a Parquet file of vectors."""
    rows = ParquetRows([path])
    matrix = np.empty(rows.shape, np.float32)
    ids, texts = list[int | str](), list[str]()
    for block in rows.blocks():
        matrix[block.row : block.row + len(block.vectors)] = block.vectors
        ids += block.ids
        texts += block.texts or ()
    names = range(len(matrix)) if rows.are_numbered else ids
    return names, texts if rows.has_texts else None, matrix


def parquet_columns(path: Path) -> Sequence[str]:
    """Return the names of the columns of a Parquet file; none if the file is damaged."""
    with contextlib.suppress(CheckFailedError), open_parquet(path, path, hint="") as file:
        names: list[str] = file.schema_arrow.names
        return names
    return []  # the reader of sentences says what is wrong


class ParquetSink:
    """Columns id (int64 row numbers, or text), text, embedding: fixed_size_list."""

    def __init__(self, file: BinaryIO, width: int) -> None:
        self._file = file
        self.metadata: str | None = None  #: metadata of the file; may be set until it is closed
        self._writer: Any = None

    def write(self, batch: RowBatch, vectors: NDArray[Any]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        numbers = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        columns = {name: pa.array(batch[name]) for name in ("id", "text")}
        table = pa.table(columns | {COLUMN: numbers})
        if self._writer is None:  # the first window shows the type of the ids
            self._writer = pq.ParquetWriter(
                self._file,
                table.schema,
                compression="zstd",
                use_dictionary=False,
                write_page_checksum=True,
            )
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            if self.metadata is not None:
                self._writer.add_key_value_metadata({METADATA_KEY: self.metadata})
            self._writer.close()
