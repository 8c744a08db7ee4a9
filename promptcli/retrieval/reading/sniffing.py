"""The dialect of a file, guessed by its beginning, for each format of text."""

import contextlib
import csv
import json
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace

from promptcli.errors import UsageError
from promptcli.retrieval.reading.column_choice import ColumnChoice, Tell
from promptcli.retrieval.reading.column_forms import finite_number
from promptcli.retrieval.reading.dialect import (
    DELIMITERS,
    QUOTED,
    Dialect,
    is_doubled,
    is_figure,
    is_number,
)
from promptcli.retrieval.reading.input_files import Text
from promptcli.retrieval.reading.layouts import KNOWN_NAMES, columns_of_layout, name_key

_LABELS = ("entailment", "neutral", "contradiction", "-")
#: Columns of tab-separated files without a header, and whether the fields of a first line are such.
HEADLESS: dict[tuple[str, ...], Callable[[list[str]], bool]] = {
    ("label", "premise", "hypothesis"): lambda fields: len(fields) > 2 and fields[0] in _LABELS,
    ("word", "definition"): lambda fields: len(fields) == 2 and "definition" not in fields,
    # STS-B as distributed
    ("genre", "file", "year", "number", "score", "sentence1", "sentence2"): lambda fields: (
        len(fields) > 6
        and [finite_number(field) is None for field in fields[4:7]] == [False, True, True]
    ),
}


@dataclass(frozen=True)
class Look:
    """What a format is recognised by."""

    text: Text
    fields: ColumnChoice
    name: str
    tell: Tell  #: gets what is not plain
    extension: str
    by_name: bool  #: whether the extension is one of the format's own


def recognise_array(look: Look) -> Dialect | None:
    """Return the dialect of one JSON array, which only a name can tell from a text."""
    if not look.by_name or not look.text.head.lstrip().startswith("["):
        return None
    look.tell(f"{look.name}: read as one JSON array")
    return Dialect("array")


def recognise_json_lines(look: Look) -> Dialect | None:
    """Return the dialect of JSON lines: by the name, or if the first one is an object."""
    if look.by_name:
        return Dialect("jsonl")
    start = look.text.head.lstrip()
    if start.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            if json.loads(start.partition("\n")[0]):
                look.tell(f"{look.name}: read as JSON lines")
                return Dialect("jsonl")
    return None


def recognise_table(look: Look) -> Dialect | None:
    """Return how a table is written; None for a text that is not a table."""
    form = look.extension.removeprefix(".") if look.by_name else "text"
    return _table_dialect(look.text, form, look.fields, look.name, look.tell)


def _table_dialect(
    text: Text, form: str, fields: ColumnChoice, name: str, tell: Tell
) -> Dialect | None:
    """Return how a table is written; None for text (``form``) that is not a table."""
    lines = [f"{line}\n" for line in text.head.split("\n")]
    if not text.complete or lines[-1] == "\n":
        lines = lines[:-1] or lines
    blank = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if blank and form == "text":
        return None
    lines = lines[blank:]
    first = lines[0].rstrip("\r\n").split("\t")
    for columns, fits in HEADLESS.items():
        if fits(first) and any(columns_of_layout(layout, columns) for layout in fields.layouts):
            tell(f"{name}: no header; its columns: {', '.join(columns)}")
            return Dialect("table", "\t", False, blank, header=columns, ragged=True)
    named = set(KNOWN_NAMES)
    for column in (fields.text, fields.id, *fields.named, fields.text_before, fields.id_before):
        if column and not column.isdecimal():
            named.add(name_key(column))
    usual = "," if form == "csv" else "\t"
    tables = _readings(lines, usual, blank)
    best = max(tables, key=lambda table: (table.has_column(named), table.evenness))
    even = best.evenness == 1
    if form == "text":
        plain = not best.skipped and not best.has_column(named) and best.delimiter != "\t"
        if plain or best.width < 2 or not even or len(best.rows) < 2:
            return None
        if not any(row[0].strip() for row in best.rows):  # lines that are indented
            return None
    elif even and not best.has_column(named) and sum(table.evenness == 1 for table in tables) > 1:
        signs = [DELIMITERS[table.delimiter] for table in tables if table.evenness == 1]
        raise UsageError(
            f"{name}: columns separated by {' or '.join(signs)}? write sep={best.delimiter}, say,"
            " as its first line"
        )
    remarks = []
    if best.delimiter != usual or form == "text":
        sign = DELIMITERS.get(best.delimiter, repr(best.delimiter))
        remarks.append(f" as a table separated by {sign}")
    if best.quoted and best.delimiter == "\t":
        remarks.append(", its cells in double quotes")
    return _take_header(best, form, named, remarks, name, tell)


