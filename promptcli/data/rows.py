"""Rows of files, pipes and URLs as Arrow batches: texts, and tables (``tables``).

Row i of a text is line i. A batch of sentences has the columns ``text`` and ``id``: the file's own
ids as text, or the numbers of the rows; and the file's other columns, typed, if they are wanted.
Batches of another layout (see ``layouts``) have its columns, all of them text.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from promptcli.data.bad_rows import BadRows
from promptcli.data.cells import CellReader, Column, reader_of
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.csv_options import CsvOptions
from promptcli.data.file_arguments import PROSE, extension_of, split_columns
from promptcli.data.input_files import (
    STANDARD,
    OpenText,
    check_file,
    count_lines,
    display_name,
    is_remote,
    open_text,
    without_end,
)
from promptcli.data.layouts import ID, NONE, NUMERIC, SENTENCES, TEXT, Columns, is_optional
from promptcli.data.parquet_files import CHARACTERS, RecordBatch, open_parquet
from promptcli.data.tables import (
    INPUT_FORMATS,
    MISSING,
    CsvTable,
    JsonTable,
    ParquetTable,
    Table,
    WorkbookTable,
)
from promptcli.errors import UsageError

#: Rows of a batch, at most; of long texts it has fewer.
BATCH = 4096
#: Extensions of tables; a file with another one is a text.
_JSON = (".json", ".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", *_JSON, ".xlsx", ".parquet")
_TEXTS = ("", ".txt", *PROSE)


@dataclass(frozen=True)
class Rows:
    """The rows of an open file; they can be walked once."""

    name: str  #: the path as given
    columns: Columns  #: column of a batch -> column of the file
    batches: Iterator[RecordBatch]
    sha256: Callable[[], str]  #: hex SHA-256 of the bytes of the file; right after the last batch
    #: about how many rows there are; None if that is not cheap to know
    total: Callable[[], int | None]
    #: the file's other columns, if they are wanted: each a column of the batches -> number, date
    #: (ISO text), truth or text
    types: Mapping[str, str] = field(default_factory=dict)
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
        first = next(self.batches)
        rows = dataclasses.replace(self, batches=itertools.chain([first], self.batches))
        return rows, first.column(TEXT).to_pylist()


@contextlib.contextmanager
def open_rows(
    path: str | Path,
    fields: ColumnChoice = ColumnChoice(),  # noqa: B008
    *,
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool | None = None,
    stdin: BinaryIO | None = None,
) -> Iterator[Rows]:
    """Open a file and read its first batch, so that a wrong file or field is known before any work
    is done.

    Args:
        path: A file or URL, of a table by its extension, or ``-``; also ``FILE:COLUMN``.
        fields: Which columns are read.
        csv: How a table is written (``CsvOptions``).
        skip_bad: Leave out the rows that cannot be read, and say how many and why; of a text they
            are blank. None: the user has no such choice.
        stdin: Read if the path is ``-``: a table or JSON if a field is named, else plain text.

    Raises:
        UsageError: An empty or unreadable file, or one that does not say how it is to be read.
    """
    path, named = split_columns(str(path))
    if named:
        fields = dataclasses.replace(fields, named=named)
    bad = BadRows(skip_bad)
    stdin = stdin if path == str(STANDARD) else None
    with open_from(path, fields, stdin, csv=csv, bad=bad) as rows:
        batches = rows.batches
        if TEXT in rows.columns:
            batches = with_row_numbers(batches)
        first = next(batches, None)
        if first is None:
            bad.tell(rows.name)
            raise UsageError(f"{display_name(path)} is empty; give a file with at least one row")
        yield dataclasses.replace(rows, batches=itertools.chain([first], batches))


@contextlib.contextmanager
def open_from(
    path: str | Path,
    fields: ColumnChoice,
    stdin: BinaryIO | None = None,
    *,
    csv: Mapping[str, Any] | None = None,
    start: int = 0,
    bad: BadRows,
) -> Iterator[Rows]:
    """Open the rows of a file from row ``start`` on, without ids if it has none; it may be
    empty.
    """
    options = CsvOptions.of(csv)
    extension = extension_of(path)[0]
    if not is_remote(path) and extension in (".parquet", ".xlsx"):
        check_file(Path(path), regular=True)
    is_table = extension in TABLES or (extension not in _TEXTS and extension in INPUT_FORMATS)
    if stdin is not None:
        is_table = bool(fields.names) or fields.layouts != (SENTENCES,)
    with open_text(path, stdin, stored=is_table) as text:
        if not is_table:
            yield _rows_of_text(text, fields, options, start, bad)
        elif extension == ".parquet":
            hint = "give another file"
            with open_parquet(text.file, text.name, hint=hint, error=UsageError) as file:
                table = ParquetTable(file, text.name)
                rows = _rows_of_table(table, text, fields, options, start, bad)
                yield dataclasses.replace(rows, total=lambda: file.metadata.num_rows)
        elif extension == ".xlsx":
            word = fields.first_word
            book = WorkbookTable(str(path), options, word)
            if book.word_is_sheet or ":" in word:
                column = "" if book.word_is_sheet else word.rpartition(":")[2]
                fields = fields.without_sheet(column)
            yield _rows_of_table(book, text, fields, options, start, bad)
        elif extension in _JSON or (stdin is not None and _begins_json(text)):
            whole = fields.cells or fields.layouts != (SENTENCES,)
            objects = JsonTable(text, options, bad, fields.names, whole)
            yield _rows_of_table(objects, text, fields, options, start, bad)
        else:
            lines = INPUT_FORMATS.get(extension, CsvTable)(text, options, bad)
            yield _rows_of_table(lines, text, fields, options, start, bad)


def _begins_json(text: OpenText) -> bool:
    return next(text.lines(), "").lstrip()[:1] in ("{", "[")


def _count(path: str | Path) -> int | None:
    """Return about how many rows a file with lines has; None if that is not cheap to know."""
    extension, ending = extension_of(path)
    if is_remote(path) or ending or extension in (".json", ".xlsx") or not Path(path).is_file():
        return None
    return count_lines(Path(path))


# Batches


def _rows_of_text(
    text: OpenText, fields: ColumnChoice, options: CsvOptions, start: int, bad: BadRows
) -> Rows:
    named = ",".join(fields.named) or fields.text or fields.id
    if SENTENCES not in fields.layouts or (named and named != NONE):
        wanted = named or " or ".join(", ".join(layout) for layout in fields.layouts)
        raise UsageError(
            f"{text.name} is plain text and has no columns; give a table with the columns {wanted}"
            " (.csv, .tsv or .jsonl), or name none"
        )

    def batches() -> Iterator[RecordBatch]:
        lines = itertools.islice(text.lines(options.encoding, bad), start, None)
        for _, block in _blocks((number, [without_end(line)]) for number, line in enumerate(lines)):
            yield _batch_of({TEXT: [line for (line,) in block]})
        bad.tell(text.name, "made blank")

    total = functools.partial(_count, text.path)
    return Rows(str(text.path), {TEXT: ""}, batches(), text.sha256, total, is_text=True)


def _rows_of_table(
    table: Table,
    text: OpenText,
    fields: ColumnChoice,
    options: CsvOptions,
    start: int,
    bad: BadRows,
) -> Rows:
    name = text.name
    total = functools.partial(_count, text.path)
    if not table.header:
        return Rows(name, {}, iter(()), text.sha256, total)
    columns = fields.choose(table.header, name, only=not table.are_texts)
    if isinstance(table, ParquetTable) and (nested := table.nested.intersection(columns.values())):
        raise UsageError(f"{name}: column {nested.pop()!r} holds lists or the like; name a text")
    cells = CellReader(options, are_texts=table.are_texts)
    others = list[Column]()
    if fields.cells:
        # those that are joined are kept beside the text, too
        chosen = {*columns.values(), *({TEXT} if "," in columns.get(TEXT, "") else ())}
        names = [column for column in table.header if column not in chosen]
        places = [table.header.index(column) for column in names]
        if names:
            others = cells.columns(table, names, _blocks(table.rows(places)))
    bad.forget()  # they are counted when they are read
    batches = _batches(table, name, columns, others, cells, start, bad)
    types = {renamed(column.name, columns): column.kind for column in others}
    return Rows(name, columns, batches, text.sha256, total, types)


def renamed(column: str, columns: Columns) -> str:
    """Return the name of another column in a batch: one of a role is taken."""
    return f"{column}.1" if column in (*columns, ID) else column


def _batches(
    table: Table,
    name: str,
    columns: Columns,
    others: Sequence[Column],
    cells: CellReader,
    start: int,
    bad: BadRows,
) -> Iterator[RecordBatch]:
    """Yield the chosen columns of a table, and the others behind them."""
    import pyarrow as pa

    #: each with the columns of the file that it has: several are joined
    roles = {
        role: [column] if column in table.header else column.split(",")
        for role, column in columns.items()
    }
    wanted = [*itertools.chain(*roles.values()), *(column.name for column in others)]
    places = [table.header.index(column) for column in wanted]
    readers = {role: reader_of(role, cells) for role in roles}
    is_first = True
    for numbers, rows in _blocks(table.rows(places, start)):
        held = iter(list(zip(*rows, strict=True)))
        wrong = dict[int, str]()
        arrays = dict[str, Any]()
        for role, parts in roles.items():
            of_parts = list(itertools.islice(held, len(parts)))
            is_text = role not in (TEXT, ID, *NUMERIC)
            if is_text and is_first and None not in map(cells.number, of_parts[0]):
                raise UsageError(f"{name}: column {parts[0]!r} holds numbers, and {role} is text")
            texts = [
                _texts(of_part, readers[role], column, wrong, optional=is_optional(role))
                for column, of_part in zip(parts, of_parts, strict=True)
            ]
            arrays[role] = texts[0]
            if len(texts) > 1:
                arrays[role] = [" ".join(filter(None, row)) for row in zip(*texts, strict=True)]
        is_first = False
        for place, reason in wrong.items():
            bad.add(name, table.kind, numbers[place], reason)
        for column in others:
            arrays[renamed(column.name, columns)] = column.array(next(held))
        batch = _batch_of(arrays)
        if wrong:
            batch = batch.filter(pa.array([place not in wrong for place in range(len(batch))]))
        if len(batch):
            yield batch
    bad.tell(name)


def _texts(
    cells: Sequence[Any],
    read: Callable[[Any], str],
    column: str,
    wrong: dict[int, str],
    *,
    optional: bool,
) -> list[str]:
    """Return cells as texts; those that cannot be read are blank, and the reasons go to ``wrong``
    by their place.
    """
    texts = list[str]()
    for place, cell in enumerate(cells):
        try:
            if cell is MISSING and not optional:
                raise ValueError("is missing")
            texts.append(read(cell))
        except ValueError as problem:
            wrong.setdefault(place, f"{column!r} {problem}")
            texts.append("")
    return texts


def _blocks(rows: Iterable[tuple[int, list[Any]]]) -> Iterator[tuple[list[int], list[list[Any]]]]:
    """Yield the numbers and cells of up to ``BATCH`` rows; of long texts fewer."""
    numbers, block, size = list[int](), list[list[Any]](), 0
    for number, row in rows:
        numbers.append(number)
        block.append(row)
        size += sum(len(cell) for cell in row if type(cell) is str)
        if len(block) == BATCH or size >= CHARACTERS:
            yield numbers, block
            numbers, block, size = [], [], 0
    if block:
        yield numbers, block


def _batch_of(columns: Mapping[str, Any]) -> RecordBatch:
    """Return a batch of Arrow arrays, and of texts in lists."""
    import pyarrow as pa

    arrays = {}
    for name, values in columns.items():
        if isinstance(values, list):
            builder = pa.lib.StringBuilder()  # pa.array would import pandas, which is slow to start
            builder.append_values(values)
            values = builder.finish()
        arrays[name] = values
    return pa.record_batch(arrays)


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


def windows(batches: Iterable[RecordBatch], rows: int, most_bytes: int) -> Iterator[RecordBatch]:
    """Yield batches of ``rows`` rows.

    A window is shorter at the end, and once it holds ``most_bytes`` of text.
    """
    import pyarrow as pa

    pieces = list[RecordBatch]()
    count = size = 0

    def window() -> RecordBatch:
        joined = pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]
        pieces.clear()
        return joined

    for batch in batches:
        while len(batch):
            piece = batch.slice(0, rows - count)
            batch = batch.slice(len(piece))
            pieces.append(piece)
            count += len(piece)
            size += piece.nbytes
            if count == rows or size >= most_bytes:
                yield window()
                count = size = 0
    if pieces:
        yield window()


def sentences_of(rows: Rows) -> Rows:
    """Return the sentences in all columns of pairs and triplets, with the ids ``ROW:COLUMN``, rows
    counted from 0; rows of sentences alone are returned unchanged.
    """
    if TEXT in rows.columns:
        return rows
    columns = {role: name for role, name in rows.columns.items() if role not in (ID, *NUMERIC)}

    def batches() -> Iterator[RecordBatch]:
        import pyarrow as pa

        start = 0
        for batch in rows.batches:
            sides = zip(*(batch.column(role).to_pylist() for role in columns), strict=True)
            texts = list(itertools.chain.from_iterable(sides))
            numbers = range(start, start + len(batch))
            ids = [f"{number}:{name}" for number in numbers for name in columns.values()]
            yield _batch_of({TEXT: texts, ID: pa.array(ids, pa.string())})
            start += len(batch)

    return dataclasses.replace(rows, columns={TEXT: ""}, batches=batches())
