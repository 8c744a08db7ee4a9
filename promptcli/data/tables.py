"""Rows of a source as records: the columns that are read, and a reader for each format. Knows nothing of hashes."""

import contextlib
import csv
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from promptcli.data.streams import LONGEST_LINE
from promptcli.errors import CheckFailedError, PromptcliError, UsageError, one_line
from promptcli.storage.documents import shown

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

Lines = Iterator[str]


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

    @property
    def columns(self) -> list[str]:
        """All of them, in this order."""
        return [self.text, *([] if self.id is None else [self.id]), *self.more]


#: Returns the columns to read among those of a source, by its name; plain text has None. Raises ``UsageError``.
Chooser = Callable[[Sequence[str] | None, str], Choice]


class Fields(NamedTuple):
    """The fields of a sentence and its id; None means: choose by name."""

    text: str | None = None
    id: str | None = None

    def choose(self, columns: Sequence[str] | None, name: str) -> Choice:
        """Return the sentence's column and the id's column (or None) among ``columns``; plain text has None of them.

        Raises:
            UsageError: A field that is not there; or no column that is plainly the sentence.
        """
        if columns is None:
            if self != Fields():
                raise UsageError(f"{name} is plain text and has no fields; leave out `text_field` and `id_field`")
            return Choice("")
        once, listed = {column for column, times in Counter(columns).items() if times == 1}, ", ".join(columns)
        for option, given in (("`text_field`", self.text), ("`id_field`", self.id)):
            if given is not None and given not in once:
                raise UsageError(f"{name}: {option} {given!r} is no column of it, or more than one; columns: {listed}")
        identifier = self.id or (ID_FIELD if ID_FIELD in columns and self.text != ID_FIELD else None)
        if identifier is not None and identifier not in once:
            raise UsageError(f"{name}: more than one column {identifier!r}; give each a name of its own: {listed}")
        others = [column for column in columns if column != identifier]
        usual = [column for column in TEXT_FIELDS if column in once] or (others if len(others) == 1 else [])
        if self.text is None and not usual:
            raise UsageError(f"{name}: no column 'text' or 'sentence'; choose one with `text_field`; columns: {listed}")
        return Choice(self.text or usual[0], identifier)


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

    def headless(self, line: str) -> tuple[str, ...]:
        """Return the columns of ``HEADLESS`` that a layout is made of and the line looks like."""
        fields = line.rstrip("\r\n").split("\t")
        layouts = [set(layout) for layout in self._layouts if layout]
        wanted = [columns for columns in HEADLESS if any(layout <= set(columns) for layout in layouts)]
        return next((columns for columns in wanted if HEADLESS[columns](fields)), ())

    def choose(self, columns: Sequence[str] | None, name: str) -> Choice:
        """Return the columns of the first layout that is there; plain text has sentences alone.

        Raises:
            UsageError: None is.
        """
        once = {column for column, times in Counter(columns).items() if times == 1}
        for layout in self._layouts:
            if layout != SENTENCES and once.issuperset(layout):
                self.chosen = layout
                return Choice(layout[0], None, layout[1:])
        if SENTENCES in self._layouts:
            self.chosen = SENTENCES
            return Fields().choose(columns, name)
        wanted = "give a file with the columns " + " or ".join(", ".join(layout) for layout in self._layouts)
        if columns is None:
            raise UsageError(f"{name} is plain text and has no columns; {wanted}")
        listed = f"its columns: {', '.join(columns)}"
        if self._like is not None:
            missing = next(column for column in self._layouts[0] if column not in once)
            raise UsageError(f"{name}: no column {missing!r}; {listed}; name them as {self._like}")
        raise UsageError(f"{name}: {wanted}; {listed}")


#: What says which columns of a source are read.
Columns = Fields | FirstLayout


def read_text(lines: Lines, choose: Chooser, name: str, first: int) -> Iterator[Record]:
    """Yield one record a line.

    Raises:
        UsageError: a field is asked for; plain text has none.
    """
    choose(None, name)
    for row, line in enumerate(lines):
        yield Record(row, row, line.removesuffix("\n").removesuffix("\r"))


