"""Rows of files, pipes and URLs as Arrow batches: text, CSV, TSV, JSON lines and Parquet.

Row i is line i.

A batch of sentences has the columns ``text`` and ``id``: the file's own ids as text, or the numbers
of the rows; and ``cells``, the file's other columns, if they are wanted. Batches of another layout
(see ``layouts``) have its columns, all of them text.
"""

import contextlib
import csv
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from promptcli.data.bad_lines import REFUSED, BadRows
from promptcli.data.cells import cells_array, column_texts, is_plain
from promptcli.data.column_choice import ColumnChoice, Tell
from promptcli.data.column_forms import ColumnForms
from promptcli.data.dialect import Dialect
from promptcli.data.file_arguments import format_of, split_columns
from promptcli.data.input_files import (
    LONGEST_LINE,
    STANDARD,
    Text,
    check_file,
    count_lines,
    has_quotes,
    is_remote,
    open_file,
    open_text,
)
from promptcli.data.layouts import CELLS, ID, PAIRS, TEXT, Columns, is_optional, unique_names
from promptcli.data.line_readers import (
    DEEPEST,
    READERS,
    TOO_DEEP,
    NumberedRows,
    as_json,
    with_all_negatives,
    with_title,
)
from promptcli.data.parquet_files import (
    CHARACTERS,
    RecordBatch,
    groups_from,
    open_parquet,
    read_few,
    values_of,
)
from promptcli.data.sniffing import dialect_of
from promptcli.errors import UsageError
from promptcli.notes import note

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


@contextlib.contextmanager
def open_rows(
    path: str | Path,
    fields: ColumnChoice = ColumnChoice(),  # noqa: B008
    *,
    stdin: BinaryIO | None = None,
    skip_blank: bool = False,
    tell: Tell = note,
    bad: BadRows = REFUSED,
) -> Iterator[Rows]:
    """Open a file and read its first batch, so that a wrong file or field is known before any work
    is done.

    Args:
        path: A file or URL in the format of its extension (see ``file_arguments.EXTENSIONS``), or
            ``-``; also ``FILE:COLUMN``.
        fields: Which columns are read.
        stdin: Read if the path is ``-``: a table or JSON if a field is named, else plain text.
        skip_blank: Leave out empty sentences and number the others.
        tell: Gets what is guessed.
        bad: Gets the rows that cannot be read.
    """
    path, named = split_columns(str(path))
    if named:
        fields = dataclasses.replace(fields, named=named)
    if path != str(STANDARD):
        stdin = None
    with open_from(path, fields, stdin, tell=tell, bad=bad) as rows:
        yield numbered_rows(rows, skip_blank=skip_blank)


def numbered_rows(rows: Rows, *, skip_blank: bool = False) -> Rows:
    """Return rows whose first batch is read, with numbers if they have no ids; refuse an empty
    file.
    """
    batches = rows.batches
    if skip_blank:
        import pyarrow.compute as pc

        trimmed = ((batch, pc.utf8_trim_whitespace(batch.column(TEXT))) for batch in rows.batches)
        batches = filter(len, (batch.filter(pc.not_equal(texts, "")) for batch, texts in trimmed))
    if TEXT in rows.columns:
        batches = with_row_numbers(batches)
    first = next(batches, None)
    if first is None:
        raise UsageError(f"{_display_name(rows.name)} is empty; give a file with at least one row")
    return dataclasses.replace(rows, batches=itertools.chain([first], batches))


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


# From the bytes of one file to its batches


@contextlib.contextmanager
def open_from(
    path: str | Path,
    fields: ColumnChoice,
    stdin: BinaryIO | None = None,
    *,
    start: int = 0,
    tell: Tell = note,
    bad: BadRows = REFUSED,
) -> Iterator[Rows]:
    """Open the rows of a file from row ``start`` on, without ids if it has none.

    ``tell`` gets what is guessed.
    """
    with recognise(path, fields, stdin, tell=tell, bad=bad) as file, file.rows(start) as rows:
        yield rows


