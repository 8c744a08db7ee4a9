"""The formats of vector files: a reader of the whole file, and a writer that holds no more than one window.

.npy and .safetensors hold the matrix alone; .parquet and .jsonl ids and texts, too.
"""

import contextlib
import functools
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.data.files import open_file, read_lines
from promptcli.data.rows import Batch, id_text, open_parquet, read_batches, values_of
from promptcli.errors import CheckFailedError, UsageError
from promptcli.extensions import Table

Floats = NDArray[np.float32]
#: Ids (row numbers, or text), texts or None, and the matrix (n, d) as the file has it.
Content = tuple[Sequence[int | str], list[str] | None, NDArray[Any]]

#: The key of the matrix in .safetensors, and the column in .parquet and .jsonl.
TENSOR, COLUMN = "embeddings", "embedding"
#: The key of a Parquet file's metadata under which a part of a folder says what it is.
ABOUT = b"promptcli"
#: Rows of a Parquet file held at once; rows formatted as JSON at once.
BLOCK, _WRITTEN = 16_384, 512
#: Row groups that a sample comes from, at least, and how many rows of each stand for one that is taken.
_GROUPS, _SPARSE = 64, 4
_HINT = "make it again"
#: Bytes kept for the header of .safetensors; it is padded with spaces, as the format allows.
_HEADER = 256


class Sink:
    """Takes the rows of a vector file in order."""

    def write(self, batch: Batch, vectors: NDArray[Any]) -> None:
        """Append one window: ``vectors`` (n, d), for row i of ``batch``; float32 unless a ``Precision`` made less."""
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


def _ids_of(values: list[Any], first: int, path: Path) -> Sequence[int | str]:
    """Return a column of ids whose first row has the number ``first``: row numbers where they are just those."""
    numbers = range(first, first + len(values))
    if values == list(numbers):
        return numbers
    ids = list[str]()
    for row, value in zip(numbers, values, strict=True):
        try:
            ids.append(id_text(value))
        except ValueError as problem:
            raise UsageError(f"{path}: row {row + 1}: 'id' {problem}") from None
    return ids


def _check_texts(texts: Sequence[Any] | None, where: object) -> None:
    if texts is not None and not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{where}: 'text' is not text in every row")


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

    def write(self, batch: Batch, vectors: NDArray[Any]) -> None:
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
    except Exception:  # by what its header says: ValueError, EOFError, OverflowError, MemoryError, ...
        raise CheckFailedError(f"{path}: not a whole .npy file of numbers; write it again, e.g. by `embed`") from None
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
    with open_file(path) as raw:
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
    _check_texts(known, path)
    return _ids_of(ids, 0, path), known, np.stack(rows) if rows else np.empty((0, 0), np.float32)


