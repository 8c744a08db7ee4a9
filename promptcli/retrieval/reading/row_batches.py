"""Rows as Arrow batches: how the numbered rows of a file become them, whatever its format."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from promptcli.data.parquet_files import CHARACTERS, RecordBatch
from promptcli.errors import UsageError
from promptcli.retrieval.reading.bad_lines import BadRows
from promptcli.retrieval.reading.cells import cells_array, column_texts, is_plain
from promptcli.retrieval.reading.column_choice import ColumnChoice, Tell
from promptcli.retrieval.reading.column_forms import ColumnForms
from promptcli.retrieval.reading.input_files import STANDARD, open_file, without_end
from promptcli.retrieval.reading.layouts import CELLS, ID, TEXT, Columns, is_optional
from promptcli.retrieval.reading.line_readers import NumberedRows, as_json

#: Rows of a batch, at most; of long texts it has fewer.
BATCH = 4096
#: Columns of numbers, whose form the other columns of a file help to tell.
_SCORES = frozenset(("score", "grade"))


@dataclass(frozen=True)
class Rows:
    """The rows of an open file; they can be walked once."""

    name: str  #: the path as given
    columns: Columns  #: column of a batch -> column of the file
    batches: Iterator[RecordBatch]
    sha256: Callable[[], str]  #: hex SHA-256 of the bytes of the file; right after the last batch
    #: about how many rows there are; None if that is not cheap to know
    total: Callable[[], int | None]
    #: what the cells of the other columns have shown, if these are read; whole after the last batch
    forms: ColumnForms = field(default_factory=ColumnForms)
    is_text: bool = False  #: whether they are the lines of a text, rather than rows of a table

    def __iter__(self) -> Iterator[RecordBatch]:
        return self.batches

    def tuples(self) -> Iterator[tuple[str, ...]]:
        """Yield each row's texts, without the id of a sentence."""
        names = [column for column in self.columns if column != ID]
        for batch in self.batches:
            yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)

    def texts(self) -> Iterator[str]:
        """Yield the first text of each row."""
        return (row[0] for row in self.tuples())

    def peek(self) -> "tuple[Rows, list[str]]":
        """Return the same rows, still to be walked, and the texts of the first batch."""
        head = list(itertools.islice(self.batches, 1))
        texts = [text for batch in head for text in batch.column(TEXT).to_pylist()]
        return dataclasses.replace(self, batches=itertools.chain(head, self.batches)), texts


@dataclass(frozen=True)
class OpenFile:
    """An open file, and how its rows are to be read."""

    path: str | Path
    file: BinaryIO
    fields: ColumnChoice
    tell: Tell
    bad: BadRows

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return display_name(self.path)


def windows(batches: Iterable[RecordBatch], rows: int, most_bytes: int) -> Iterator[RecordBatch]:
    """Yield batches of ``rows`` rows.

    A window is shorter at the end, and once it holds ``most_bytes`` of text.
    """
    import pyarrow as pa

    pieces = list[RecordBatch]()
    count = 0
    size = 0
    for batch in batches:
        while len(batch):
            pieces.append(batch.slice(0, rows - count))
            batch = batch.slice(len(pieces[-1]))
            count = count + len(pieces[-1])
            size = size + pieces[-1].nbytes
            if count == rows or size >= most_bytes:
                yield pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]
                pieces = []
                count = 0
                size = 0
    if pieces:
        yield pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]


def display_name(path: str | Path) -> str:
    """Return what a file is called in messages."""
    if str(path) == str(STANDARD):
        return "standard input"
    return str(path)