@dataclass(frozen=True)
class RecognisedFile:
    """An open file whose form is known, by its name and its head; its rows can be walked once."""

    path: str | Path
    fields: ColumnChoice
    tell: Tell
    bad: BadRows
    form: str  #: by its name, see ``file_arguments.EXTENSIONS``
    file: BinaryIO
    text: Text | None  #: its lines; None if it is Parquet or a workbook
    dialect: Dialect | None  #: None if it has no lines
    is_stored: bool  #: whether it can be read again, as a pipe and a URL cannot

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return _display_name(self.path)

    @property
    def is_text(self) -> bool:
        """Whether it is a text, of lines or passages, rather than a table."""
        return self.dialect is not None and self.dialect.format == "text"

    @property
    def lines(self) -> Iterator[str]:
        """The lines of a text, with their ends."""
        if self.text is None:
            return iter(())
        return self.text.lines

    @contextlib.contextmanager
    def rows(self, start: int = 0) -> Iterator[Rows]:
        """Yield its rows from row ``start`` on, without ids if it has none."""
        if self.text is not None and self.dialect is not None:
            yield self._of_lines(self.text, self.dialect, start)
        elif self.form == "xlsx":
            yield _of_workbook(self.path, self.file, self.fields, start, self.tell, self.bad)
        else:
            with _of_parquet(self, start) as rows:
                yield rows

    def _of_lines(self, text: Text, dialect: Dialect, start: int) -> Rows:
        name, fields, tell, bad = self.name, self.fields, self.tell, self.bad
        if not text.head:
            return Rows(str(self.path), {}, iter(()), text.sha256, lambda: 0)
        lines = itertools.islice(text.lines, dialect.skipped, None)
        header, rows = READERS[dialect.format](lines, dialect, name, tell, bad)
        if (
            dialect.format == "jsonl"
            and {"_id", "title", TEXT} <= set(header or ())
            and fields.text in (None, TEXT)
        ):
            tell(f"{name}: a BEIR corpus; title and text are read as one")
            rows = ((number, row and {**row, TEXT: with_title(row)}) for number, row in rows)
        columns = fields.choose(header, name, dialect, tell)
        if (
            header is not None
            and dialect.format != "table"
            and PAIRS[0] in columns
            and not fields.named
        ):
            rows = with_all_negatives(rows, header, name, bad)
        wanted = itertools.islice(rows, start, None)
        forms = ColumnForms(dialect.delimiter if dialect.format == "table" else None)
        batches = _batches(wanted, columns, fields.cells, name, bad, forms)

        def total() -> int | None:
            if not self.is_stored or not text.plain or dialect.format == "array":
                return None
            above = dialect.skipped + (dialect.format == "table" and not dialect.header)
            return max(_count_rows(Path(self.path), dialect) - above, 0)

        is_text = self.is_text
        return Rows(str(self.path), columns, batches, text.sha256, total, forms, is_text)


@contextlib.contextmanager
def recognise(
    path: str | Path,
    fields: ColumnChoice,
    stdin: BinaryIO | None = None,
    *,
    tell: Tell = note,
    bad: BadRows = REFUSED,
) -> Iterator[RecognisedFile]:
    """Open a file and tell its form by its name and its head: text or table, and in what dialect.

    Whatever reads files of sentences asks here, so that a file is the same to all.
    """
    form, ending = format_of(path)
    if form in ("parquet", "xlsx") and not is_remote(path):
        check_file(Path(path), regular=True)
    with contextlib.nullcontext(stdin) if stdin is not None else open_file(path) as file:
        is_stored = stdin is None and not is_remote(path) and Path(path).is_file()
        text = None
        dialect = None
        if form not in ("parquet", "xlsx"):
            name = _display_name(path)
            text = open_text(file, name, ending, tell, bad)
            dialect = dialect_of(path, text, fields, name, tell) if text.head else Dialect("text")
        yield RecognisedFile(path, fields, tell, bad, form, file, text, dialect, is_stored)