def _jsonl_columns(path: Path) -> Sequence[str]:
    with open_file(path) as raw:
        line = next(read_lines(raw, str(path)), "{}")
    try:
        return list(json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return []  # no vector file; whoever reads it as sentences says what is wrong


class _JsonlSink(Sink):
    """One object a line: id, text (unless left out), embedding; shortest digits that give the same number."""

    def __init__(self, file: BinaryIO, width: int, with_text: bool) -> None:
        self._file, self._with_text = file, with_text

    def write(self, batch: Batch, vectors: NDArray[Any]) -> None:
        columns = batch.select(["id", "text"] if self._with_text else ["id"])
        for start in range(0, len(batch), _WRITTEN):
            rows = columns.slice(start, _WRITTEN).to_pylist()
            numbers = _digits(vectors[start : start + _WRITTEN])
            heads = (json.dumps(row, ensure_ascii=False)[:-1] for row in rows)
            lines = (f'{head}, "{COLUMN}": [{row}]}}\n' for head, row in zip(heads, numbers, strict=True))
            self._file.write("".join(lines).encode())
        self._file.flush()

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
    rows = ParquetRows([path])
    matrix, ids, texts = np.empty(rows.shape, np.float32), list[Sequence[int | str]](), list[str]()
    for block in rows.blocks():
        matrix[block.row : block.row + len(block.vectors)] = block.vectors
        ids.append(block.ids)
        texts += block.texts or ()
    numbered = all(isinstance(part, range) for part in ids)
    named = [str(one) for part in ids for one in part]
    return range(len(matrix)) if numbered else named, texts if rows.has_texts else None, matrix


class Block(NamedTuple):
    """Rows that stand together."""

    vectors: Floats  #: (m, d)
    ids: Sequence[int | str]  #: row numbers from 0 over all rows, or texts
    texts: Sequence[str] | None  #: None where there are none
    row: int = 0  #: number of the first one


@dataclass(frozen=True)
class _Group:
    """A row group of a file."""

    path: Path
    number: int
    start: int  #: Its first row, over all files.
    rows: int


class ParquetRows:
    """The rows of Parquet files, one file after another, read block by block as often as need be.

    Args:
        files: With the same columns: ``embedding``, and ``id`` and ``text`` where there are any. A file may be open
            already; then its path is only what it is called.
        first: Number of the first row.
        hint: What to do about a file that is wrong, for messages.

    Raises:
        UsageError: There are no rows, or columns or widths differ.
        CheckFailedError: A file is no whole Parquet file.
    """

    def __init__(self, files: Iterable[Path] | Mapping[Path, BinaryIO], *, first: int = 0, hint: str = _HINT) -> None:
        self._files = files if isinstance(files, Mapping) else dict.fromkeys(files)
        self._hint, self._groups = hint, list[_Group]()
        layouts: dict[Path, tuple[list[str], int]] = {}
        row = first
        for path in self._files:
            with self._open(path) as file:
                if file.metadata.num_rows:
                    layouts[path] = sorted(columns_of(file, path)), _width(file, path)
                for number in range(file.num_row_groups):
                    self._groups.append(_Group(path, number, row, file.metadata.row_group(number).num_rows))
                    row += self._groups[-1].rows
        if not layouts:
            where = ", ".join(sorted({str(path) for path in self._files})) or "the folder"
            raise UsageError(f"{where:.200} holds no rows; give Parquet files with a column {COLUMN!r}")
        (known, (self._columns, width)), *others = layouts.items()
        for path, (names, numbers) in others:
            if numbers != width:
                raise UsageError(f"{path} holds vectors of {numbers} numbers, {known.name} of {width}")
            if names != self._columns:
                here, there = ", ".join(names), ", ".join(self._columns)
                raise UsageError(f"{path} has the columns {here}; {known.name}: {there}")
        self.shape = (row - first, width)  #: their number and width, (n, d)
        self.has_texts = "text" in self._columns

    def blocks(self, rows: int = BLOCK) -> Iterator[Block]:
        """Yield all rows in order, at most so many at once; ids that are row numbers are numbers, others texts.

        Raises:
            UsageError: An id or a text is none, or a vector of another width.
            CheckFailedError: A file is damaged.
        """
        for group in self._groups:
            yield from self._read(group, rows)

    def among(self, chosen: NDArray[np.int64]) -> Iterator[tuple[Block, NDArray[np.int64]]]:
        """Yield the blocks that hold chosen rows, by ascending numbers, with their places in the block."""
        for group in self._groups:
            if np.searchsorted(chosen, group.start) < np.searchsorted(chosen, group.start + group.rows):
                for block in self._read(group, BLOCK):
                    places = chosen[(chosen >= block.row) & (chosen < block.row + len(block.vectors))] - block.row
                    if len(places):
                        yield block, places

    def sample(self, count: int) -> tuple[NDArray[np.int64], Floats]:
        """Return up to ``count`` rows, their numbers and vectors (m, d), from row groups all over: these are read."""
        count, random = min(count, self.shape[0]), np.random.default_rng(0)
        groups, there = list[_Group](), 0
        for place in random.permutation(len(self._groups)).tolist():
            groups.append(self._groups[place])
            there += groups[-1].rows
            if there >= _SPARSE * count and len(groups) >= _GROUPS:
                break
        groups.sort(key=lambda group: group.start)
        numbers = np.concatenate([np.arange(group.start, group.start + group.rows) for group in groups])
        rows = np.sort(random.choice(numbers, count, replace=False)).astype(np.int64)
        return rows, np.concatenate([block.vectors[places] for block, places in self.among(rows)])

    def check_file(self, path: Path) -> None:
        """Refuse a file before its rows are read; here nothing is known of it."""

    def _open(self, path: Path) -> AbstractContextManager[Any]:
        return open_parquet(self._files[path] or path, path, hint=self._hint)

    def _read(self, group: _Group, rows: int) -> Iterator[Block]:
        self.check_file(group.path)
        row = group.start
        with self._open(group.path) as file:
            for batch in read_batches(file, rows, row_groups=[group.number], columns=self._columns):
                where = f"{group.path}: rows from {row}"
                vectors = rows_of(batch.column(COLUMN), where)
                if vectors.shape[1] != self.shape[1]:
                    raise UsageError(f"{where}: vectors of {self.shape[1]} and of {vectors.shape[1]} numbers")
                values = {name: values_of(batch, name, group.path) for name in self._columns if name != COLUMN}
                _check_texts(values.get("text"), where)
                numbers = range(row, row + len(batch))
                ids = _ids_of(values["id"], row, group.path) if "id" in values else numbers
                yield Block(vectors, ids, values.get("text"), row)
                row += len(batch)


def _width(file: Any, path: Path) -> int:
    """Return the numbers in the first vector of a file."""
    first = next(file.iter_batches(1, columns=[COLUMN]))
    return int(rows_of(first.column(COLUMN), f"{path}: row 1").shape[1])


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
    with contextlib.suppress(CheckFailedError), open_parquet(path, path, hint="") as file:
        names: list[str] = file.schema_arrow.names
        return names
    return []  # no vector file; whoever reads it as sentences says what is wrong


class ParquetSink(Sink):
    """Columns id (int64 row numbers, or text), text (unless left out), embedding: fixed_size_list."""

    def __init__(self, file: BinaryIO, width: int, with_text: bool) -> None:
        self._file, self._with_text = file, with_text
        self.about: str | None = None  #: What the file is to say of itself; may be set until it is closed.
        self._writer: Any = None

    def write(self, batch: Batch, vectors: NDArray[Any]) -> None:
        """Append one window as a row group."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        numbers = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        batch = batch.select(["id", "text"] if self._with_text else ["id"]).append_column(COLUMN, numbers)
        table = pa.Table.from_batches([batch])
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
