"""Readers of rows with named fields (JSONL, CSV, TSV, Parquet) as records. Knows nothing of extensions or hashes."""

import csv
import json
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from promptcli.data.parquet_files import cells, open_parquet, read_batches
from promptcli.data.streams import LONGEST_LINE, strip_ending
from promptcli.errors import UsageError

#: Field names that hold the sentence where none is chosen, best first.
TEXT_FIELDS = ("text", "sentence")
#: The field that holds the id where none is chosen.
ID_FIELD = "id"
#: A column that a row may leave empty, or an object leave out: a triplet's hard negative.
OPTIONAL = "hard_neg"
#: The layout of a source that holds sentences alone.
SENTENCES: tuple[str, ...] = ()

#: Rows of a Parquet file held at once.
_PARQUET_ROWS = 4096

Lines = Iterator[tuple[int, str]]


class NoFieldError(UsageError):
    """A field that is asked for is not there."""


class Record(NamedTuple):
    """One sentence of a source.

    ``id`` is the row number where the source has no ids; an id from a field is always text. ``more`` are the other
    columns that were asked for (the second sentence of a pair, a label), as text.
    """

    row: int
    id: int | str
    text: str
    more: tuple[str, ...] = ()


class Choice(NamedTuple):
    """The columns to read: the sentence's, the id's or None, and others."""

    text: str
    id: str | None = None
    more: tuple[str, ...] = ()


class Chooser(Protocol):
    """Chooses among the columns of a source."""

    def headless(self, line: str) -> tuple[str, ...] | None:
        """Return the columns of a table without a header that begins with ``line``; None where it is no such table."""
        ...

    def choose(self, columns: Sequence[str], name: str) -> Choice:
        """Return the columns to read; raise ``UsageError`` where none fit."""
        ...

    def check_plain(self, name: str) -> None:
        """Raise ``NoFieldError`` where lines of plain text are not what is asked for."""
        ...


class Fields(NamedTuple):
    """The fields of a sentence and its id; None means: choose by name."""

    text: str | None = None
    id: str | None = None

    def headless(self, line: str) -> None:
        """Return None: a sentence's field is asked for, which such lines have not."""

    def check_plain(self, name: str) -> None:
        """Refuse plain text where a field is asked for."""
        if self != Fields():
            raise NoFieldError(f"{name} is plain text and has no fields; leave out --text-field and --id-field")

    def choose(self, columns: Sequence[str], name: str) -> Choice:
        """Return the sentence's column and the id's column (or None) among ``columns``.

        Raises:
            NoFieldError: a field that is not there.
            UsageError: no column that is plainly the sentence.
        """
        listed = ", ".join(columns)
        for option, given in (("--text-field", self.text), ("--id-field", self.id)):
            if given is not None and list(columns).count(given) != 1:
                raise NoFieldError(
                    f"{name}: {option} {given!r} is no column of it, or more than one; columns: {listed}"
                )
        identifier = self.id or (ID_FIELD if ID_FIELD in columns and self.text != ID_FIELD else None)
        if identifier is not None and list(columns).count(identifier) > 1:
            raise UsageError(f"{name}: more than one column {identifier!r}; give each a name of its own: {listed}")
        if self.text is not None:
            return Choice(self.text, identifier)
        for usual in TEXT_FIELDS:
            if list(columns).count(usual) == 1:
                return Choice(usual, identifier)
        others = [column for column in columns if column != identifier]
        if len(others) != 1:
            raise UsageError(f"{name}: no column 'text' or 'sentence'; choose one with --text-field; columns: {listed}")
        return Choice(others[0], identifier)