def file_sha256(path: str | Path) -> str:
    """Return the hex SHA-256 of a file's or URL's stored bytes."""
    with open_file(path) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def batches_of(
    rows: NumberedRows,
    columns: Columns,
    with_cells: bool,
    name: str,
    bad: BadRows,
    forms: ColumnForms,
) -> Iterator[RecordBatch]:
    """Yield the chosen columns of rows, and the others as cells."""
    in_file = list(columns.values())  # one column may have two roles: id and text
    sees_forms = with_cells or not _SCORES.isdisjoint(columns)
    numbers: list[int] = []
    cells: list[Sequence[Any]] = []
    size = 0
    for number, row in rows:
        missing = None
        if row is not None:
            missing = _missing_field(row, columns)
        if missing is not None:
            reason = f"no field {missing!r}; its fields: {', '.join(row)}"
            bad.add(name, "line", number, reason, as_json(row))
            row = None
        if row is None:
            values: list[Any] = [""] * len(in_file)
        else:
            values = [row.get(column) for column in in_file]
        if sees_forms:
            fields = row or {}
            others = {key: value for key, value in fields.items() if key not in in_file}
            forms.see(others)
            if with_cells:
                values.append(others)
        if bad.skips:
            values = check_row(columns, values, name, "line", number, bad, row)
        numbers.append(number)
        cells.append(values)
        size += sum(map(_characters, values))
        if len(cells) == BATCH or size >= CHARACTERS:
            yield batch_of(columns, list(zip(*cells, strict=True)), name, "line", numbers, bad)
            numbers = []
            cells = []
            size = 0
    if cells:
        yield batch_of(columns, list(zip(*cells, strict=True)), name, "line", numbers, bad)


def batches_of_texts(
    lines: Iterator[str], first: int, columns: Columns, with_cells: bool, name: str, bad: BadRows
) -> Iterator[RecordBatch]:
    """Yield batches of lines that are texts; the first of them is line ``first``."""
    texts: list[str] = []
    size = 0

    def batch() -> RecordBatch:
        cells: list[Sequence[Any]] = [texts] * len(columns)
        if with_cells:
            cells.append([{}] * len(texts))
        return batch_of(columns, cells, name, "line", range(first, first + len(texts)), bad)

    for line in lines:
        text = without_end(line)
        if bad.skips:
            number = first + len(texts)
            text, *_ = check_row(columns, [text] * len(columns), name, "line", number, bad)
        texts.append(text)
        size += len(text)
        if len(texts) == BATCH or size >= CHARACTERS:
            yield batch()
            first += len(texts)
            texts = []
            size = 0
    if texts:
        yield batch()


def _characters(value: Any) -> int:
    """Return about how many characters a value has as a text."""
    if type(value) is str:
        return len(value)
    if type(value) is dict:
        return sum(map(_characters, value.values()))
    return len(str(value))


def _missing_field(row: Mapping[str, Any], columns: Columns) -> str | None:
    """Return a field that a row lacks, other than a hard negative."""
    for role, column in columns.items():
        if column not in row and not is_optional(role):
            return column
    return None


def check_row(
    columns: Columns,
    values: Sequence[Any],
    name: str,
    kind: str,
    number: int,
    bad: BadRows,
    row: Any = None,
) -> list[Any]:
    """Return the cells of a row, or blank ones if one of them cannot be read.

    ``row`` is what was read, if that is more.
    """
    if all(map(is_plain, values[: len(columns)])):
        return list(values)
    cells = [[value] for value in values[: len(columns)]]
    try:
        column_texts(columns, cells, kind, [number], blank=True)
    except ValueError as error:
        if row is None:
            row = dict(zip(columns.values(), values, strict=False))
        bad.add(name, kind, number, str(error).removeprefix(f"{kind} {number}: "), as_json(row))
        return [""] * len(columns) + [{} for _ in values[len(columns) :]]
    return list(values)


def batch_of(
    columns: Columns,
    cells: Sequence[Sequence[Any]],
    name: str,
    kind: str,
    numbers: Sequence[int],
    bad: BadRows,
) -> RecordBatch:
    """Return columns of the file, and the other cells of the rows if they come last.

    ``kind`` is what numbers count; ``bad`` has taken the rows that cannot be read, if it does.
    """
    import pyarrow as pa

    if len(cells) > len(columns):
        columns = columns | {CELLS: CELLS}
    arrays = {}
    try:
        for column, texts in column_texts(columns, cells, kind, numbers, blank=True).items():
            if column == CELLS:
                arrays[column] = cells_array(texts)
                continue
            builder = pa.lib.StringBuilder()  # pa.array would import pandas, which is slow to start
            builder.append_values(texts)
            arrays[column] = builder.finish()
    except ValueError as error:
        raise UsageError(f"{name}: {error}{bad.hint}") from None
    return pa.record_batch(arrays)