@contextlib.contextmanager
def _of_parquet(file: RecognisedFile, start: int) -> Iterator[Rows]:
    """Yield the rows of a Parquet file."""
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
        batches = _parquet(parquet, columns, others, name, start, file.bad, forms)
        digest = functools.partial(file_sha256, file.path)
        yield Rows(str(file.path), columns, batches, digest, lambda: count, forms)


def _of_workbook(
    path: str | Path, file: BinaryIO, fields: ColumnChoice, start: int, tell: Tell, bad: BadRows
) -> Rows:
    """Return the rows of a sheet, whose first row that is not empty is its header."""
    from promptcli.data.xlsx import Workbook

    name = str(path)
    workbook = Workbook(file, name)
    sheet, fields = fields.of_sheet(workbook.sheets)
    rows = workbook.rows(sheet)
    first = next((row for row in rows if any(cell is not None for cell in row)), None)
    digest = functools.partial(file_sha256, path)
    if first is None:
        return Rows(name, {}, iter(()), digest, lambda: 0)
    header = [
        str(number) if cell is None else str(cell).strip() for number, cell in enumerate(first, 1)
    ]
    names = unique_names(header)
    columns = fields.choose(header, name, tell=tell)
    numbered = enumerate(map(functools.partial(_object, names), rows), 1)
    forms = ColumnForms()
    wanted = itertools.islice(numbered, start, None)
    batches = _batches(wanted, columns, fields.cells, name, bad, forms)
    return Rows(name, columns, batches, digest, lambda: None, forms)


def _object(names: Sequence[str], cells: Sequence[Any]) -> dict[str, Any] | None:
    """Return the cells of a row by their columns; None if all are empty."""
    if all(cell is None for cell in cells):
        return None
    return dict(zip(names, cells, strict=False))


def _count_rows(path: Path, dialect: Dialect) -> int:
    """Return the number of rows of a plain file, its header and blank lines included.

    A quoted cell may have lines.
    """
    if dialect.format == "table" and dialect.quoted and has_quotes(path):
        csv.field_size_limit(LONGEST_LINE)
        with path.open(
            encoding="latin-1", newline=""
        ) as lines:  # which decodes any byte, and quotes as themselves
            return sum(1 for _ in csv.reader(lines, delimiter=dialect.delimiter))
    return count_lines(path)


def _display_name(path: str | Path) -> str:
    if str(path) == str(STANDARD):
        return "standard input"
    return str(path)


def file_sha256(path: str | Path) -> str:
    """Return the hex SHA-256 of a file's or URL's bytes, as they are stored."""
    with open_file(path) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def with_row_numbers(batches: Iterator[RecordBatch], row: int = 0) -> Iterator[RecordBatch]:
    """Yield batches of sentences with the numbers of the rows as ids if they have none."""
    import numpy as np
    import pyarrow as pa

    for batch in batches:
        if ID in batch.schema.names:
            yield batch
        else:
            numbers = pa.py_buffer(np.arange(row, row + len(batch)))
            yield batch.append_column(
                ID, pa.Array.from_buffers(pa.int64(), len(batch), [None, numbers])
            )
        row += len(batch)


def _parquet(
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
                _check_row(columns, each, name, "row", number, bad)
                for number, each in zip(numbers, zip(*values, strict=True), strict=True)
            ]
            values = list(map(list, zip(*checked, strict=True)))
        yield _batch(columns, values, name, "row", numbers, bad)


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


def _batches(
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
            values = _check_row(columns, values, name, "line", number, bad, row)
        numbers.append(number)
        cells.append(values)
        size += sum(map(_characters, values))
        if len(cells) == BATCH or size >= CHARACTERS:
            yield _batch(columns, list(zip(*cells, strict=True)), name, "line", numbers, bad)
            numbers = []
            cells = []
            size = 0
    if cells:
        yield _batch(columns, list(zip(*cells, strict=True)), name, "line", numbers, bad)


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


def _check_row(
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


def _batch(
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