def read_jsonl(lines: Lines, choose: Chooser, name: str, first: int) -> Iterator[Record]:
    """Yield the objects of JSON lines; a blank line is an empty sentence, and its id is empty too.

    Raises:
        UsageError: a line that is no JSON object, lacks a field or holds a wrong value; with the line number.
    """
    blanks: list[str] = []  # whether there are ids shows only in the first object
    for line in lines:
        blanks.append(line)
        if line.strip():
            break
    else:
        yield from (Record(row, row, "") for row in range(len(blanks)))
        return
    place = (name, "line", first - 1 + len(blanks))
    choice = choose(list(_json_object(blanks[-1], place)), _where(place))
    columns = choice.columns
    for row, line in enumerate(itertools.chain(blanks, lines)):
        if not line.strip():
            yield Record(row, row if choice.id is None else "", "", ("",) * len(choice.more))
            continue
        place = (name, "line", first + row)
        values = _json_object(line, place)
        if OPTIONAL in choice.more:
            values.setdefault(OPTIONAL, None)
        try:
            cells = [values[column] for column in columns]
        except KeyError as missing:
            raise UsageError(f"{_where(place)}: no field {missing}; its fields: {', '.join(values)}") from None
        yield _record(row, choice, cells, place)


def read_csv(lines: Lines, choose: Chooser, name: str, first: int) -> Iterator[Record]:
    """Yield the rows of comma-separated values under a header; quotes as in RFC 4180, also around line ends.

    Raises:
        UsageError: no such field, a row of another length, or broken quoting; with the line number.
    """
    csv.field_size_limit(LONGEST_LINE)  # the module's own limit is 128 KiB
    rows = csv.reader(lines, strict=True)
    try:
        yield from _read_rows(((first - 1 + rows.line_num, row) for row in rows), choose, name, CSV_HINT)
    except csv.Error as error:
        raise UsageError(f"{name}: line {first - 1 + rows.line_num}: {error}; {CSV_HINT}") from None


CSV_HINT = "a text with commas or quotes stands in double quotes"


def read_tsv(
    lines: Lines, choose: Chooser, name: str, first: int, *, columns: tuple[str, ...] = ()
) -> Iterator[Record]:
    """Yield the rows of tab-separated values; a quote is a character like any other, as in GLUE's files.

    ``columns`` are what each line of a file without a header begins with; what stands after them is left out.

    Raises:
        UsageError: no such field, or a row of another length; with the line number.
    """
    rows: Iterator[tuple[int, list[str]]] = (
        (number, line.removesuffix("\n").removesuffix("\r").split("\t")) for number, line in enumerate(lines, first)
    )
    if columns:
        rows = itertools.chain([(0, list(columns))], ((number, row[: len(columns)]) for number, row in rows))
    return _read_rows(rows, choose, name, "a text holds no tabs")


_LABELS = ("entailment", "neutral", "contradiction", "-")
#: Columns that files without a header have, with tabs between them, and whether a first line's fields are such.
HEADLESS: dict[tuple[str, ...], Callable[[list[str]], bool]] = {
    ("label", "premise", "hypothesis"): lambda fields: len(fields) > 2 and fields[0] in _LABELS,
    ("word", "definition"): lambda fields: len(fields) == 2 and "definition" not in fields,
}


def _read_rows(rows: Iterator[tuple[int, list[str]]], choose: Chooser, name: str, hint: str) -> Iterator[Record]:
    """Yield the records of numbered rows under a header, which comes first; a blank line keeps its row."""
    for _, header in rows:
        choice = choose(header, name)
        at, *others = (header.index(column) for column in (choice.text, *choice.more))
        id_at = None if choice.id is None else header.index(choice.id)
        for row, (number, values) in enumerate(rows):
            if len(values) != len(header):
                if any(map(str.strip, values)):
                    counts = f"{len(values)} columns where the header has {len(header)} ({', '.join(header)})"
                    raise UsageError(f"{name}: line {number}: {counts}; {hint}")
                values = [""] * len(header)
            known = row if id_at is None else values[id_at]
            yield Record(row, known, values[at], tuple([values[other] for other in others]))


