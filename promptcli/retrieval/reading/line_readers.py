"""Numbered rows from the lines of a file: JSON lines, one JSON array, a table.

Each reader returns the names of the columns (None if there are no rows) and the rows.
"""

import csv
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from promptcli.data.given import is_unicode
from promptcli.errors import UsageError, shorten
from promptcli.retrieval.reading.bad_lines import BadRows
from promptcli.retrieval.reading.column_choice import Tell
from promptcli.retrieval.reading.dialect import Dialect, is_doubled
from promptcli.retrieval.reading.input_files import LONGEST_LINE, without_end
from promptcli.retrieval.reading.layouts import TEXT, is_negative, unique_names

#: Columns of a table, at most.
_COLUMNS = 10_000
#: Levels of lists and objects in a row of JSON; Python writes some 960, the fewer the deeper its
#: own calls are.
DEEPEST = 100
TOO_DEEP = f"it is nested deeper than {DEEPEST} levels"
#: Numbered rows of a file: cell by column; None if the line is empty.
NumberedRows = Iterator[tuple[int, Any]]


def read_json_lines(
    lines: Iterator[str], dialect: Dialect, name: str, tell: Tell, bad: BadRows
) -> tuple[list[str] | None, NumberedRows]:
    """Return an object a line; the first one has the columns."""
    rows = _json_objects(lines, name, bad)
    begin = list[tuple[int, Any]]()
    for number, row in rows:
        begin.append((number, row))
        if row is not None:
            return list(row), itertools.chain(begin, rows)
    return None, iter(begin)


def _json_objects(lines: Iterator[str], name: str, bad: BadRows) -> NumberedRows:
    for number, line in enumerate(lines, 1):
        row = None
        try:
            if line.strip():
                row = _json_value(line)
        except ValueError as error:
            hint = "give one object a line, or one array of them"
            bad.add(name, "line", number, f"malformed JSON: {error}; {hint}", line)
        if row is not None and not isinstance(row, dict):
            hint = 'give one object a line, e.g. {"text": "..."}'
            bad.add(name, "line", number, f"{shorten(row)} is not a JSON object; {hint}", line)
            row = None
        yield number, row


