"""Parquet files read batch by batch: whatever is wrong with one is one line, whoever reads it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from promptcli.errors import CheckFailedError, PromptcliError, UsageError, one_line


@contextlib.contextmanager
def open_parquet(
    source: Path | str | BinaryIO, name: Path | str, *, mend: str, error: type[PromptcliError] = CheckFailedError
) -> Iterator[Any]:
    """Yield an open ``pyarrow.parquet.ParquetFile``; ``name``, ``mend`` and ``error`` are for what is wrong with it.

    Raises:
        PromptcliError: of class ``error``: it is no whole Parquet file; also while the block reads it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # small pages at a time: without a buffer size a whole column chunk is read at once
        with pq.ParquetFile(source, buffer_size=1 << 20) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:  # the last: the name of a column
        raise error(f"{name} is not a whole Parquet file ({one_line(problem, 100)}); {mend}") from None


def read_batches(file: Any, rows: int, **options: Any) -> Iterator[Any]:
    """Yield batches of so many rows, every text in them UTF-8; options are those of ``ParquetFile.iter_batches``.

    Raises:
        pyarrow.ArrowException, OSError: they cannot be read, for ``open_parquet`` to say.
    """
    for batch in file.iter_batches(rows, **options):
        batch.validate(full=True)
        yield batch


def cells(batch: Any, column: str, name: Path | str) -> list[Any]:
    """Return a column of a batch as Python's values; ``name`` is the file's.

    Raises:
        UsageError: It holds what Python has no value for, such as a date after the year 9999.
    """
    found = batch.column(column)
    try:
        values: list[Any] = found.to_pylist()
    except (OverflowError, ValueError) as problem:
        raise UsageError(
            f"{name}: column {column!r} of {found.type} cannot be read ({one_line(problem, 80)}); give text or whole"
            " numbers"
        ) from None
    return values