@contextlib.contextmanager
def open_parquet(
    source: Path | str | BinaryIO,
    name: Path | str,
    *,
    hint: str,
    error: type[PromptcliError] = CheckFailedError,
    sums: bool = False,
) -> Iterator[Any]:
    """Yield an open ``pyarrow.parquet.ParquetFile``; ``name``, ``hint`` and ``error`` are for what is wrong with it.

    With ``sums`` the checksum of each page is compared when it is read.

    Raises:
        PromptcliError: of class ``error``: it is no whole Parquet file; also while the block reads it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # small pages at a time: without a buffer size a whole column chunk is read at once
        with pq.ParquetFile(source, buffer_size=1 << 20, page_checksum_verification=sums) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:  # the last: the name of a column
        raise error(f"{name} is not a whole Parquet file ({one_line(problem, 100)}); {hint}") from None


def read_batches(file: Any, rows: int, **options: Any) -> Iterator[Any]:
    """Yield batches of so many rows, every text in them UTF-8; options are those of ``ParquetFile.iter_batches``.

    Raises:
        pyarrow.ArrowException, OSError: they cannot be read, for ``open_parquet`` to say.
    """
    for batch in file.iter_batches(rows, **options):
        batch.validate(full=True)
        yield batch


def values_of(batch: Any, column: str, name: Path | str) -> list[Any]:
    """Return a column of a batch as Python's values; ``name`` is the file's.

    Raises:
        UsageError: It holds what Python has no value for, such as a date after the year 9999.
    """
    found = batch.column(column)
    try:
        values: list[Any] = found.to_pylist()
    except (OverflowError, ValueError) as problem:
        why = f"cannot be read ({one_line(problem, 80)}); give text or whole numbers"
        raise UsageError(f"{name}: column {column!r} of {found.type} {why}") from None
    return values


def read_parquet(
    path: Path | str, choose: Chooser, *, file: BinaryIO | None = None, start: int = 0
) -> Generator[Record, None, None]:
    """Yield the rows of a Parquet file from row ``start`` on; of an open ``file`` where one is given.

    Raises:
        UsageError: no Parquet file, no such field, or a value that is no text; with the row number from 1.
    """
    with open_parquet(file or path, path, hint="give another file", error=UsageError) as opened:
        choice = choose(opened.schema_arrow.names, str(path))
        sizes = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
        ends = list(itertools.accumulate(sizes))
        group = sum(end <= start for end in ends)  # the first one that is read
        row = sum(sizes[:group])
        options: dict[str, Any] = {"columns": choice.columns, "row_groups": list(range(group, len(sizes)))}
        for batch in read_batches(opened, _PARQUET_ROWS, **options):
            kept = batch.slice(max(start - row, 0))
            columns = [values_of(kept, name, path) for name in choice.columns]
            for at, cells in enumerate(zip(*columns, strict=True), max(start, row)):
                yield _record(at, choice, cells, (str(path), "row", at + 1))
            row += len(batch)


#: Where a value stands: source, kind of place, number from 1.
_Place = tuple[str, str, int]


def _where(place: _Place) -> str:
    name, kind, number = place
    return f"{name}: {kind} {number}"


def _record(row: int, choice: Choice, cells: Sequence[Any], place: _Place) -> Record:
    """Return the record of a row's values, in the order of the columns; they may be of any type."""
    text = _sentence(cells[0], choice.text, place)
    known, others = (row, cells[1:]) if choice.id is None else (id_text(cells[1], choice.id, place), cells[2:])
    more = tuple(_cell(cell, column, place) for cell, column in zip(others, choice.more, strict=True)) if others else ()
    return Record(row, known, text, more)


def id_text(value: Any, field: str, place: _Place) -> str:
    """Return an id as text; ids are text or whole numbers.

    Raises:
        UsageError: any other value.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UsageError(f"{_where(place)}: {field!r} is {shown(value)}; an id is text or a whole number")
    return _unicode(str(value), field, place)


def _json_object(line: str, place: _Place) -> dict[str, Any]:
    import msgspec

    values: Any
    try:
        values = msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):  # it is strict: NaN, say, is a number to Python's own
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{_where(place)}: malformed JSON: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f'{_where(place)}: {shown(values)} is no JSON object; give one a line, e.g. {{"text": "..."}}')
    return values


def _sentence(value: Any, field: str, place: _Place) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{_where(place)}: {field!r} is {shown(value)}; a sentence is text")
    if "\0" in value:
        raise UsageError(f"{_where(place)}: {field!r} holds a NUL character")
    return _unicode(value, field, place)


def _unicode(value: str, field: str, place: _Place) -> str:
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            at = error.start + 1
            raise UsageError(f"{_where(place)}: {field!r} holds half a surrogate pair at character {at}") from None
    return value


def finite_number(text: str) -> float | None:
    """Return the number that a text is; None where it is none, infinite or NaN."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _cell(value: Any, field: str, place: _Place) -> str:
    """Return a cell other than the sentence as text; a label or a score may be a number."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    if value is None and field == OPTIONAL:
        return ""
    if value is None or isinstance(value, float):
        raise UsageError(f"{_where(place)}: {field!r} is empty; give text or a number")
    return _sentence(value, field, place)
