"""Tables of files: CSV, TSV, JSON, JSON lines and XLSX, read strictly; Parquet is in
``parquet_files``.

A table has a header, and rows that can be read again and again. A cell is a text, a number, a truth
value, an ``IsoDate``, or None. An unclear file is refused, and the message names the option that
makes it clear.
"""

import csv
import functools
import itertools
import json
import operator
import re
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from promptcli import extensions
from promptcli.children import python_command
from promptcli.data import workbook
from promptcli.data.csv_options import CsvOptions
from promptcli.data.input_files import MAX_LINE_CHARACTERS, BadRows, OpenText, extension_of
from promptcli.data.layouts import SENTENCES, ColumnChoice
from promptcli.errors import (
    UsageError,
    did_you_mean,
    join_lines,
    require_libraries,
    short_repr,
    with_count,
)
from promptcli.notes import note

#: Number of rows that determine the delimiter of a CSV and the fields of JSON.
_SAMPLE_ROWS = 100
#: Largest number of columns of a table, and of characters of a name of a column.
_MAX_COLUMNS, _MAX_NAME_CHARACTERS = 10_000, 1000
DELIMITERS = ",;\t|"
#: Levels of lists and objects in a row of JSON or Parquet; Python can write some 960.
MAX_LEVELS = 100
#: Matches numbers, dates and times, which are unlikely to be column names.
_FIGURE = re.compile(r"-?\d[\d.,:/ -]*")
#: The cell of an object that lacks the field.
MISSING = object()


class IsoDate(str):
    """A date, or a date and a time, as ISO 8601 writes it."""