def _json_value(text: str) -> Any:
    """Return the value of JSON text; ValueError if it has none, or is nested too deep."""
    import msgspec

    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        try:
            value = json.loads(text)  # msgspec does not read NaN, for example, as a number
        except RecursionError:
            raise ValueError(TOO_DEEP) from None
    if text.count("[") + text.count("{") > DEEPEST and _is_deeper(value, DEEPEST):
        raise ValueError(TOO_DEEP)
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether a JSON value has more levels of lists and objects."""
    level = [value]
    for _ in range(levels + 1):
        inner = list[Any]()
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return False
        level = inner
    return True


def with_all_negatives(
    rows: NumberedRows, header: Sequence[str], name: str, bad: BadRows
) -> NumberedRows:
    """Refuse an object with a hard negative that the first one has no field for: it would be
    lost.
    """
    known = set(header)
    for number, row in rows:
        unknown = set[str]()
        if row is not None:
            unknown = row.keys() - known
        lost = next(filter(is_negative, unknown), None)
        if lost is not None:
            hint = "give the first object all fields; those of hard negatives may be empty"
            reason = f"the first line has no field {lost!r}; {hint}"
            bad.add(name, "line", number, reason, as_json(row))
            row = None
        else:
            known |= unknown
        yield number, row


def read_array(
    lines: Iterator[str], dialect: Dialect, name: str, tell: Tell, bad: BadRows
) -> tuple[list[str] | None, NumberedRows]:
    """Read one JSON array of objects or of sentences; the number of a row is that in the array."""
    read = list[str]()
    size = 0
    for line in lines:
        read.append(line)
        size += len(line)
        if size > LONGEST_LINE:
            cure = "make lines of it: jq -c '.[]' IN > OUT.jsonl"
            raise UsageError(f"{name}: a JSON array of more than 64 MiB; {cure}")
    try:
        items = _json_value("".join(read))
    except ValueError as error:
        raise UsageError(
            f"{name}: malformed JSON: {error}; give one array, or an object a line"
        ) from None
    rows = list[Any]()
    for number, item in enumerate(items, 1):
        if isinstance(item, str):
            item = {TEXT: item}
        if not isinstance(item, dict):
            reason = f"{shorten(item)} is not a JSON object or a sentence"
            bad.add(name, "row", number, reason, as_json(item))
            item = None
        rows.append(item)
    first = next((row for row in rows if row is not None), None)
    return None if first is None else list(first), enumerate(rows, 1)


def read_table(
    lines: Iterator[str], dialect: Dialect, name: str, tell: Tell, bad: BadRows
) -> tuple[list[str], NumberedRows]:
    """Return the rows of a table under its header, or under numbers if it has none."""
    if dialect.quoted:
        rows = _quoted_rows(lines, dialect, name, bad)
    else:
        rows = _unquoted_rows(lines, dialect, name, tell)
    header = list(dialect.header) or next(rows, (0, []))[1]
    if not header:
        raise UsageError(f"{name} is empty; give a header and at least one row")
    if len(header) > _COLUMNS:
        raise UsageError(f"{name}: {len(header):,} columns; give a table of at most {_COLUMNS:,}")
    # pandas: a nameless index
    header = [column or str(number) for number, column in enumerate(header, 1)]
    return header, _even_rows(rows, header, dialect, name, bad)


def _even_rows(
    rows: Iterator[tuple[int, list[str]]],
    header: list[str],
    dialect: Dialect,
    name: str,
    bad: BadRows,
) -> NumberedRows:
    width = len(header)
    names = unique_names(header)
    for number, row in rows:
        if len(row) == width or (dialect.ragged and len(row) > width):
            yield number, dict(zip(names, row, strict=False))
        elif any(map(str.strip, row)):
            if dialect.header:
                above = f"the first line has {width}"
            else:
                above = f"the header has {width} ({', '.join(header)})"
            reason = f"{len(row)} columns, but {above}; {_hint(dialect)}"
            bad.add(name, "line", number, reason, dialect.delimiter.join(row))
            yield number, None
        else:
            yield number, None


def _unquoted_rows(
    lines: Iterator[str], dialect: Dialect, name: str, tell: Tell
) -> Iterator[tuple[int, list[str]]]:
    told = False
    for number, line in enumerate(lines, 1 + dialect.skipped):
        cells = without_end(line).split(dialect.delimiter)
        if '""' in line and any(map(is_doubled, cells)):  # the first rows had no such cell
            if not told:
                tell(
                    f"{name}: cells with doubled quotes are read without them, first in line"
                    f" {number}"
                )
                told = True
            cells = [cell[1:-1].replace('""', '"') if is_doubled(cell) else cell for cell in cells]
        yield number, cells


def _quoted_rows(
    lines: Iterator[str], dialect: Dialect, name: str, bad: BadRows
) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_LINE)  # the module's own limit is 128 KiB
    lines_of_row = list[str]()
    reader = csv.reader(
        _record_lines(lines, lines_of_row), delimiter=dialect.delimiter, strict=True
    )
    number = dialect.skipped + 1
    while True:
        lines_of_row.clear()
        try:
            row = next(reader, None)
        except csv.Error as error:
            bad.add(name, "line", number, f"{error}; {_hint(dialect)}", lines_of_row[0])
            # the lines after the first, which an open quote has taken, are separate rows
            lines = itertools.chain(lines_of_row[1:], lines)
            lines_of_row = []
            reader = csv.reader(
                _record_lines(lines, lines_of_row), delimiter=dialect.delimiter, strict=True
            )
            yield number, []
            number += 1
            continue
        if row is None:
            return
        yield number, row
        number += len(lines_of_row)


def _record_lines(lines: Iterator[str], into: list[str]) -> Iterator[str]:
    """Yield lines, and keep them."""
    for line in lines:
        into.append(line)
        yield line


def as_json(row: Any) -> str:
    """Return a row that was read as the line of a file; half a surrogate pair is an escape."""
    text = json.dumps(row, ensure_ascii=False, default=str)
    if is_unicode(text):
        return text
    return json.dumps(row, default=str)


def _hint(dialect: Dialect) -> str:
    if not dialect.quoted:
        return "a text with tabs cannot be in it"
    return f"a text with {dialect.delimiter!r} or quotes is written in double quotes"


def with_title(row: dict[str, Any]) -> Any:
    """Return the title and the text of a document, as BEIR joins them."""
    title = row.get("title")
    text = row.get(TEXT)
    if not isinstance(title, str) or not isinstance(text, str):
        return text
    return " ".join(part for part in (title, text) if part)
