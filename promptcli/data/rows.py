"""Rows of files, pipes and URLs in batches: of texts, and of tables (see ``tables``).

Row i of a text is line i. A batch of sentences has the columns ``text`` and ``id``: the ids of the
file as text, or else the numbers of the rows. It also has the other columns of the file, with their
types, if the caller asks for them. A batch of another layout (see ``layouts``) has the columns of
the layout, as text.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from promptcli.data.cells import CellReader, text_of, type_of
from promptcli.data.csv_options import CsvOptions
from promptcli.data.input_files import (
    PROSE,
    REFUSED,
    STANDARD,
    BadRows,
    OpenText,
    check_file,
    extension_of,
    is_remote,
    open_text,
    split_columns,
    without_end,
)
from promptcli.data.layouts import (
    ID,
    NUMERIC,
    SENTENCES,
    TEXT,
    ColumnChoice,
    ColumnNames,
)
from promptcli.data.parquet_files import BATCH_CHARACTERS, ParquetTable, open_parquet
from promptcli.data.tables import (
    INPUT_FORMATS,
    CsvTable,
    JsonTable,
    RowTable,
    WorkbookTable,
)
from promptcli.errors import UsageError

#: Rows of a batch; a batch of long rows has fewer.
BATCH_ROWS = 4096
#: Extensions of tables; any other file is a text.
_JSON = (".json", ".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", *_JSON, ".xlsx", ".parquet")
_TEXTS = ("", ".txt", *PROSE)

#: Column -> its cells in some rows.
RowBatch = dict[str, Sequence[Any]]
#: A column of every batch: the numbers of the rows in their file, from 0, counting unreadable rows.
ROW = "\0row"


@dataclass(frozen=True)
class Rows:
    """The rows of an open file, which can be read once."""

    name: str  #: the path as given
    columns: ColumnNames  #: column of a batch -> column of the file
    batches: Iterator[RowBatch]
    #: returns the hex SHA-256 of the file's bytes, after the last batch
    sha256: Callable[[], str] = lambda: ""
    #: returns the approximate number of rows; None if it is costly to know
    total: Callable[[], int | None] = lambda: None
    first_texts: Sequence[str] = ()  #: the texts of the first batch
    #: other columns of the batches -> number, date (ISO text), truth or text
    types: Mapping[str, str] = field(default_factory=dict)
    is_text: bool = False  #: whether the rows are the lines of a text, not the rows of a table

    def __iter__(self) -> Iterator[RowBatch]:
        return self.batches

    def numbered(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield each row's number in the file, from 0, and its texts without the id."""
        names = [column for column in self.columns if column != ID]
        for batch in self.batches:
            yield from zip(
                batch[ROW], zip(*(batch[name] for name in names), strict=True), strict=True
            )

    def texts(self) -> Iterator[str]:
        """Yield the first text of each row."""
        return (texts[0] for _, texts in self.numbered())


@contextlib.contextmanager
def open_rows(
    source: str | Path | BinaryIO,
    fields: ColumnChoice = ColumnChoice(),  # noqa: B008
    *,
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool | None = None,
    start: int = 0,
    again: bool = False,
    may_be_empty: bool = False,
) -> Iterator[Rows]:
    """Open a file or a stream and read its first batch, so that a faulty file or field fails early.

    Args:
        source: A file or a URL, whose extension says whether it is a table, or ``FILE:COLUMN``; or
            a stream, which is a table or JSON if a column is named, else a text.
        fields: The columns to read.
        csv: How a table is written (``CsvOptions``).
        skip_bad: Whether unreadable rows are left out, with a note that says how many and why; an
            unreadable line of a text becomes blank. None: they are refused, and the message does
            not offer ``skip_bad``.
        start: The number of the first row to read, from 0.
        again: Whether the file was read before; unreadable rows are then left out without a note.
        may_be_empty: Whether a file without rows is allowed.

    Raises:
        UsageError: A file that is empty, unreadable or unclear.
    """
    stream = None if isinstance(source, str | Path) else source
    path, columns = split_columns(str(STANDARD if stream else source))
    if columns:
        fields = dataclasses.replace(fields, text=columns)
    extension = extension_of(path)[0]
    is_table = extension in TABLES or (extension not in _TEXTS and extension in INPUT_FORMATS)
    sheet = ""
    if stream is not None:
        is_table = bool(fields.names()) or fields.layouts != (SENTENCES,)
    elif extension == ".xlsx":
        sheet, fields = fields.without_sheet()
    if extension in (".parquet", ".xlsx") and not is_remote(path):
        check_file(Path(path), regular=True)
    bad = BadRows(True if again else skip_bad, quiet=again)
    options = CsvOptions.of(csv)
    with open_text(path, stream, stored=is_table) as text, contextlib.ExitStack() as opened:
        size = None
        if is_table:
            table = opened.enter_context(_open_table(text, fields, sheet, options, bad, start))
            rows = rows_of(table, text.name, fields, options, bad, start)
            size = table.size
        else:
            rows = _rows_of_text(text, fields, options, bad, start)
        first = next(rows.batches, {})
        if not first and not may_be_empty:
            raise UsageError(f"{text.name} is empty; give a file with at least one row")
        yield dataclasses.replace(
            rows,
            name=path,
            batches=itertools.chain([first] if first else [], rows.batches),
            first_texts=list(first.get(TEXT, ())),
            sha256=text.sha256,
            total=lambda: size or _count_lines(path),
        )


