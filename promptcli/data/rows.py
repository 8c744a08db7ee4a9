"""Rows of files, pipes and URLs in batches: texts, and tables (``tables``).

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

from promptcli.data.cells import CellReader, common_kind, text_of, type_of
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.csv_options import CsvOptions
from promptcli.data.input_files import (
    PROSE,
    REFUSED,
    STANDARD,
    BadRows,
    OpenText,
    check_file,
    count_lines,
    extension_of,
    is_remote,
    open_text,
    split_columns,
)
from promptcli.data.layouts import ID, NONE, NUMERIC, SENTENCES, TEXT, ColumnNames
from promptcli.data.parquet_files import CHARACTERS, open_parquet
from promptcli.data.tables import (
    INPUT_FORMATS,
    CsvTable,
    JsonTable,
    ParquetTable,
    RowTable,
    TextTable,
    WorkbookTable,
)
from promptcli.errors import UsageError

#: Rows of a batch, at most; of long texts it has fewer.
BATCH = 4096
#: Extensions of tables; a file with another one is a text.
_JSON = (".json", ".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", *_JSON, ".xlsx", ".parquet")
_TEXTS = ("", ".txt", *PROSE)

#: Columns of some rows, each with its cells.
RowBatch = dict[str, Sequence[Any]]


@dataclass(frozen=True)
class Rows:
    """The rows of an open file; they can be walked once."""

    name: str  #: the path as given
    columns: ColumnNames  #: column of a batch -> column of the file
    batches: Iterator[RowBatch]
    #: hex SHA-256 of the bytes of the file; right after the last batch
    sha256: Callable[[], str] = lambda: ""
    #: about how many rows there are; None if that is not cheap to know
    total: Callable[[], int | None] = lambda: None
    head: Sequence[str] = ()  #: the texts of the first batch
    #: the file's other columns, if they are wanted: each a column of the batches -> number, date
    #: (ISO text), truth or text
    types: Mapping[str, str] = field(default_factory=dict)
    is_text: bool = False  #: whether they are the lines of a text, rather than rows of a table

    def __iter__(self) -> Iterator[RowBatch]:
        return self.batches

    def tuples(self) -> Iterator[tuple[str, ...]]:
        """Yield each row's texts, without the id of a sentence."""
        names = [column for column in self.columns if column != ID]
        for batch in self.batches:
            yield from zip(*(batch[name] for name in names), strict=True)

    def texts(self) -> Iterator[str]:
        """Yield the first text of each row."""
        return (row[0] for row in self.tuples())


