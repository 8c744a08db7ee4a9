"""Parquet files: opened, checked for their unpacked size, and read a few rows at a time."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from promptcli.data.input_files import check_unpacked
from promptcli.data.tables import MAX_LEVELS, RowTable, check_header
from promptcli.errors import CheckFailedError, PromptcliError, UsageError, join_lines

#: Approximate characters of a batch; very long texts would fill the memory.
BATCH_CHARACTERS = 1 << 20
#: Rows of a Parquet file that are read at once.
_ROWS_AT_ONCE = 64
#: Advice for a foreign file that unpacks to too many bytes.
_UNPACK = "write it again, uncompressed and without a dictionary"
#: Fewest bytes that a value of any type takes in memory, null included: its levels, its place in
#: Arrow's column and its place in Python's list.
_VALUE_BYTES = 16

#: pyarrow has no types: this is its ``RecordBatch``.
RecordBatch = Any


@contextlib.contextmanager
def open_parquet(
    source: Path | str | BinaryIO,
    name: Path | str,
    *,
    hint: str,
    error: type[PromptcliError] = CheckFailedError,
    sums: bool = False,
) -> Iterator[Any]:
    """Yield an open ``pyarrow.parquet.ParquetFile``.

    Args:
        source: The file.
        name: Its name in messages.
        hint: The end of the message about a damaged file.
        error: The class of that error.
        sums: Whether the checksum of each page is compared when it is read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    damages = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last: of a column's name

    def refusal(problem: Exception) -> PromptcliError:
        return error(f"{name} is not a whole Parquet file ({join_lines(problem, 100)}); {hint}")

    try:
        # small pages at a time: without a buffer size a complete column chunk is read at once
        file = pq.ParquetFile(source, buffer_size=1 << 20, page_checksum_verification=sums)
    except damages as problem:
        raise refusal(problem) from None
    try:
        with file:
            unpacked = sum(
                max(column.total_uncompressed_size, column.num_values * _VALUE_BYTES)
                for column in _chunks(file.metadata)
            )
            check_unpacked(str(name), unpacked, _size_of(file), _UNPACK)
            yield file
    except damages as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            raise  # an error of another file, such as a full disk
        raise refusal(problem) from None


def _size_of(file: Any) -> int:
    """Return the number of compressed bytes in the columns of an open Parquet file."""
    return sum(column.total_compressed_size for column in _chunks(file.metadata))


def _chunks(metadata: Any) -> Iterator[Any]:
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        yield from map(group.column, range(metadata.num_columns))


def read_batches(file: Any, rows: int, **options: Any) -> Iterator[RecordBatch]:
    """Yield batches of at most ``rows`` rows, all texts valid UTF-8.

    Options are those of ``iter_batches``.
    """
    for batch in file.iter_batches(rows, **options):
        batch.validate(full=True)
        yield batch


def values_of(batch: RecordBatch, column: str, name: Path | str) -> list[Any]:
    """Return a column of a batch as Python's values; ``name`` is the file's."""
    array = batch.column(column)
    try:
        return cast(list[Any], array.to_pylist())
    except (OverflowError, ValueError) as problem:  # such as a date after the year 9999
        why = f"cannot be read ({join_lines(problem, 80)}); give text or whole numbers"
        raise UsageError(f"{name}: column {column!r} of {array.type} {why}") from None


#: Test of Arrow's types -> type of a column.
_DECLARED_TYPES = {
    "integer": "number",
    "floating": "number",
    "decimal": "number",
    "boolean": "truth",
    "date": "date",
    "timestamp": "date",
}


class ParquetTable(RowTable):
    """Columns with declared types."""

    row_unit = "row"

    def __init__(self, file: Any, name: str, start: int) -> None:
        """Open a file to read its rows from row ``start`` on."""
        import pyarrow as pa

        self._file, self._name, self.first = file, name, start
        self.size = file.metadata.num_rows
        self.header = [field.name for field in file.schema_arrow]
        check_header(self.header, name, "the file")
        self.types, self.nested = dict[str, str](), set[str]()
        for field in file.schema_arrow:
            kind = field.type
            if pa.types.is_dictionary(kind):
                kind = kind.value_type
            inner_types = [kind]
            for _ in range(MAX_LEVELS):
                inner_types = [
                    outer.field(place).type
                    for outer in inner_types
                    for place in range(outer.num_fields)
                ]
            if inner_types:
                problem = f"is nested deeper than {MAX_LEVELS} levels"
                raise UsageError(f"{name}: column {field.name!r} {problem}")
            if kind.num_fields:
                self.nested.add(field.name)
            self.types[field.name] = "text"
            for test, declared in _DECLARED_TYPES.items():
                if getattr(pa.types, f"is_{test}")(kind):
                    self.types[field.name] = declared

    def rows(self, places: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        columns = [self.header[place] for place in places]
        groups, number = self._groups()
        for batch in self._batches(list(dict.fromkeys(columns)), groups):
            cells = [values_of(batch, column, self._name) for column in columns]
            for row in zip(*cells, strict=True) if cells else [()] * len(batch):
                number += 1
                if number > self.first:
                    yield number, list(row)

    def _groups(self) -> tuple[list[int], int]:
        """Return the row groups from the first row's group on, and the number of rows before it."""
        group = before = 0
        while group < self._file.num_row_groups:
            end = before + self._file.metadata.row_group(group).num_rows
            if end > self.first:
                break
            group, before = group + 1, end
        return list(range(group, self._file.num_row_groups)), before

    def _batches(self, columns: list[str], groups: list[int]) -> Iterator[RecordBatch]:
        """Yield a few rows at a time, or single rows if their texts are long.

        A dictionary can turn a small file into many long texts.
        """
        import pyarrow as pa

        unpacked = 0
        packed = _size_of(self._file)
        for batch in read_batches(self._file, _ROWS_AT_ONCE, columns=columns, row_groups=groups):
            rows = 1 if batch.nbytes > BATCH_CHARACTERS else _ROWS_AT_ONCE
            for row in range(0, len(batch), rows):
                piece = batch.slice(row, rows)
                values = [
                    column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                    for column in piece.columns
                ]
                if values:
                    piece = pa.record_batch(values, batch.schema.names)
                unpacked += piece.nbytes
                check_unpacked(self._name, unpacked, packed, _UNPACK)
                yield piece
