"""The formats of vector files: a reader of the whole file, and a writer that holds no more than one window.

.npy and .safetensors hold the matrix alone; .parquet and .jsonl ids and texts, too.
"""

import contextlib
import functools
import io
import json
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from promptcli.data.streams import open_hashed, read_lines
from promptcli.data.tables import Record, id_text, open_parquet, read_batches, values_of
from promptcli.errors import CheckFailedError, UsageError
from promptcli.extensions import Table

Floats = NDArray[np.float32]
#: Ids (row numbers, or text), texts or None, and the matrix (n, d) as the file has it.
Content = tuple[Sequence[int] | Sequence[str], list[str] | None, NDArray[Any]]

#: The key of the matrix in .safetensors, and the column in .parquet and .jsonl.
TENSOR, COLUMN = "embeddings", "embedding"
#: The key of a Parquet file's metadata under which a part of a folder says what it is.
ABOUT = b"promptcli"
#: Rows of a Parquet file held at once, besides the matrix; rows formatted as JSON at once.
_READ, _WRITTEN = 4096, 512
#: Bytes kept for the header of .safetensors; it is padded with spaces, as the format allows.
_HEADER = 256


class Sink:
    """Takes the rows of a vector file in order."""

    def write(self, records: Sequence[Record], vectors: NDArray[Any]) -> None:
        """Append one window: ``vectors`` (n, d), row i of ``records[i]``; float32 unless a ``Precision`` made less."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what stands at the end; the file is whole after this."""

    def abandon(self) -> None:
        """Let go of the file, which will be thrown away."""


@dataclass(frozen=True)
class VectorFormat:
    """A row of the table of formats."""

    read: Callable[[Path], Content]
    open: Callable[[BinaryIO, int, bool], Sink]  #: File, width d, whether to store texts.
    #: Names of the columns, where there is room for ids and texts and rows may be sentences.
    columns: Callable[[Path], Sequence[str]] | None = None


def _row_ids(path: Path, ids: list[Any] | None, rows: int) -> Sequence[int] | Sequence[str]:
    """Return the ids of a column: row numbers where they are just those, else text."""
    if ids is None or ids == list(range(rows)):
        return range(rows)
    return [id_text(value, "id", (str(path), "row", row)) for row, value in enumerate(ids, 1)]


def _row_texts(path: Path, texts: list[Any] | None) -> list[str] | None:
    if texts is not None and not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{path}: 'text' is not text in every row")
    return texts


def as_floats(numbers: NDArray[Any]) -> Floats:
    """Return numbers as float32; those beyond its range are infinite, for whoever uses them to refuse."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32, copy=False)


# .npy and .safetensors


class _HeadedSink(Sink):
    """Raw rows after a header of constant length, which is written again at the end, when their number is known."""

    def __init__(self, file: BinaryIO, width: int, header: Callable[[int, int, np.dtype[Any]], bytes]) -> None:
        self._file, self._width, self._header, self._rows = file, width, header, 0
        self._dtype = np.dtype("<f4")
        file.write(header(0, width, self._dtype))

    def write(self, records: Sequence[Record], vectors: NDArray[Any]) -> None:
        self._dtype, self._width = vectors.dtype.newbyteorder("<"), vectors.shape[1]
        self._file.write(np.ascontiguousarray(vectors, dtype=self._dtype).data)
        self._rows += len(vectors)

    def close(self) -> None:
        self._file.seek(0)
        self._file.write(self._header(self._rows, self._width, self._dtype))


def read_array(path: Path) -> NDArray[Any]:
    """Return the array of an .npy file, memory-mapped.

    Raises:
        CheckFailedError: It is none, or damaged.
    """
    try:
        with np.errstate(all="ignore"):  # sizes in the header may be beyond every number
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # by what its header says: ValueError, EOFError, OverflowError, MemoryError, ...
        raise CheckFailedError(f"{path}: not a whole .npy file of numbers: {error}") from None
    return array


def _read_npy(path: Path) -> Content:
    matrix = read_array(path)
    return range(len(matrix) if matrix.ndim else 0), None, matrix


def _npy_header(rows: int, width: int, dtype: np.dtype[Any]) -> bytes:
    # numpy pads the header so that the first axis may grow in place: the length does not depend on ``rows``.
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": (rows, width)})
    return file.getvalue()


def _read_safetensors(path: Path) -> Content:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            keys = list(file.keys())
            if TENSOR not in keys:
                raise UsageError(f"{path}: no tensor {TENSOR!r}; it holds: {', '.join(keys)}")
            matrix = file.get_tensor(TENSOR)
    except SafetensorError as error:
        raise CheckFailedError(f"{path}: not a whole .safetensors file: {error}") from None
    return range(len(matrix) if matrix.ndim else 0), None, matrix


def _safetensors_header(rows: int, width: int, dtype: np.dtype[Any]) -> bytes:
    name = f"{dtype.kind.upper()}{8 * dtype.itemsize}"  # F32, F16, I8, U8
    tensor = {"dtype": name, "shape": [rows, width], "data_offsets": [0, dtype.itemsize * rows * width]}
    text = json.dumps({TENSOR: tensor}).encode().ljust(_HEADER)
    return len(text).to_bytes(8, "little") + text


# .jsonl


def _read_jsonl(path: Path) -> Content:
    rows: list[Floats] = []
    ids: list[Any] = []
    texts: list[Any] = []
    with open_hashed(path) as raw:
        for number, line in enumerate(read_lines(raw, str(path)), 1):
            try:
                values = json.loads(line)
                with np.errstate(over="ignore"):
                    rows.append(np.asarray(values[COLUMN], dtype=np.float32))
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                raise CheckFailedError(f"{path}: line {number}: no object with {COLUMN!r}: {error!r}") from None
            if rows[-1].shape != rows[0].shape or rows[-1].ndim != 1:
                raise UsageError(f"{path}: line {number}: {COLUMN!r} is not a list of as many numbers as in line 1")
            ids.append(values.get("id", number - 1))
            texts.append(values.get("text"))
    known = None if all(text is None for text in texts) else texts
    matrix = np.stack(rows) if rows else np.empty((0, 0), np.float32)
    return _row_ids(path, ids, len(rows)), _row_texts(path, known), matrix


def _jsonl_columns(path: Path) -> Sequence[str]:
    with open_hashed(path) as raw:
        line = next(read_lines(raw, str(path)), "{}")
    try:
        return list(json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return []  # no vector file; whoever reads it as sentences says what is wrong


class _JsonlSink(Sink):
    """One object a line: id, text (unless left out), embedding; shortest digits that give the same number."""

    def __init__(self, file: BinaryIO, width: int, with_text: bool) -> None:
        self._file, self._with_text = file, with_text

    def write(self, records: Sequence[Record], vectors: NDArray[Any]) -> None:
        for start in range(0, len(records), _WRITTEN):
            part = slice(start, start + _WRITTEN)
            lines = zip(records[part], _digits(vectors[part]), strict=True)
            self._file.write("".join(self._line(record, numbers) for record, numbers in lines).encode())
        self._file.flush()

    def _line(self, record: Record, numbers: str) -> str:
        known: dict[str, Any] = {"id": record.id, "text": record.text} if self._with_text else {"id": record.id}
        return f'{json.dumps(known, ensure_ascii=False)[:-1]}, "{COLUMN}": [{numbers}]}}\n'

    def close(self) -> None:
        self._file.flush()


def _digits(vectors: NDArray[Any]) -> list[str]:
    """Return each row's numbers as text; Arrow does it five times as fast as ``json``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, width = vectors.shape
    if vectors.dtype == np.float16:  # Arrow's digits are those of float32, three times as many
        digits = _halves().take(pa.array(vectors.reshape(-1).view(np.uint16)))
    else:
        digits = pc.cast(pa.array(vectors.reshape(-1)), pa.string())
    offsets = pa.array(np.arange(0, rows * width + 1, width, dtype=np.int32))
    joined: list[str] = pc.binary_join(pa.ListArray.from_arrays(offsets, digits), ", ").to_pylist()
    return joined