class FirstLayout:
    """The first of several layouts, each a tuple of column names, that a source has; then the layout is ``chosen``.

    Args:
        layouts: Best first; ``SENTENCES`` stands for sentences alone, plain text included. One that is among the
            columns of ``HEADLESS`` may also come without a header.
        like: How a user may name other columns, for messages.
    """

    def __init__(self, *layouts: tuple[str, ...], like: str | None = None) -> None:
        self._layouts, self._like = layouts, like
        self.chosen: tuple[str, ...] | None = None

    def headless(self, line: str) -> tuple[str, ...] | None:
        """Return the columns of ``HEADLESS`` that a layout is made of and the line looks like, or None."""
        fields = line.rstrip("\r\n").split("\t")
        wanted = [
            columns for columns in HEADLESS if any(set(layout) <= set(columns) for layout in self._layouts if layout)
        ]
        return next((columns for columns in wanted if HEADLESS[columns](fields)), None)

    def check_plain(self, name: str) -> None:
        """Refuse plain text where sentences alone will not do."""
        if SENTENCES not in self._layouts:
            raise NoFieldError(f"{name} is plain text and has no columns; {self._wanted()}")
        self.chosen = SENTENCES

    def choose(self, columns: Sequence[str], name: str) -> Choice:
        """Return the columns of the first layout that is there.

        Raises:
            NoFieldError: None is.
        """
        for layout in self._layouts:
            if layout != SENTENCES and all(list(columns).count(column) == 1 for column in layout):
                self.chosen = layout
                return Choice(layout[0], None, layout[1:])
        if SENTENCES in self._layouts:
            self.chosen = SENTENCES
            return Fields().choose(columns, name)
        missing = next(column for column in self._layouts[0] if list(columns).count(column) != 1)
        listed = f"its columns: {', '.join(columns)}"
        if self._like is not None:
            raise NoFieldError(f"{name}: no column {missing!r}; {listed}; name them as {self._like}")
        raise NoFieldError(f"{name}: {self._wanted()}; {listed}")

    def _wanted(self) -> str:
        layouts = " or ".join(", ".join(layout) for layout in self._layouts)
        return f"give a file with the columns {layouts}"


def read_jsonl(lines: Lines, fields: Chooser, name: str) -> Iterator[Record]:
    """Yield the objects of JSON lines; a blank line is an empty sentence, and its id is empty too.

    Raises:
        UsageError: a line that is no JSON object, lacks a field or holds a wrong value; with the line number.
    """
    blanks = 0
    chosen: Choice | None = None
    row = -1
    for row, (number, line) in enumerate(lines):
        where = f"{name}: line {number}"
        if not line.strip():
            if chosen is None:  # whether there are ids shows only in the first object
                blanks += 1
            else:
                yield Record(row, row if chosen.id is None else "", "", ("",) * len(chosen.more))
            continue
        values = _json_object(line, where)
        if chosen is None:
            chosen = fields.choose(list(values), where)
            empty = ("",) * len(chosen.more)
            yield from (Record(blank, blank if chosen.id is None else "", "", empty) for blank in range(blanks))
        text, identifier, more = chosen
        found = row if identifier is None else id_text(_value(values, identifier, where), identifier, where)
        if OPTIONAL in more:
            values.setdefault(OPTIONAL, None)
        others = tuple(_cell(_value(values, column, where), column, where) for column in more)
        yield Record(row, found, _sentence(_value(values, text, where), text, where), others)
    if chosen is None:
        yield from (Record(blank, blank, "") for blank in range(blanks))


def read_csv(lines: Lines, fields: Chooser, name: str) -> Iterator[Record]:
    """Yield the rows of comma-separated values under a header; quotes as in RFC 4180, also around line ends.

    Raises:
        UsageError: no such field, a row of another length, or broken quoting; with the line number.
    """
    csv.field_size_limit(LONGEST_LINE)  # the module's own limit is 128 KiB
    last = 0

    def texts() -> Iterator[str]:
        nonlocal last
        for number, line in lines:
            last = number
            yield line

    rows = csv.reader(texts(), strict=True)
    hint = "a text with commas or quotes stands in double quotes"
    try:
        yield from _read_rows(((last, values) for values in rows), fields, name, hint)
    except csv.Error as error:
        raise UsageError(f"{name}: line {last}: {error}; {hint}") from None


def read_tsv(lines: Lines, fields: Chooser, name: str) -> Iterator[Record]:
    """Yield the rows of tab-separated values under a header; a quote is a character like any other, as in GLUE's files.

    Raises:
        UsageError: no such field, or a row of another length; with the line number.
    """
    rows = ((number, strip_ending(line).split("\t")) for number, line in lines)
    return _read_rows(rows, fields, name, "a text holds no tabs")


_LABELS = ("entailment", "neutral", "contradiction", "-")
#: Columns that files without a header have, with tabs between them, and whether a first line's fields are such.
HEADLESS: dict[tuple[str, ...], Callable[[list[str]], bool]] = {
    ("label", "premise", "hypothesis"): lambda fields: len(fields) > 2 and fields[0] in _LABELS,
    ("word", "definition"): lambda fields: len(fields) == 2 and "definition" not in fields,
}


