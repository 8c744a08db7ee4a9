"""Tables of files: CSV, TSV, JSON, JSON lines, XLSX and Parquet, read strictly.

A table has a header, and rows that can be read again and again. A cell is a text, a number, true or
false, an ``IsoDate``, or None. What a file does not say is refused with what to type.
"""

import csv
import itertools
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from promptcli import extensions
from promptcli.children import python_command
from promptcli.data import workbook
from promptcli.data.bad_rows import BadRows
from promptcli.data.csv_options import CsvOptions
from promptcli.data.file_arguments import extension_of
from promptcli.data.input_files import LONGEST_LINE, OpenText
from promptcli.data.parquet_files import groups_from, read_few, values_of
from promptcli.errors import UsageError, counted, did_you_mean, one_line, require, shorten
from promptcli.notes import note

#: Rows by which the delimiter of a CSV is told, columns of a table, characters of a column's name.
_LOOKED_AT, _COLUMNS, _LONGEST_NAME = 100, 10_000, 1000
DELIMITERS = ",;\t|"
#: Levels of lists and objects in a row of JSON; Python writes some 960.
_DEEPEST = 100
#: A number, a date or a time, as no name of a column is.
_FIGURE = re.compile(r"-?\d[\d.,:/ -]*")
#: In place of the cell of an object that lacks the field.
MISSING = object()


class IsoDate(str):
    """A date, or a date and a time, as ISO 8601 writes it."""


class Table:
    """The rows of a file under their header."""

    header: list[str]
    #: column -> number, date, truth or text, if the file declares it
    types: Mapping[str, str] = {}
    whole: Collection[str] = ()  #: columns of numbers that are declared to be whole
    kind = "line"  #: what the numbers of rows count
    are_texts = False  #: whether all cells are texts

    def rows(self, places: Sequence[int], start: int = 0) -> Iterator[tuple[int, list[Any]]]:
        """Yield the rows from row ``start`` on, each with its number and the cells of the columns
        ``places``.
        """
        raise NotImplementedError


def named_header(
    cells: Sequence[Any], below: Iterable[Sequence[Any]], where: str, skip: int
) -> list[str]:
    """Return the names of columns in a row of cells; one without a name has its number.

    Refuse a row that has no name for a column with cells ``below``, which is a title; the first may
    have none, as pandas writes it.
    """
    names = ["" if cell is None else str(cell).strip() for cell in cells]
    nameless = [place for place, name in enumerate(names) if place and not name]
    if nameless and any(row[place] for row in below for place in nameless if place < len(row)):
        raise UsageError(
            f"{where} names {len(names) - len(nameless)} of {len(names)} columns; if it is a title"
            f" above the names, give skip={skip + 1}",
            parameter="csv",
        )
    return [name or str(number) for number, name in enumerate(names, 1)]


def check_header(header: Sequence[str], name: str, where: str) -> None:
    """Refuse names of columns that are none."""
    longest = max(map(len, header), default=0)
    if longest > _LONGEST_NAME:
        raise UsageError(
            f"{name}: a name of {longest:,} characters in {where}; a column's has at most"
            f" {_LONGEST_NAME:,}"
        )
    if len(header) > _COLUMNS:
        raise UsageError(f"{name}: {len(header):,} columns; a table has at most {_COLUMNS:,}")
    doubled = next((column for column in header if header.count(column) > 1), None)
    if doubled is not None:
        raise UsageError(
            f"{name}: {where} names {header.count(doubled)} columns {doubled!r}; rename one, or"
            " give header=false,skip=1 and number the columns",
            parameter="csv",
        )


# CSV and TSV