@contextlib.contextmanager
def open_rows(
    path: str | Path,
    fields: ColumnChoice = ColumnChoice(),  # noqa: B008
    *,
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool | None = None,
    stdin: BinaryIO | None = None,
    start: int = 0,
    number: int = 0,
    again: bool = False,
    may_be_empty: bool = False,
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
        start: The first row that is read.
        number: Its id, if the file has no ids.
        again: Whether the file was read before: rows that cannot be read are left out in silence.
        may_be_empty: Whether a file without rows is allowed.

    Raises:
        UsageError: An empty or unreadable file, or one that does not say how it is to be read.
    """
    path, named = split_columns(str(path))
    if named:
        fields = dataclasses.replace(fields, named=named)
    bad = BadRows(True if again else skip_bad, quiet=again)
    stdin = stdin if path == str(STANDARD) else None
    options = CsvOptions.of(csv)
    extension = extension_of(path)[0]
    if not is_remote(path) and extension in (".parquet", ".xlsx"):
        check_file(Path(path), regular=True)
    is_table = extension in TABLES or (extension not in _TEXTS and extension in INPUT_FORMATS)
    if stdin is not None:
        is_table = bool(fields.names) or fields.layouts != (SENTENCES,)
    with open_text(path, stdin, stored=is_table) as text, contextlib.ExitStack() as opened:
        table: RowTable
        if not is_table:
            _check_columns_of_text(fields, text.name)
            table = TextTable(text, options, bad)
        elif extension == ".parquet":
            reading = open_parquet(text.file, text.name, hint="give another file", error=UsageError)
            table = ParquetTable(opened.enter_context(reading), text.name)
        elif extension == ".xlsx":
            sheet, fields = fields.without_sheet()
            table = WorkbookTable(str(path), options, sheet)
        elif extension in _JSON or (stdin is not None and _begins_json(text)):
            whole = fields.cells or fields.layouts != (SENTENCES,)
            table = JsonTable(text, options, bad, fields.names, whole)
        else:
            table = INPUT_FORMATS.get(extension, CsvTable)(text, options, bad)
        rows = rows_of(table, text.name, fields, options, bad, start)
        batches = rows.batches
        if TEXT in rows.columns:
            batches = _with_row_numbers(batches, number)
        first = next(batches, {})
        if not first and not may_be_empty:
            bad.tell(text.name)
            raise UsageError(f"{text.name} is empty; give a file with at least one row")
        yield dataclasses.replace(
            rows,
            name=str(path),
            batches=itertools.chain([first] if first else [], batches),
            head=list(first.get(TEXT, ())),
            sha256=text.sha256,
            total=lambda: table.size or _count(path),
            is_text=not is_table,
        )


def _begins_json(text: OpenText) -> bool:
    return next(text.lines(), "").lstrip()[:1] in ("{", "[")


def _count(path: str | Path) -> int | None:
    """Return about how many rows a file with lines has; None if that is not cheap to know."""
    extension, ending = extension_of(path)
    if is_remote(path) or ending or extension in (".json", ".xlsx") or not Path(path).is_file():
        return None
    return count_lines(Path(path))


def _check_columns_of_text(fields: ColumnChoice, name: str) -> None:
    named = ",".join(fields.named) or fields.text or fields.id
    if SENTENCES not in fields.layouts or (named and named != NONE):
        wanted = named or " or ".join(", ".join(layout) for layout in fields.layouts)
        raise UsageError(
            f"{name} is plain text and has no columns; give a table with the columns {wanted}"
            " (.csv, .tsv or .jsonl), or name none"
        )


# Batches


def rows_of(
    table: RowTable,
    name: str,
    fields: ColumnChoice,
    options: CsvOptions = CsvOptions(),  # noqa: B008
    bad: BadRows = REFUSED,
    start: int = 0,
) -> Rows:
    """Return the chosen columns of a table from row ``start`` on; ``name`` is for messages."""
    if not table.header:
        return Rows(name, {}, iter(()))
    columns = fields.choose(table.header, name, only=not table.are_texts)
    nested = [column for column in columns.values() if column in table.nested]
    if nested:
        raise UsageError(f"{name}: column {nested[0]!r} holds lists or the like; name a text")
    cells = CellReader(options, are_texts=table.are_texts)
    others = dict[str, str]()
    if fields.cells:
        # those that are joined are kept beside the text, too
        chosen = {*columns.values(), *({TEXT} if "," in columns.get(TEXT, "") else ())}
        others = _kinds(table, [each for each in table.header if each not in chosen], cells)
    bad.forget()  # they are counted when they are read
    batches = _batches(table, name, columns, others, cells, start, bad)
    types = {renamed(column, columns): type_of(kind) for column, kind in others.items()}
    return Rows(name, columns, batches, types=types)


def _kinds(table: RowTable, names: Sequence[str], cells: CellReader) -> dict[str, str]:
    """Return the kinds of columns: those that the table declares, else by all their cells."""
    if table.kinds or not names:
        return {name: table.kinds[name] for name in names}
    found = {name: set[str]() for name in names}
    for _, rows in _blocks(table.rows([table.header.index(name) for name in names])):
        for kinds, of_column in zip(found.values(), zip(*rows, strict=True), strict=True):
            if "text" not in kinds:
                kinds |= cells.kinds_of(of_column)
    return {name: common_kind(kinds) for name, kinds in found.items()}


def renamed(column: str, columns: ColumnNames) -> str:
    """Return the name of another column in a batch: one of a role is taken."""
    return f"{column}.1" if column in (*columns, ID) else column


def _batches(
    table: RowTable,
    name: str,
    columns: ColumnNames,
    others: Mapping[str, str],
    cells: CellReader,
    start: int,
    bad: BadRows,
) -> Iterator[RowBatch]:
    """Yield the chosen columns of a table, and the others, each with its kind, behind them."""
    #: each with the columns of the file that it has: several are joined
    roles = {
        role: [column] if column in table.header else column.split(",")
        for role, column in columns.items()
    }
    wanted = list(dict.fromkeys([*itertools.chain(*roles.values()), *others]))
    places = [table.header.index(column) for column in wanted]
    readers: dict[str, Callable[[Any], str]] = {
        role: functools.partial(text_of, role, blank=table.has_blanks) for role in roles
    }
    readers |= dict.fromkeys(("score", "grade"), cells.score)
    is_first = True
    for numbers, rows in _blocks(table.rows(places, start)):
        held = dict(zip(wanted, zip(*rows, strict=True), strict=True))
        wrong = dict[int, str]()
        batch: RowBatch = {}
        for role, parts in roles.items():
            is_text = role not in (TEXT, ID, *NUMERIC)
            if is_text and is_first and None not in map(cells.number, held[parts[0]]):
                raise UsageError(f"{name}: column {parts[0]!r} holds numbers, and {role} is text")
            texts = [_read(held[column], readers[role], column, wrong) for column in parts]
            batch[role] = texts[0]
            if len(texts) > 1:
                batch[role] = [" ".join(filter(None, row)) for row in zip(*texts, strict=True)]
        is_first = False
        for column, kind in others.items():
            read = functools.partial(cells.value, kind)
            batch[renamed(column, columns)] = _read(held[column], read, column, wrong)
        for place, reason in wrong.items():
            bad.add(name, table.counted, numbers[place], reason)
        if wrong:
            kept = [place not in wrong for place in range(len(rows))]
            batch = {column: [*itertools.compress(batch[column], kept)] for column in batch}
        if len(wrong) < len(rows):
            yield batch
    bad.tell(name, table.done)


def _read(
    cells: Sequence[Any], read: Callable[[Any], Any], column: str, wrong: dict[int, str]
) -> list[Any]:
    """Return what cells are; those that cannot be read are blank, and the reasons go to ``wrong``
    by their place.
    """
    values = list[Any]()
    for place, cell in enumerate(cells):
        try:
            values.append(read(cell))
        except ValueError as problem:
            wrong.setdefault(place, f"{column!r} {problem}")
            values.append("")
    return values


def _blocks(
    rows: Iterable[tuple[Any, list[Any]]], most: int = BATCH, characters: int = CHARACTERS
) -> Iterator[tuple[list[Any], list[list[Any]]]]:
    """Yield the numbers and cells of up to ``most`` rows; of long texts fewer."""
    numbers, block, size = list[Any](), list[list[Any]](), 0
    for number, row in rows:
        numbers.append(number)
        block.append(row)
        size += sum(len(cell) for cell in row if type(cell) is str)
        if len(block) == most or size >= characters:
            yield numbers, block
            numbers, block, size = [], [], 0
    if block:
        yield numbers, block


def _with_row_numbers(batches: Iterator[RowBatch], row: int) -> Iterator[RowBatch]:
    """Yield batches of sentences with the numbers of the rows as ids if they have none."""
    for batch in batches:
        stop = row + len(batch[TEXT])
        yield {ID: range(row, stop)} | batch
        row = stop


def windows(batches: Iterable[RowBatch], rows: int, characters: int) -> Iterator[RowBatch]:
    """Yield the ids and texts of ``rows`` rows.

    A window is shorter at the end, and once it holds so many characters.
    """
    named = (zip(batch[ID], batch[TEXT], strict=True) for batch in batches)
    texts = ((name, [text]) for name, text in itertools.chain.from_iterable(named))
    for ids, window in _blocks(texts, rows, characters):
        yield {ID: ids, TEXT: [text for (text,) in window]}


def sentences_of(rows: Rows) -> Iterator[tuple[int | str, str]]:
    """Yield the ids and texts of sentences; those in all columns of pairs and triplets have the ids
    ``ROW:COLUMN``, rows counted from 0.
    """
    if TEXT in rows.columns:
        for batch in rows:
            yield from zip(batch[ID], batch[TEXT], strict=True)
        return
    columns = {role: name for role, name in rows.columns.items() if role not in (ID, *NUMERIC)}
    number = 0
    for batch in rows:
        for row in zip(*(batch[role] for role in columns), strict=True):
            for name, text in zip(columns.values(), row, strict=True):
                yield f"{number}:{name}", text
            number += 1