def read_texts(
    path: str | Path,
    fields: ColumnChoice,
    csv: Mapping[str, Any] | None = None,
    *,
    again: bool = False,
) -> Iterator[str]:
    """Yield a file's sentences, read lazily."""
    with open_rows(path, fields, csv=csv, again=again) as rows:
        yield from rows.texts()


def _rows_of_text(
    text: OpenText, fields: ColumnChoice, options: CsvOptions, bad: BadRows, start: int
) -> Rows:
    """Return the lines of a text from the row ``start`` on; a text has no columns to choose."""
    columns = ",".join(fields.names())
    accepts_text = SENTENCES in fields.layouts
    if columns or not accepts_text:
        columns = columns or " or ".join(", ".join(layout) for layout in fields.layouts)
        remedy = ", or name no columns" if accepts_text else ""
        raise UsageError(
            f"{text.name} is plain text and has no columns; give a table with the columns {columns}"
            f" (.csv, .tsv or .jsonl){remedy}"
        )

    def batches() -> Iterator[RowBatch]:
        lines = enumerate(map(without_end, text.lines(options.encoding, bad)))
        rows = ((number, [line]) for number, line in itertools.islice(lines, start, None))
        for numbers, block in _blocks(rows):
            yield {ROW: numbers, ID: numbers, TEXT: [line for [line] in block]}
        bad.tell(text.name, "made blank")

    return Rows(text.name, {TEXT: ""}, batches(), is_text=True)


@contextlib.contextmanager
def _open_table(
    text: OpenText, fields: ColumnChoice, sheet: str, options: CsvOptions, bad: BadRows, start: int
) -> Iterator[RowTable]:
    """Open a table by its extension; a stream is JSON if it begins with a brace or a bracket, else
    CSV.
    """
    extension = extension_of(text.path)[0]
    if extension == ".parquet":
        hint = "give another file"
        with open_parquet(text.file, text.name, hint=hint, error=UsageError) as file:
            yield ParquetTable(file, text.name, start)
    elif extension == ".xlsx":
        yield WorkbookTable(str(text.path), options, sheet)
    elif extension in _JSON or (
        str(text.path) == str(STANDARD) and next(text.lines(), "").lstrip().startswith(("{", "["))
    ):
        yield JsonTable(text, options, bad, fields)
    else:
        yield INPUT_FORMATS.get(extension, CsvTable)(text, options, bad)


def _count_lines(path: str) -> int | None:
    """Return the number of lines of a file; None if the file is not a local file of lines."""
    extension, ending = extension_of(path)
    if is_remote(path) or ending or extension in (".json", ".xlsx") or not Path(path).is_file():
        return None
    lines = 0
    last = b"\n"
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


# Batches of tables


@dataclass(frozen=True)
class _Column:
    """A column of a batch."""

    names: list[str]  #: the file's columns; the texts of several are joined
    read: Callable[[Any], Any]  #: returns the value of a cell, or raises ``ValueError``

    def values(self, cells: Mapping[str, Sequence[Any]], faults: dict[int, str]) -> list[Any]:
        """Return the values of the column in some rows, from the cells of the file's columns.

        An unreadable value is blank, and its reason goes to ``faults`` under its position.
        """
        columns = list[list[Any]]()
        for name in self.names:
            try:
                columns.append(list(map(self.read, cells[name])))  # faster than a loop
            except ValueError:
                columns.append(self._read_one_by_one(name, cells[name], faults))
        if len(columns) == 1:
            return columns[0]
        return [" ".join(filter(None, row)) for row in zip(*columns, strict=True)]

    def _read_one_by_one(
        self, name: str, cells: Sequence[Any], faults: dict[int, str]
    ) -> list[Any]:
        values = list[Any]()
        for place, cell in enumerate(cells):
            try:
                values.append(self.read(cell))
            except ValueError as problem:
                faults.setdefault(place, f"{name!r} {problem}")
                values.append("")
        return values