class CsvTable(Table):
    """Rows of cells between delimiters; a cell with the delimiter, quotes or a line feed is in
    double quotes.
    """

    are_texts = True

    def __init__(self, text: OpenText, options: CsvOptions, bad: BadRows) -> None:
        csv.field_size_limit(LONGEST_LINE)
        self._text, self._options, self._bad, self._name = text, options, bad, text.name
        self._skip = options.skip
        self._delimiter = options.delim or self._find_delimiter()
        records = self._records(self._delimiter, bad)
        first, names = next((record for record in records if record[1]), (1, []))
        if options.header == "false":
            self._headless = True
            self.header = [str(number) for number in range(1, len(names) + 1)]
        else:
            self._headless = False
            where = f"line {first}"
            below = (row for _, row in itertools.islice(records, _LOOKED_AT))
            self.header = named_header(names, below, f"{self._name}: {where}", self._skip)
            figure = next(filter(_FIGURE.fullmatch, filter(None, map(str.strip, names))), None)
            if figure is not None and not options.header:
                raise UsageError(
                    f"{self._name}: {figure!r} in {where} is no name of a column; give header=false"
                    " if the first line is a row, header=true if it has the names",
                    parameter="csv",
                )
            check_header(self.header, self._name, where)

    def _lines(self) -> Iterator[str]:
        lines = self._text.again(self._options.encoding, self._bad)
        return itertools.islice(lines, self._skip, None)

    def _records(self, delimiter: str, bad: BadRows) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows that are not blank, with the number of their first lines."""
        quote = self._options.quote
        reader = csv.reader(
            self._lines(),
            delimiter=delimiter,
            quotechar=quote or None,
            quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            strict=True,
        )
        while True:
            number = self._skip + reader.line_num + 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                problem = "a quote is not closed" if "end of data" in str(error) else str(error)
                reason = (
                    f"{problem}; a text with {delimiter!r} or quotes is written in double quotes"
                )
                if quote and delimiter == "\t":
                    reason += ", or give quote= if quotes are text"
                bad.add(self._name, "line", number, reason, parameter="csv")
                continue
            yield number, row

    def _find_delimiter(self) -> str:
        """Return the only sign that separates the same number of cells in all of the first rows."""
        if extension_of(self._text.path)[0] == ".tsv":
            return "\t"
        first = next(self._lines(), "")
        if first.lower().startswith("sep=") and len(first.strip()) == 5:  # Excel's own line
            self._skip += 1
            return first[4]
        shapes = {delimiter: self._widths(delimiter) for delimiter in DELIMITERS}
        even = [sign for sign, widths in shapes.items() if len(set(widths)) == 1 and widths[0] > 1]
        if len(even) == 1:
            return even[0]
        in_names = [sign for sign, widths in shapes.items() if widths and widths[0] > 1]
        listed = " or ".join(f"delim={_written(sign)}" for sign in even or in_names)
        if len(even or in_names) > 1:
            problem = "several signs may separate its cells"
            raise UsageError(f"{self._name}: {problem}; give {listed}", parameter="csv")
        if in_names:
            return in_names[0]
        for sign, widths in shapes.items():
            widest = max(widths, default=1)
            line = next((line for line, width in enumerate(widths) if width == widest), 0)
            if widest > 1 and len(set(widths[line:])) == 1 and (widest > 2 or sign != ","):
                raise UsageError(
                    f"{self._name}: line 1 has one column and the row below {line} has {widest},"
                    f" separated by {sign!r}; if lines above the names are a title, give"
                    f" skip={self._skip + line}",
                    parameter="csv",
                )
        return ","

    def _widths(self, delimiter: str) -> list[int]:
        records = self._records(delimiter, BadRows(skip=True))
        filled = (row for _, row in records if row)
        return [len(row) for row in itertools.islice(filled, _LOOKED_AT)]

    def rows(self, places: Sequence[int], start: int = 0) -> Iterator[tuple[int, list[Any]]]:
        width = len(self.header)
        records = self._records(self._delimiter, self._bad)
        if not self._headless:
            records = itertools.dropwhile(lambda record: not record[1], records)
            next(records, None)
        if width > 1:
            records = (record for record in records if record[1])
        for number, row in itertools.islice(records, start, None):
            if not row:  # of a single column, an empty cell
                yield number, [""] * len(places)
            elif len(row) == width:
                yield number, [row[place] for place in places]
            else:
                names = ", ".join(self.header)
                reason = (
                    f"{counted(len(row), 'column')}, but the header has {width} ({names}); a text"
                    f" with {self._delimiter!r} is written in double quotes"
                )
                self._bad.add(self._name, "line", number, reason)


def _written(sign: str) -> str:
    return "tab" if sign == "\t" else sign


#: Extension -> what opens a table of lines: takes a stored ``OpenText``, how it is written, and who
#: gets the rows that cannot be read.
INPUT_FORMATS = extensions.Table[Callable[[OpenText, CsvOptions, BadRows], Table]](
    "input_formats", {".csv": CsvTable, ".tsv": CsvTable}
)


# JSON


class JsonTable(Table):
    """An object a line, or one array of objects or of sentences; ``list[].field`` names the objects
    of a list in it.

    ``named`` are the columns that the user names. With ``whole`` the header has the fields of all
    objects, else those of the first.
    """

    def __init__(
        self, text: OpenText, options: CsvOptions, bad: BadRows, named: Sequence[str], whole: bool
    ) -> None:
        self._text, self._encoding, self._bad, self._name = text, options.encoding, bad, text.name
        lists = {column.rpartition("[].")[0] for column in named}
        if len(lists) > 1:
            raise UsageError(f"{self._name}: columns of one list are named; got {', '.join(named)}")
        self._path = next(iter(lists), "")
        self._items = self._document()
        if self._items is not None:
            self.kind = "row"
        objects = (item for _, item in self._objects(BadRows(skip=True) if bad.skips else bad))
        keys = dict[str, None]()
        for item in objects if whole else itertools.islice(objects, 1):
            keys.update(dict.fromkeys(item))
            for column in named:
                if "." in column and _at(item, column.rpartition("[].")[2]) is not MISSING:
                    keys[column.rpartition("[].")[2]] = None
        self.header = list(keys)
        check_header(self.header, self._name, "an object")

    def _lines(self) -> Iterator[str]:
        return self._text.again(self._encoding, self._bad)

    def _document(self) -> list[Any] | None:
        """Return the items of a file that is one JSON value; None if it has an object a line."""
        lines = (line for line in self._lines() if line.strip())
        first = next(lines, "")
        if first.lstrip()[:1] != "[":
            if extension_of(self._text.path)[0] != ".json":
                return None
            try:
                _json_value(first)
                if next(lines, None) is not None:
                    return None
            except ValueError:
                pass  # the first line of an object of several
        content, size = list[str](), 0
        for line in self._lines():
            content.append(line)
            size += len(line)
            if size > LONGEST_LINE:
                cure = "make lines of it: jq -c '.[]' IN > OUT.jsonl"
                raise UsageError(f"{self._name}: a JSON value of more than 64 MiB; {cure}")
        try:
            value = _json_value("".join(content))
        except ValueError as error:
            hint = "give one array, or an object a line"
            raise UsageError(f"{self._name}: malformed JSON: {error}; {hint}") from None
        if isinstance(value, list):
            return value
        if not self._path and isinstance(value, dict):
            lists = [
                f"{key}[].{'text' if 'text' in items[0] else next(iter(items[0]), '')}"
                for key, items in value.items()
                if isinstance(items, list) and items and isinstance(items[0], dict)
            ]
            if lists:
                raise UsageError(
                    f"{self._name} is one object with a list of objects; name the column of these,"
                    f" e.g. {self._name}:{' or '.join(lists)}"
                )
        return [value]

    def _objects(self, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
        values = enumerate(self._lines() if self._items is None else self._items, 1)
        for number, value in values:
            if self._items is None:
                if not value.strip():
                    continue
                try:
                    value = _json_value(value)
                except ValueError as error:
                    hint = "give one object a line, or one array of them"
                    bad.add(self._name, self.kind, number, f"malformed JSON: {error}; {hint}")
                    continue
            for item in _items_at(value, self._path):
                if isinstance(item, str) and self._items is not None:
                    item = {"text": item}
                if isinstance(item, dict):
                    yield number, item
                else:
                    reason = f'{shorten(item)} is not a JSON object, e.g. {{"text": "..."}}'
                    bad.add(self._name, self.kind, number, reason)

    def rows(self, places: Sequence[int], start: int = 0) -> Iterator[tuple[int, list[Any]]]:
        keys = [self.header[place] for place in places]
        for number, item in itertools.islice(self._objects(self._bad), start, None):
            yield number, [item[key] if key in item else _at(item, key) for key in keys]


def _at(item: Any, path: str) -> Any:
    """Return the value at ``field.field`` of an object."""
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
    items = _at(value, first)
    for item in items if isinstance(items, list) else ():
        yield from _items_at(item, rest)


def _json_value(text: str) -> Any:
    """Return the value of JSON text; ValueError if it has none, or is nested too deep."""
    import msgspec

    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        try:
            value = json.loads(text)  # msgspec does not read NaN, for example, as a number
        except RecursionError:
            raise ValueError(f"it is nested deeper than {_DEEPEST} levels") from None
    if text.count("[") + text.count("{") > _DEEPEST:
        level = [value]
        for _ in range(_DEEPEST + 1):
            level = [
                inner
                for item in level
                if isinstance(item, dict | list)
                for inner in (item.values() if isinstance(item, dict) else item)
            ]
        if level:
            raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
    return value


# XLSX


class WorkbookTable(Table):
    """A sheet of a workbook; its first row that is not empty has the names of the columns.

    It is read by a process with limits of memory and time (``workbook``).
    """

    kind = "row"

    def __init__(self, path: str, options: CsvOptions, word: str) -> None:
        """Read the sheet before the colon of ``word``, or that it is, else the only one with
        rows.
        """
        require("python_calamine", extra="xlsx")
        self._name, self._skip = path, options.skip
        self._rows = tempfile.NamedTemporaryFile("r", encoding="utf-8")
        named, colon, _ = word.rpartition(":")
        wanted = named or ("*" if options.sheets else "")
        arguments = (path, self._rows.name, wanted, "" if colon else word)
        command = python_command("promptcli.data.workbook", *arguments)
        try:
            child = subprocess.run(
                command,
                capture_output=True,
                timeout=workbook.SECONDS,
                check=False,
            )
            why = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            failed = child.returncode != 0
        except subprocess.TimeoutExpired:
            why, failed = "it takes too long", True
        first = self._rows.readline()
        if failed or not first:
            why = one_line(why, 100) or "out of memory"
            raise UsageError(
                f"{self._name} cannot be read as a workbook ({why}); save the sheet as CSV"
            )
        about = json.loads(first)
        self.word_is_sheet = bool(word) and not colon and word in about["sheets"]
        if not self.word_is_sheet:
            self._choose(about, named, wanted)
        for count, what in (
            (about["formulas"], "formulas without a value are blank: open and save the workbook"),
            (about["merged"], "merged ranges: their first cell alone has a value"),
        ):
            if count:
                note(f"{self._name}: {count:,} {what}")
        self._start = self._rows.tell()
        self.header = list[str]()
        for sheet, rows in self._sheets():
            found = next(rows, (0, []))[1]
            where = f"{self._name}: the first row of {sheet!r}"
            below = (row for _, row in itertools.islice(rows, _LOOKED_AT))
            header = named_header(found, below, where, self._skip)
            if self.header and header != self.header:
                raise UsageError(
                    f"{self._name}: sheet {sheet!r} has other columns ({', '.join(header)}); name"
                    " one sheet"
                )
            self.header = header
            check_header(header, self._name, where)

    def _sheets(self) -> Iterator[tuple[str, Iterator[tuple[int, list[Any]]]]]:
        """Yield the name of each sheet, and its rows that are not empty, with their numbers."""
        self._rows.seek(self._start)
        lines = map(json.loads, self._rows)
        sheet = next(lines, None)
        while sheet is not None:
            ended = list[str]()

            def rows(ended: list[str] = ended) -> Iterator[tuple[int, list[Any]]]:
                number = 0
                for row in lines:
                    if isinstance(row, str):
                        ended.append(row)
                        return
                    number += 1
                    if number > self._skip and any(cell is not None for cell in row):
                        yield number, row

            of_sheet = rows()
            yield sheet, of_sheet
            for _ in of_sheet:
                pass
            sheet = next(iter(ended), None)

    def _choose(self, about: Mapping[str, Any], sheet: str, wanted: str) -> None:
        """Refuse a sheet that is not there, and one of several that is not named."""
        sheets, filled = about["sheets"], about["filled"]
        if sheet and sheet not in sheets:
            listed = ", ".join(sheets)
            near = did_you_mean(sheet, sheets)
            raise UsageError(f"{self._name}: no sheet {sheet!r}; sheets: {listed}{near}")
        if not wanted and len(filled) > 1:
            raise UsageError(
                f"{self._name} has rows in {len(filled)} sheets: {', '.join(filled)}; name one as"
                f" {self._name}:{filled[0]}, or give sheets=all",
                parameter="csv",
            )

    def rows(self, places: Sequence[int], start: int = 0) -> Iterator[tuple[int, list[Any]]]:
        def of_all() -> Iterator[tuple[int, list[Any]]]:
            for _, rows in self._sheets():
                next(rows, None)  # the names
                for number, row in rows:
                    cells = [IsoDate(cell["date"]) if type(cell) is dict else cell for cell in row]
                    yield number, [cells[place] for place in places]

        return itertools.islice(of_all(), start, None)


# Parquet


class ParquetTable(Table):
    """Columns with declared types."""

    kind = "row"

    def __init__(self, file: Any, name: str) -> None:
        import pyarrow as pa

        self._file, self._name = file, name
        self.header = file.schema_arrow.names
        self.types = {}
        self.whole = {field.name for field in file.schema_arrow if pa.types.is_integer(field.type)}
        check_header(self.header, name, "the file")
        for field in file.schema_arrow:
            kind = field.type
            if pa.types.is_dictionary(kind):
                kind = kind.value_type
            self.types[field.name] = next(
                (
                    name
                    for name, tests in _PARQUET_TYPES.items()
                    if any(getattr(pa.types, f"is_{test}")(kind) for test in tests)
                ),
                "text",
            )
            kinds = [kind]
            for _ in range(_DEEPEST):
                kinds = [
                    kind.field(place).type for kind in kinds for place in range(kind.num_fields)
                ]
            if kinds:
                problem = f"is nested deeper than {_DEEPEST} levels"
                raise UsageError(f"{name}: column {field.name!r} {problem}")

    def is_nested(self, column: str) -> bool:
        """Return whether a column holds lists or the like."""
        return bool(self._file.schema_arrow.field(column).type.num_fields)

    def rows(self, places: Sequence[int], start: int = 0) -> Iterator[tuple[int, list[Any]]]:
        columns = [self.header[place] for place in places]
        groups, number = groups_from(self._file, start)
        for batch in read_few(
            self._file, self._name, columns=list(dict.fromkeys(columns)), row_groups=groups
        ):
            cells = [values_of(batch, column, self._name) for column in columns]
            for row in zip(*cells, strict=True) if cells else [()] * len(batch):
                number += 1
                if number > start:
                    yield number, list(row)


_PARQUET_TYPES = {
    "number": ("integer", "floating", "decimal"),
    "truth": ("boolean",),
    "date": ("date", "timestamp"),
}
