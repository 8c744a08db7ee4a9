"""Parquet files: opened, checked for their unpacked size, and read a few rows at a time."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from promptcli.data.input_files import check_unpacked
from promptcli.errors import CheckFailedError, PromptcliError, UsageError, one_line

#: Approximate characters of a batch, so that very long texts do not fill the memory.
CHARACTERS = 1 << 20
#: Rows of a Parquet file read at once.
_FEW = 64
#: Advice for a foreign file that unpacks to too much.
_UNPACK = "write it again, uncompressed and without a dictionary"
#: Least bytes of a Parquet value of any type, null included: its levels, and its slots in Arrow's
#: column and Python's list.
_VALUE = 16

#: pyarrow has no types: this is its ``RecordBatch``.
RecordBatch = Any


def groups_from(file: Any, start: int) -> tuple[list[int], int]:
    """Return the row groups from the group of row ``start`` on, and the number of their first
    row.
    """
    group = first_row = 0
    while group < file.num_row_groups:
        end = first_row + file.metadata.row_group(group).num_rows
        if end > start:
            break
        group, first_row = group + 1, end
    return list(range(group, file.num_row_groups)), first_row


def read_few(file: Any, name: str, **options: Any) -> Iterator[RecordBatch]:
    """Yield a few rows at a time; a single row if texts are long.

    A dictionary can turn a small file into many long texts. Options are those of ``iter_batches``.
    """
    import pyarrow as pa

    unpacked = 0
    packed = _size_of(file)
    for batch in read_batches(file, _FEW, **options):
        rows = 1 if batch.nbytes > CHARACTERS else _FEW
        for row in range(0, len(batch), rows):
            columns = [
                column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                for column in batch.slice(row, rows).columns
            ]
            piece = batch.slice(row, rows)
            if columns:
                piece = pa.record_batch(columns, batch.schema.names)
            unpacked += piece.nbytes
            check_unpacked(name, unpacked, packed, _UNPACK)
            yield piece


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

    The other arguments are for the message about a damaged file.

    With ``sums`` the checksum of each page is compared when it is read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # small pages at a time: without a buffer size a complete column chunk is read at once
        with pq.ParquetFile(source, buffer_size=1 << 20, page_checksum_verification=sums) as file:
            check_unpacked(str(name), _unpacked_size(file.metadata), _size_of(file), _UNPACK)
            yield file
    except (
        pa.ArrowException,
        OSError,
        UnicodeDecodeError,
    ) as problem:  # the last: the name of a column
        raise error(
            f"{name} is not a whole Parquet file ({one_line(problem, 100)}); {hint}"
        ) from None


def _size_of(file: Any) -> int:
    """Return the bytes of an open Parquet file."""
    return sum(column.total_compressed_size for column in _chunks(file.metadata))


def _unpacked_size(metadata: Any) -> int:
    """Return the least bytes of a Parquet file in memory, by its footer."""
    return sum(
        max(column.total_uncompressed_size, column.num_values * _VALUE)
        for column in _chunks(metadata)
    )


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
        why = f"cannot be read ({one_line(problem, 80)}); give text or whole numbers"
        raise UsageError(f"{name}: column {column!r} of {array.type} {why}") from None