class RowTable:
    """The rows of a file under their header."""

    header: list[str]
    #: column -> number, date, truth or text; empty if the file declares no types
    types: Mapping[str, str] = {}
    nested: Collection[str] = ()  #: columns of lists or objects
    row_unit = "line"  #: what row numbers in messages count: lines or rows
    first = 0  #: number of the first row that is read, from 0
    are_texts = False  #: whether all cells are texts
    allows_missing = True  #: whether a missing sentence is blank rather than an error
    size: int | None = None  #: number of rows; None if it is costly to know

    def rows(self, places: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        """Yield the rows, each with its number and the cells of the columns ``places``."""
        raise NotImplementedError


def named_header(
    cells: Sequence[Any], below: Sequence[Sequence[Any]], name: str, where: str, skip: int
) -> list[str]:
    """Return the names of columns in a row of cells; an unnamed column is named by its number.

    If a column with cells ``below`` has no name, the row is a title and is refused. Only the first
    name may be empty, since pandas writes it so.
    """
    names = ["" if cell is None else str(cell).strip() for cell in cells]
    nameless = [place for place, title in enumerate(names) if place and not title]
    if any(row[place] for row in below for place in nameless if place < len(row)):
        raise UsageError(
            f"{name}: {where} names {len(names) - len(nameless)} of {len(names)} columns; if it is"
            f" a title above the names, give skip={skip + 1}",
            parameter="csv",
        )
    header = [title or str(number) for number, title in enumerate(names, 1)]
    check_header(header, name, where)
    return header


def check_header(header: Sequence[str], name: str, where: str) -> None:
    """Refuse too many columns, too long a name, and a name of two columns."""
    longest = max(map(len, header), default=0)
    if longest > _MAX_NAME_CHARACTERS or len(header) > _MAX_COLUMNS:
        raise UsageError(
            f"{name}: {len(header):,} columns and a name of {longest:,} characters in {where};"
            f" a table has at most {_MAX_COLUMNS:,}, and a name {_MAX_NAME_CHARACTERS:,}"
        )
    repeated = next((column for column in header if header.count(column) > 1), None)
    if repeated is not None:
        raise UsageError(
            f"{name}: {where} names {header.count(repeated)} columns {repeated!r}; rename one, or"
            " give header=false,skip=1 and number the columns",
            parameter="csv",
        )


class ColumnTable(RowTable):
    """Columns in memory."""

    row_unit = "row"
    allows_missing = False

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self.header = list(columns)
        self._columns = list(columns.values())

    def rows(self, places: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        rows = zip(*(self._columns[place] for place in places), strict=True)
        for number, row in enumerate(rows, 1):
            yield number, list(row)


# CSV and TSV


class CsvTable(RowTable):
    """Rows of cells with a delimiter between them.

    A cell with the delimiter, quotes or a line feed is in double quotes.
    """

    are_texts = True

    def __init__(self, text: OpenText, options: CsvOptions, bad: BadRows) -> None:
        csv.field_size_limit(MAX_LINE_CHARACTERS)
        self._text, self._options, self._bad = text, options, bad
        self._skip = options.skip
        self._delimiter = options.delim or self._find_delimiter()
        filled = (record for record in self._read_records(self._delimiter, bad) if record[1])
        lines, names = next(filled, (range(1, 2), []))
        first = lines[0]
        self._headless = options.header == "false"
        if self._headless:
            self.header = [str(number) for number in range(1, len(names) + 1)]
            return
        below = [row for _, row in itertools.islice(filled, _SAMPLE_ROWS)]
        self.header = named_header(names, below, text.name, f"line {first}", self._skip)
        figures = list(filter(_FIGURE.fullmatch, map(str.strip, names)))
        if figures and not options.header:
            raise UsageError(
                f"{text.name}: {figures[0]!r} in line {first} is not the name of a column; write a"
                " line of names above it, or give header=false, or header=true if it is one",
                parameter="csv",
            )

    def _read_lines(self) -> Iterator[str]:
        return itertools.islice(
            self._text.lines(self._options.encoding, self._bad), self._skip, None
        )

    def _read_records(
        self, delimiter: str, bad: BadRows, max_lines: int | None = None
    ) -> Iterator[tuple[range, list[str]]]:
        """Yield the rows of all lines, or of the first ``max_lines``, each with the numbers of its
        lines.
        """
        quote = self._options.quote
        reader = csv.reader(
            itertools.islice(self._read_lines(), max_lines),
            delimiter=delimiter,
            quotechar=quote or None,
            quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            strict=True,
        )
        while True:
            number = self._skip + reader.line_num + 1
            try:
                row = next(reader)
                yield range(number, self._skip + reader.line_num + 1), row
            except StopIteration:
                return
            except csv.Error as error:
                problem = "a quote is not closed" if "end of data" in str(error) else str(error)
                reason = (
                    f"{problem}; a text with {delimiter!r} or quotes is written in double quotes,"
                    " or give quote= if quotes are text"
                )
                lines = self._skip + reader.line_num + 1 - number
                bad.add(self._text.name, "line", number, reason, lines=lines, parameter="csv")

    def _find_delimiter(self) -> str:
        """Return the only delimiter in the line of names; a line without any names one column."""
        if extension_of(self._text.path)[0] == ".tsv":
            return "\t"
        first = next(filter(str.strip, self._read_lines()), "")
        signs = [sign for sign in DELIMITERS if sign in first]
        if len(signs) > 1:
            choices = " or ".join(f"delim={sign}".replace("\t", "tab") for sign in signs)
            problem = "several signs may separate its cells"
            raise UsageError(f"{self._text.name}: {problem}; give {choices}", parameter="csv")
        if signs:
            return signs[0]
        for sign in DELIMITERS:
            self._check_single_column(sign)
        return ","

    def _check_single_column(self, sign: str) -> None:
        """Refuse the first line as a title if it has one column and ``sign`` separates the rows
        below.
        """
        records = self._read_records(sign, BadRows(skip=True), _SAMPLE_ROWS**2)
        filled = (row for _, row in records if row)
        widths = [len(row) for row in itertools.islice(filled, _SAMPLE_ROWS)]
        widest = max(widths, default=1)
        if widest < 2 or (widest == 2 and sign == ","):  # a sentence may have a comma
            return
        line = widths.index(widest)
        if len(set(widths[line:])) == 1:
            raise UsageError(
                f"{self._text.name}: line 1 has one column and the row below {line} has {widest},"
                f" separated by {sign!r}; if lines above the names are a title, give"
                f" skip={self._skip + line}",
                parameter="csv",
            )

    def rows(self, places: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        width = len(self.header)
        records = self._read_records(self._delimiter, self._bad)
        records = itertools.dropwhile(lambda record: not record[1], records)
        if not self._headless:
            next(records, None)
        if width > 1:
            records = (record for record in records if record[1])
        for lines, row in records:
            if not row:  # the table has a single column, and its cell is empty
                yield lines[0], [""] * len(places)
            elif len(row) == width:
                yield lines[0], [row[place] for place in places]
            else:
                names = ", ".join(self.header)
                reason = (
                    f"{with_count(len(row), 'column')}, but the header has {width} ({names}); a"
                    f" text with {self._delimiter!r} is written in double quotes"
                )
                self._bad.add(self._text.name, "line", lines[0], reason, lines=len(lines))


#: Extension -> class of a table of lines. It takes a stored ``OpenText``, the CSV options and the
#: collector of unreadable rows.
INPUT_FORMATS = extensions.Table[Callable[[OpenText, CsvOptions, BadRows], RowTable]](
    "input_formats", {".csv": CsvTable, ".tsv": CsvTable}
)


# JSON


class JsonTable(RowTable):
    """One object a line, or in .json an array of objects or sentences.

    The column ``list[].field`` is a field of the objects in a list; each object is a row. The
    header has the fields of all objects if all columns are read, else those of the first 100.
    """

    def __init__(
        self, text: OpenText, options: CsvOptions, bad: BadRows, choice: ColumnChoice
    ) -> None:
        self._text, self._bad, self._name = text, bad, text.name
        self._lines = functools.partial(text.lines, options.encoding, bad)
        names = choice.names()
        paths = list(dict.fromkeys(name.rpartition("[].")[0] for name in names or [""]))
        if len(paths) > 1:
            raise UsageError(f"{self._name}: name columns of one list only; got {', '.join(names)}")
        self._path = paths[0]
        self._items = self._read_document()
        self.row_unit = "line" if self._items is None else "row"
        objects = self._read_objects(BadRows(skip=True) if bad.skips else bad)
        if not choice.cells and choice.layouts == (SENTENCES,):
            objects = itertools.islice(objects, _SAMPLE_ROWS)
        fields = dict[str, None]()
        for _, item in objects:
            fields.update(dict.fromkeys(item))
            for name in names:
                field = name.rpartition("[].")[2]
                if _value_at(item, field) is not MISSING:
                    fields[field] = None
        self.header = list(fields)
        check_header(self.header, self._name, "an object")

    def _read_document(self) -> list[Any] | None:
        """Return the items of a file that is one JSON value; None for an object a line."""
        if extension_of(self._text.path)[0] != ".json":
            return None
        try:
            value = _parse_json(self._read_content())
        except ValueError as error:
            hint = "if it has an object a line, name it .jsonl"
            raise UsageError(f"{self._name}: malformed JSON: {error}; {hint}") from None
        if isinstance(value, list):
            return value
        columns = list[str]()
        for key, items in value.items() if isinstance(value, dict) and not self._path else ():
            if isinstance(items, list) and items and isinstance(items[0], dict):
                field = "text" if "text" in items[0] else next(iter(items[0]), "")
                columns.append(f"{self._name}:{key}[].{field}")
        if columns:  # the objects in the list are more likely the rows
            raise UsageError(
                f"{self._name} is one object with a list of objects; name the column of these, e.g."
                f" {' or '.join(columns)}"
            )
        return [value]

    def _read_content(self) -> str:
        lines, size = list[str](), 0
        for line in self._lines():
            lines.append(line)
            size += len(line)
            if size > MAX_LINE_CHARACTERS:
                cure = "make lines of it: jq -c '.[]' IN > OUT.jsonl"
                raise UsageError(f"{self._name}: a JSON value of more than 64 MiB; {cure}")
        return "".join(lines)

    def _read_objects(self, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, value in enumerate(self._lines() if self._items is None else self._items, 1):
            if self._items is None:
                if not value.strip():
                    continue
                try:
                    value = _parse_json(value)
                except ValueError as error:
                    hint = "give one object a line, or name it .json"
                    bad.add(self._name, self.row_unit, number, f"malformed JSON: {error}; {hint}")
                    continue
            for item in _items_at(value, self._path):
                if isinstance(item, str) and self._items is not None:
                    item = {"text": item}
                if isinstance(item, dict):
                    yield number, item
                else:
                    reason = f'{short_repr(item)} is not a JSON object, e.g. {{"text": "..."}}'
                    bad.add(self._name, self.row_unit, number, reason)

    def rows(self, places: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        keys = [self.header[place] for place in places]
        for number, item in self._read_objects(self._bad):
            yield number, [item[key] if key in item else _value_at(item, key) for key in keys]


def _value_at(item: Any, path: str) -> Any:
    """Return the value at ``field.field`` of an object, or ``MISSING``."""
    for step in path.split("."):
        if not isinstance(item, dict) or step not in item:
            return MISSING
        item = item[step]
    return item


def _items_at(value: Any, path: str) -> Iterator[Any]:
    """Yield the items of the list at ``list[].list`` of an object, or the object itself."""
    if not path:
        yield value
        return
    first, _, rest = path.partition("[].")
    items = _value_at(value, first)
    for item in items if isinstance(items, list) else ():
        yield from _items_at(item, rest)


def _parse_json(text: str) -> Any:
    """Return the value of JSON text; malformed or deeply nested text raises ``ValueError``."""
    import msgspec

    try:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, ValueError):
            value = json.loads(text)  # msgspec refuses NaN, for example
        if text.count("[") + text.count("{") <= MAX_LEVELS or _nesting_depth(value) <= MAX_LEVELS:
            return value
    except RecursionError:
        pass
    raise ValueError(f"it is nested deeper than {MAX_LEVELS} levels")


def _nesting_depth(value: Any) -> int:
    """Return the nesting depth of lists and objects in a value."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return 0
    return 1 + max(map(_nesting_depth, value), default=0)


# XLSX


class WorkbookTable(RowTable):
    """A sheet of a workbook, or all sheets.

    The names of the columns are in the first row with cells. A process with limits of memory and
    time reads the file (see ``workbook``).
    """

    row_unit = "row"

    def __init__(self, path: str, options: CsvOptions, sheet: str) -> None:
        """Read a sheet, or the only one with rows if ``sheet`` is "" ."""
        require_libraries("python_calamine", extra="xlsx")
        self._lines = tempfile.NamedTemporaryFile("r", encoding="utf-8")
        choice = sheet or ("*" if options.sheets else "")
        contents = self._convert(path, choice, options.skip)
        if sheet and sheet not in contents.sheets:
            names = ", ".join(contents.sheets)
            suggestion = did_you_mean(sheet, contents.sheets)
            raise UsageError(f"{path}: no sheet {sheet!r}; sheets: {names}{suggestion}")
        filled_sheets = contents.filled_sheets
        if not choice and len(filled_sheets) > 1:
            raise UsageError(
                f"{path} has rows in {len(filled_sheets)} sheets: {', '.join(filled_sheets)};"
                f" name one as {path}:{filled_sheets[0]}, or give sheets=all",
                parameter="csv",
            )
        if contents.formulas:
            advice = "formulas without a value are blank: open and save the workbook"
            note(f"{path}: {contents.formulas:,} {advice}")
        if contents.merged:
            note(f"{path}: {contents.merged:,} merged ranges: only their first cell has a value")
        self._start = self._lines.tell()
        self.header = list[str]()
        for name, rows in self._read_sheets():
            cells, *below = (row for _, _, row in itertools.islice(rows, _SAMPLE_ROWS))
            where = f"the first row of {name!r}"
            header = named_header(cells, below, path, where, options.skip)
            if self.header and header != self.header:
                raise UsageError(
                    f"{path}: sheet {name!r} has other columns ({', '.join(header)}); name one"
                    " sheet"
                )
            self.header = header

    def _convert(self, path: str, choice: str, skip: int) -> "workbook.Contents":
        """Write the rows of the chosen sheets as JSON lines; return what the workbook contains."""
        arguments = (path, self._lines.name, choice, str(skip))
        command = python_command("promptcli.data.workbook", *arguments)
        try:
            child = subprocess.run(
                command, capture_output=True, timeout=workbook.MAX_SECONDS, check=False
            )
            problem = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            first = "" if child.returncode else self._lines.readline()
        except subprocess.TimeoutExpired:
            problem, first = "it takes too long", ""
        if not first:
            why = join_lines(problem, 100) or "out of memory"
            raise UsageError(f"{path} cannot be read as a workbook ({why}); save the sheet as CSV")
        return workbook.Contents(**json.loads(first))

    def _read_sheets(self) -> Iterator[tuple[str, Iterator[Any]]]:
        """Yield the name of each sheet and its rows with cells: the name, the number, the cells."""
        self._lines.seek(self._start)
        return itertools.groupby(map(json.loads, self._lines), operator.itemgetter(0))

    def rows(self, places: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        for _, rows in self._read_sheets():
            for _, number, row in itertools.islice(rows, 1, None):
                cells = (row[place] for place in places)
                yield (
                    number,
                    [IsoDate(cell["date"]) if type(cell) is dict else cell for cell in cells],
                )