def read_headless(lines: Lines, fields: Chooser, name: str, columns: tuple[str, ...]) -> Iterator[Record]:
    """Yield the rows of lines that begin with those columns, tabs between them, without a header.

    Raises:
        UsageError: a line with fewer columns; with the line number.
    """

    def rows() -> Iterator[tuple[int, list[str]]]:
        yield 0, list(columns)
        for number, line in lines:
            text = strip_ending(line)
            values = text.split("\t") if text.strip() else [""] * len(columns)  # a blank line keeps its row
            if len(values) < len(columns):
                raise UsageError(
                    f"{name}: line {number}: {len(values)} columns; each line is {', '.join(columns[:-1])} and"
                    f" {columns[-1]} with tabs between them"
                )
            yield number, values[: len(columns)]

    return _read_rows(rows(), fields, name, "")


def read_parquet(
    path: Path | str, fields: Chooser, *, file: BinaryIO | None = None, start: int = 0
) -> Generator[Record, None, None]:
    """Yield the rows of a Parquet file from row ``start`` on; of an open ``file`` where one is given.

    Raises:
        UsageError: no Parquet file, no such field, or a value that is no text; with the row number from 1.
    """
    with open_parquet(file or path, path, mend="give another file", error=UsageError) as opened:
        text, identifier, more = fields.choose(opened.schema_arrow.names, str(path))
        columns = [text, *([] if identifier is None else [identifier]), *more]
        row, groups = _groups_from(opened.metadata, start)
        for batch in read_batches(opened, _PARQUET_ROWS, columns=columns, row_groups=groups):
            if row + len(batch) <= start:
                row += len(batch)
                continue
            batch = batch.slice(max(start - row, 0))
            row = max(start, row)
            texts = cells(batch, text, path)
            ids = range(row, row + len(texts)) if identifier is None else cells(batch, identifier, path)
            others = [cells(batch, column, path) for column in more]
            for value, found, *rest in zip(texts, ids, *others, strict=True):
                where = f"{path}: row {row + 1}"
                known = row if identifier is None else id_text(found, identifier, where)
                kept = tuple(_cell(cell, column, where) for cell, column in zip(rest, more, strict=True))
                yield Record(row, known, _sentence(value, text, where), kept)
                row += 1


def _groups_from(metadata: Any, start: int) -> tuple[int, list[int]]:
    """Return the first row of the row group that holds the row ``start``, and this group with those after it."""
    row = group = 0
    while group < metadata.num_row_groups and row + metadata.row_group(group).num_rows <= start:
        row += metadata.row_group(group).num_rows
        group += 1
    return row, list(range(group, metadata.num_row_groups))


def id_text(value: Any, field: str, where: str) -> str:
    """Return an id as text; ids are text or whole numbers.

    Raises:
        UsageError: any other value.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UsageError(f"{where}: {field!r} is {_shown(value)}; an id is text or a whole number")
    return _unicode(str(value), field, where)


def _read_rows(rows: Iterator[tuple[int, list[str]]], fields: Chooser, name: str, hint: str) -> Iterator[Record]:
    for _, header in rows:
        text, identifier, more = fields.choose(header, name)
        at, id_at = header.index(text), None if identifier is None else header.index(identifier)
        others = [header.index(column) for column in more]
        for row, (number, found) in enumerate(rows):
            values = found if any(found) else [""] * len(header)  # a blank line keeps its row
            if len(values) != len(header):
                counts = f"{len(values)} columns where the header has {len(header)}"
                raise UsageError(f"{name}: line {number}: {counts}; {hint}")
            known = row if id_at is None else values[id_at]
            yield Record(row, known, values[at], tuple(values[other] for other in others))


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: malformed JSON: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f'{where}: {_shown(values)} is no JSON object; give one a line, e.g. {{"text": "..."}}')
    return values


def _value(values: dict[str, Any], field: str, where: str) -> Any:
    if field not in values:
        raise UsageError(f"{where}: no field {field!r}; its fields: {', '.join(values)}")
    return values[field]


def _sentence(value: Any, field: str, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where}: {field!r} is {_shown(value)}; a sentence is text")
    if "\0" in value:
        raise UsageError(f"{where}: {field!r} holds a NUL character")
    return _unicode(value, field, where)


def _unicode(value: str, field: str, where: str) -> str:
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"{where}: {field!r} holds half a surrogate pair at character {error.start + 1}") from None
    return value


def _cell(value: Any, field: str, where: str) -> str:
    """Return a cell other than the sentence as text; a label or a score may be a number."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    if value is None and field == OPTIONAL:
        return ""
    if value is None or isinstance(value, float):
        raise UsageError(f"{where}: {field!r} is empty; give text or a number")
    return _sentence(value, field, where)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."
