"""The rows of Parquet files, read column by column."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from promptcli.data.parquet_files import (
    CHARACTERS,
    RecordBatch,
    groups_from,
    open_parquet,
    read_few,
    values_of,
)
from promptcli.errors import UsageError
from promptcli.retrieval.reading.bad_lines import BadRows
from promptcli.retrieval.reading.column_forms import ColumnForms
from promptcli.retrieval.reading.layouts import Columns
from promptcli.retrieval.reading.line_readers import DEEPEST, TOO_DEEP
from promptcli.retrieval.reading.row_batches import (
    BATCH,
    OpenFile,
    Rows,
    batch_of,
    check_row,
    file_sha256,
    windows,
)


@contextlib.contextmanager
def open_parquet_rows(file: OpenFile, start: int) -> Iterator[Rows]:
    """Yield the rows of a Parquet file from row ``start`` on."""
    name, fields = file.name, file.fields
    with open_parquet(file.file, name, hint="give another file", error=UsageError) as parquet:
        header = parquet.schema_arrow.names
        count = parquet.metadata.num_rows
        repeated = next((column for column in header if header.count(column) > 1), None)
        if repeated is not None:
            raise UsageError(f"{name}: several columns are named {repeated!r}; rename them")
        columns = fields.choose(header, name, tell=file.tell)
        forms = ColumnForms()
        others = None
        if fields.cells:
            chosen = set(columns.values())
            others = [column for column in header if column not in chosen]
        batches = _batches_of_groups(parquet, columns, others, name, start, file.bad, forms)
        digest = functools.partial(file_sha256, file.path)
        yield Rows(str(file.path), columns, batches, digest, lambda: count, forms)


def _batches_of_groups(
    file: Any,
    columns: Columns,
    others: Sequence[str] | None,
    name: str,
    start: int,
    bad: BadRows,
    forms: ColumnForms,
) -> Iterator[RecordBatch]:
    """Yield the rows of a Parquet file, column by column, from row ``start`` on.

    The cells of the columns ``others`` come last, unless it is None.
    """
    _check_types(file.schema_arrow, columns, others or (), name)
    groups, row = groups_from(file, start)
    read = [*set(columns.values()), *(others or ())]
    few_rows = read_few(file, name, columns=read, row_groups=groups)
    for batch in windows(few_rows, BATCH, CHARACTERS):
        wanted = batch.slice(max(start - row, 0))
        row += len(batch)
        values = [values_of(wanted, column, name) for column in columns.values()]
        if others is not None:
            values.append(_other_cells(wanted, others, name))
            for cells in values[-1]:
                forms.see(cells)
        numbers = range(row - len(wanted) + 1, row + 1)
        if bad.skips:
            checked = [
                check_row(columns, each, name, "row", number, bad)
                for number, each in zip(numbers, zip(*values, strict=True), strict=True)
            ]
            values = list(map(list, zip(*checked, strict=True)))
        yield batch_of(columns, values, name, "row", numbers, bad)


def _check_types(schema: Any, columns: Columns, others: Sequence[str], name: str) -> None:
    """Refuse lists and the like in place of texts, and lists of lists that Python cannot write."""
    import pyarrow as pa

    for column in columns.values():
        kind = schema.field(column).type
        if pa.types.is_nested(kind):
            raise UsageError(f"{name}: column {column!r} holds {kind!s:.80}; give a column of text")
    for column in others:
        kinds = [schema.field(column).type]
        for _ in range(DEEPEST):
            kinds = [kind.field(place).type for kind in kinds for place in range(kind.num_fields)]
        if kinds:
            raise UsageError(f"{name}: column {column!r}: {TOO_DEEP}; leave it out")


def _other_cells(batch: RecordBatch, columns: Sequence[str], name: str) -> list[dict[str, Any]]:
    """Return the cells of each row by their columns."""
    if not columns:
        return [{} for _ in range(len(batch))]
    values = [values_of(batch, column, name) for column in columns]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