def rows_of(
    table: RowTable,
    name: str,
    fields: ColumnChoice,
    options: CsvOptions = CsvOptions(),  # noqa: B008
    bad: BadRows = REFUSED,
    start: int = 0,
) -> Rows:
    """Return the chosen columns of a table from the row ``start`` on; ``name`` is for messages."""
    if not table.header:
        bad.tell(name, "left out")
        return Rows(name, {}, iter(()))
    columns_by_role = fields.choose(table.header, name, accepts_single=not table.are_texts)
    nested = [column for column in columns_by_role.values() if column in table.nested]
    if nested:
        raise UsageError(f"{name}: column {nested[0]!r} holds lists or the like; name a text")
    cells = CellReader(options, are_texts=table.are_texts)
    columns = dict[str, _Column]()
    for role, column in columns_by_role.items():
        read: Callable[[Any], str] = functools.partial(text_of, role, blank=table.allows_missing)
        if role in ("score", "grade"):
            read = cells.score
        names = [column] if column in table.header else column.split(",")
        columns[role] = _Column(names, read)
    types = dict[str, str]()
    if fields.cells:
        # columns that are joined to the text are also read separately
        used = set(columns_by_role.values())
        if "," in columns_by_role.get(TEXT, ""):
            used.add(TEXT)
        other_columns = [column for column in table.header if column not in used]
        for column, kind in _find_types(table, other_columns, cells).items():
            key = name_in_batch(column, columns_by_role)
            types[key] = kind
            columns[key] = _Column([column], functools.partial(cells.value, kind))
    bad.forget()  # the rows that were skipped for the types are counted again below
    batches = _read_batches(table, name, columns, bad, start)
    return Rows(name, columns_by_role, batches, types=types)


def _find_types(table: RowTable, names: Sequence[str], cells: CellReader) -> dict[str, str]:
    """Return the types of columns: those that the table declares, else those of all cells."""
    if table.types or not names:
        return {name: table.types[name] for name in names}
    kinds = {name: set[str]() for name in names}
    for _, block in _blocks(table.rows([table.header.index(name) for name in names])):
        for column_kinds, column in zip(kinds.values(), zip(*block, strict=True), strict=True):
            if "text" not in column_kinds:
                column_kinds |= cells.kinds(column)
    return {name: type_of(column_kinds) for name, column_kinds in kinds.items()}


def name_in_batch(column: str, columns: ColumnNames) -> str:
    """Return the name of an extra column in a batch; a name that the batch has gets a suffix."""
    return f"{column}.1" if column in (*columns, ID, ROW) else column


def _read_batches(
    table: RowTable, name: str, columns: Mapping[str, _Column], bad: BadRows, start: int
) -> Iterator[RowBatch]:
    """Yield columns of a table, from the row ``start`` on."""
    names = list(dict.fromkeys(itertools.chain(*(column.names for column in columns.values()))))
    places = [table.header.index(column) for column in names]
    left_out = 0  # rows of the table with an unreadable cell

    def numbered_rows() -> Iterator[tuple[tuple[int, int], list[Any]]]:
        for number, (line, row) in enumerate(table.rows(places), table.first):
            # the number also counts rows that the table could not read
            yield (number + bad.count - left_out, line), row

    rows_from = itertools.dropwhile(lambda row: row[0][0] < start, numbered_rows())
    for numbers, block in _blocks(rows_from):
        cells = dict(zip(names, zip(*block, strict=True), strict=True))
        faults = dict[int, str]()
        batch: RowBatch = {key: column.values(cells, faults) for key, column in columns.items()}
        rows, lines = zip(*numbers, strict=True)
        batch = {ROW: rows, ID: rows} | batch
        for place in sorted(faults):
            bad.add(name, table.row_unit, lines[place], faults[place])
        if faults:
            left_out += len(faults)
            is_kept = [place not in faults for place in range(len(block))]
            batch = {key: [*itertools.compress(batch[key], is_kept)] for key in batch}
        if len(faults) < len(block):
            yield batch
    bad.tell(name, "left out")


def _blocks(
    rows: Iterable[tuple[Any, list[Any]]],
    max_rows: int = BATCH_ROWS,
    characters: int = BATCH_CHARACTERS,
) -> Iterator[tuple[list[Any], list[list[Any]]]]:
    """Yield the numbers and the cells of ``max_rows`` rows, or of fewer rows with long texts."""
    numbers, block, size = list[Any](), list[list[Any]](), 0
    for number, row in rows:
        numbers.append(number)
        block.append(row)
        size += sum([len(cell) for cell in row if type(cell) is str])  # faster than a generator
        if len(block) == max_rows or size >= characters:
            yield numbers, block
            numbers, block, size = [], [], 0
    if block:
        yield numbers, block


def windows(batches: Iterable[RowBatch], rows: int, characters: int) -> Iterator[RowBatch]:
    """Yield the ids and texts of ``rows`` rows, or of fewer rows with ``characters`` in all."""
    pairs = (zip(batch[ID], batch[TEXT], strict=True) for batch in batches)
    texts = ((name, [text]) for name, text in itertools.chain.from_iterable(pairs))
    for ids, window in _blocks(texts, rows, characters):
        yield {ID: ids, TEXT: [text for (text,) in window]}


def sentences_of(rows: Rows) -> Iterator[tuple[int | str, str]]:
    """Yield the ids and texts of sentences, and of every side of pairs and triplets.

    The id of a side is ``ROW:COLUMN``, with the number of its row from 0.
    """
    if TEXT in rows.columns:
        for batch in rows:
            yield from zip(batch[ID], batch[TEXT], strict=True)
        return
    columns = {role: name for role, name in rows.columns.items() if role not in (ID, *NUMERIC)}
    for number, texts in rows.numbered():
        for name, text in zip(columns.values(), texts, strict=False):  # a score is the last
            yield f"{number}:{name}", text