@functools.cache
def _halves() -> Any:
    """Return the digits of all numbers of float16, by their bits."""
    import pyarrow as pa

    return pa.array(np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(str).tolist())


# .parquet


def _read_parquet(path: Path) -> Content:
    with open_parquet(path, path, mend="make it again") as file:
        columns = columns_of(file, path)
        parts: dict[str, list[Any]] = {name: [] for name in columns}
        matrix, row = np.empty((0, 0), np.float32), 0
        for batch in read_batches(file, _READ, columns=columns):
            block = rows_of(batch.column(COLUMN), f"{path}: rows {row + 1} to {row + len(batch)}")
            if row == 0:
                matrix = np.empty((file.metadata.num_rows, block.shape[1]), np.float32)
            if block.shape[1] != matrix.shape[1]:
                raise UsageError(f"{path}: vectors of {matrix.shape[1]} and of {block.shape[1]} numbers")
            matrix[row : row + len(block)] = block
            for name in columns[:-1]:
                parts[name] += values_of(batch, name, path)
            row += len(block)
    return _row_ids(path, parts.get("id"), row), _row_texts(path, parts.get("text")), matrix


def columns_of(file: Any, path: Path) -> list[str]:
    """Return which of ids, texts and vectors an open Parquet file holds, in this order.

    Raises:
        UsageError: No vectors, or two columns of one name.
    """
    names = file.schema_arrow.names
    columns = [name for name in ("id", "text", COLUMN) if name in names]
    if COLUMN not in names or len(columns) < sum(name in columns for name in names):
        fault = f"no column {COLUMN!r}" if COLUMN not in names else "more than one column of a name"
        raise UsageError(f"{path}: {fault}; columns: {', '.join(names)}")
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


def _parquet_columns(path: Path) -> Sequence[str]:
    with contextlib.suppress(CheckFailedError), open_parquet(path, path, mend="") as file:
        names: list[str] = file.schema_arrow.names
        return names
    return []  # no vector file; whoever reads it as sentences says what is wrong


class ParquetSink(Sink):
    """Columns id (int64 row numbers, or text), text (unless left out), embedding: fixed_size_list."""

    def __init__(self, file: BinaryIO, width: int, with_text: bool) -> None:
        self._file, self._with_text = file, with_text
        self.about: str | None = None  #: What the file is to say of itself; may be set until it is closed.
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
            self._writer = pq.ParquetWriter(
                self._file, table.schema, compression="zstd", use_dictionary=False, write_page_checksum=True
            )
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


#: The format of each extension.
FORMATS: MutableMapping[str, VectorFormat] = {
    ".npy": VectorFormat(_read_npy, lambda file, width, with_text: _HeadedSink(file, width, _npy_header)),
    ".parquet": VectorFormat(_read_parquet, ParquetSink, _parquet_columns),
    ".jsonl": VectorFormat(_read_jsonl, _JsonlSink, _jsonl_columns),
    ".safetensors": VectorFormat(
        _read_safetensors, lambda file, width, with_text: _HeadedSink(file, width, _safetensors_header)
    ),
}
FORMATS = Table("formats", FORMATS)


@contextlib.contextmanager
def opened(sink: Sink) -> Iterator[Sink]:
    """Yield a sink; its file is whole when the block has ended well."""
    try:
        yield sink
    except BaseException:
        sink.abandon()
        raise
    sink.close()