def _readings(lines: Sequence[str], usual: str, blank: int) -> list[Dialect]:
    """Return lines as tables by every delimiter that may be meant, the usual one first."""
    excel = re.fullmatch(r"sep=(.)\r?\n", lines[0], re.IGNORECASE)
    if excel:
        return [_split_lines(lines[1:], excel[1], blank + 1)]
    delimiters = dict.fromkeys([usual, *DELIMITERS])
    tables = [_split_lines(lines, delimiter, blank) for delimiter in delimiters]
    if any(_has_decimal_commas(table) for table in tables):
        tables = [table for table in tables if table.delimiter != ","]
    return [table for table in tables if table.width > 1] or tables[:1]


def _has_decimal_commas(table: Dialect) -> bool:
    """Return whether a column of an even table holds only numbers such as 3,8."""
    if table.delimiter == "," or table.evenness != 1 or table.width < 2:
        return False
    for column in zip(*table.rows, strict=False):
        if all("," in cell and is_number(cell) for cell in column):
            return True
    return False


def _rows_of_lines(lines: Sequence[str], delimiter: str, quoted: bool) -> list[list[str]]:
    """Return the rows of a table that are not empty; none if it is not written so."""
    if quoted:
        try:
            rows = list(csv.reader(lines, delimiter=delimiter))
        except csv.Error:
            return []
    else:
        rows = [line.rstrip("\r\n").split(delimiter) for line in lines]
    return [row for row in rows if any(cell.strip() for cell in row)]


def _split_lines(lines: Sequence[str], delimiter: str, skipped: int) -> Dialect:
    """Return lines as a table.

    With tabs a quote is a character like others, as in GLUE's, unless quotes make the rows even.
    """
    quoted_rows = _rows_of_lines(lines, delimiter, True)
    if delimiter == "\t":
        plain_rows = _rows_of_lines(lines, delimiter, False)
        quotes_are_needed = _has_quoted_cells(plain_rows) or not _is_even(plain_rows)
        if not (_is_even(quoted_rows) and quotes_are_needed):
            return Dialect("table", delimiter, False, skipped, rows=plain_rows)
    return Dialect("table", delimiter, True, skipped, rows=quoted_rows)


def _is_even(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether there are rows, and all have as many cells."""
    return len({len(row) for row in rows}) == 1


def _has_quoted_cells(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether every cell with a quote is in quotes, and one of them as no sentence is.

    That is a name in the first row, or a cell with doubled quotes inside.
    """
    marked: list[str] = []
    for row in rows:
        marked.extend(cell for cell in row if '"' in cell)
    if not all(QUOTED.fullmatch(cell) for cell in marked):
        return False
    return any(is_doubled(cell) or cell in rows[0] for cell in marked)


def _take_header(
    table: Dialect, form: str, named: Set[str], remarks: list[str], name: str, tell: Tell
) -> Dialect:
    """Return a table without its header among the rows, or with numbers in its place."""
    if not table.rows:
        return table
    first, *rows = table.rows
    if table.has_column(named):
        table = replace(table, rows=rows)
    elif _looks_like_header(first, rows, form):
        remarks.append(f" with the header {', '.join(first)}")
        table = replace(table, rows=rows)
    else:
        remarks.append(" without a header")
        width = table.width
        least = min(len(row) for row in table.rows)
        ragged = table.delimiter == "\t" and 1 < least and table.evenness < 1  # as STS-B
        if ragged:
            width = least
        numbers = tuple(str(number) for number in range(1, width + 1))
        table = replace(table, header=numbers, ragged=ragged)
    if remarks:
        tell(f"{name}: read{''.join(remarks)}")
    return table


def _looks_like_header(first: Sequence[str], rows: Sequence[Sequence[str]], form: str) -> bool:
    """Return whether the cells of a first row are names: words above numbers, or short ones.

    In a text (``form``) short ones may be a list's first item, not names.
    """
    if any(is_figure(cell) for cell in first):
        return False
    names = [cell.strip() for cell in first if cell.strip()]
    are_short = all(name[-1] not in ".!?" and len(name.split()) < 4 for name in names)
    if are_short and form != "text":
        return True
    for column in zip(*rows, strict=False):
        filled = [cell for cell in column if cell]
        if filled and all(is_figure(cell) for cell in filled):
            return True
    return False
