"""Rows of files, pipes and URLs as Arrow batches: text, CSV, TSV, JSON lines and Parquet.

Row i is line i.

A batch of sentences has the columns ``text`` and ``id``: the file's own ids as text, or the numbers
of the rows; and ``cells``, the file's other columns, if they are wanted. Batches of another layout
(see ``dialect``) have its columns, all of them text.
"""

import contextlib
import csv
import dataclasses
import functools
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from promptcli.data.bad_lines import IGNORED, REFUSED, BadRows
from promptcli.data.column_forms import ColumnForms, Convert
from promptcli.data.dialect import (
    CELLS,
    ID,
    OPTIONAL,
    PAIRS,
    TEXT,
    ColumnChoice,
    Columns,
    Dialect,
    Tell,
    dialect_of,
    format_of,
    is_doubled,
    is_negative,
    is_optional,
    split_columns,
    unique_names,
)
from promptcli.data.given import is_unicode
from promptcli.data.input_files import (
    LONGEST_LINE,
    STANDARD,
    check_file,
    check_unpacked,
    count_lines,
    has_quotes,
    is_remote,
    open_file,
    open_text,
    state_of,
)
from promptcli.errors import CheckFailedError, PromptcliError, UsageError, counted, one_line
from promptcli.notes import note
from promptcli.storage.typed_documents import shorten

#: Rows of a batch, and characters of its columns, about: a file of very long lines does not fill
#: the memory.
BATCH = 4096
_CHARACTERS = 1 << 20

#: Columns of a table, at most.
_COLUMNS = 10_000
#: Rows of a Parquet file read at once.
_FEW = 64
#: Levels of lists and objects in a row of JSON; Python writes some 960, the fewer the deeper its
#: own calls are.
_DEEPEST = 100
_TOO_DEEP = f"it is nested deeper than {_DEEPEST} levels"
#: What to do with a file of others that unpacks to too much.
_UNPACK = "write it again, uncompressed and without a dictionary"
#: Bytes that a value of Parquet takes at least, whatever its type, also a null: its levels, its
#: place in Arrow's column and in Python's list.
_VALUE = 16

#: What is in a cell without a value: pandas writes the names.
_MISSING = ("", "nan", "NaT", "<NA>")
#: Columns of numbers, whose form the other columns of a file help to tell.
_SCORES = frozenset(("score", "grade"))

#: pyarrow has no types: this is its ``RecordBatch``.
RecordBatch = Any
#: The other columns of a row that are not empty: their names and cells.
Cells = tuple[tuple[str, str], ...]
#: Numbered rows of a file: cell by column; None if the line is empty.
_Numbered = Iterator[tuple[int, Any]]


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
        path: A file or URL in the format of its extension (see ``dialect.FORMATS``), or ``-``; also
            ``FILE:COLUMN``.
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
    with _open(path, fields, stdin, tell=tell, bad=bad) as rows:
        batches = rows.batches
        if skip_blank:
            import pyarrow.compute as pc

            trimmed = (
                (batch, pc.utf8_trim_whitespace(batch.column(TEXT))) for batch in rows.batches
            )
            batches = filter(
                len, (batch.filter(pc.not_equal(texts, "")) for batch, texts in trimmed)
            )
        if TEXT in rows.columns:
            batches = _numbered(batches)
        first = next(batches, None)
        if first is None:
            raise UsageError(f"{_called(path)} is empty; give a file with at least one row")
        yield dataclasses.replace(rows, batches=itertools.chain([first], batches))


def windows(batches: Iterable[RecordBatch], rows: int, most_bytes: int) -> Iterator[RecordBatch]:
    """Yield batches of ``rows`` rows.

    A window is shorter at the end, and once it holds ``most_bytes`` of text.
    """
    import pyarrow as pa

    held = list[RecordBatch]()
    count = 0
    size = 0
    for batch in batches:
        while len(batch):
            held.append(batch.slice(0, rows - count))
            batch = batch.slice(len(held[-1]))
            count = count + len(held[-1])
            size = size + held[-1].nbytes
            if count == rows or size >= most_bytes:
                yield pa.Table.from_batches(held).combine_chunks().to_batches()[0]
                held = []
                count = 0
                size = 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks().to_batches()[0]


# Many files as one run of rows


@dataclass(frozen=True)
class InputFile:
    """A counted file of sentences."""

    path: str  #: as the user wrote it
    size: int
    sha256: str
    rows: int
    stamp: str  #: time of its last change, or a remote store's version
    text: str | None = None  #: column of the sentence; None in plain text
    id: str | None = None  #: column of the id


def count_input(name: str, fields: ColumnChoice, bad: BadRows = REFUSED) -> InputFile:
    """Read a file once, check every row, and count them; an empty file has none."""
    size, stamp = state_of(name)
    with _open(name, fields, bad=bad) as rows:
        count = sum(map(len, rows))
        columns = rows.columns
        digest = rows.sha256()
    if state_of(name) != (size, stamp):
        raise UsageError(f"{name} is being written to; try again when it is complete")
    return InputFile(name, size, digest, count, stamp, columns.get(TEXT) or None, columns.get(ID))


def has_text_ids(files: Sequence[InputFile]) -> bool:
    """Return whether ids are those of a column, else row numbers.

    All files with rows must have ids, or none.
    """
    named = [file for file in files if file.rows and file.id is not None]
    if named and (without := [file.path for file in files if file.rows and file.id is None]):
        raise UsageError(
            f"{named[0].path} has ids (column {named[0].id!r}) and {without[0]} has none; give"
            " both ids"
        )
    return bool(named)


def check_same(files: Sequence[InputFile], names: Sequence[str], began: str) -> list[InputFile]:
    """Return counted files under their present names.

    ``began``, for messages, was begun with them.
    """
    if len(names) != len(files):
        raise UsageError(
            f"{began} was started with {counted(len(files), 'input file')}, not {len(names):,};"
            " give the same files"
        )
    renamed = [
        dataclasses.replace(file, path=name) for file, name in zip(files, names, strict=True)
    ]
    for file in renamed:
        check_unchanged(file, began)
    return renamed


def check_unchanged(file: InputFile, began: str) -> None:
    """Refuse a file that differs from the one counted.

    Its bytes are read only if its size or stamp leave a doubt.
    """
    size, stamp = state_of(file.path)
    if (size, stamp) != (file.size, file.stamp) and (
        size != file.size or _sha256(file.path) != file.sha256
    ):
        hint = "put that one back, or give another folder with -o"
        raise UsageError(f"{file.path} is not the file that {began} was started with; {hint}")


def read_range(
    files: Sequence[InputFile], start: int, stop: int, began: str
) -> Iterator[RecordBatch]:
    """Yield the rows [start, stop) of all files, one after another; ids that are numbers count over
    all files.

    A row that cannot be read is blank: when the files were counted, it was refused or left out.
    """
    first = 0
    for file in files:
        lower = max(start - first, 0)
        upper = min(stop - first, file.rows)
        if lower < upper:
            check_unchanged(file, began)
            with _open(
                file.path,
                ColumnChoice(file.text, file.id),
                start=lower,
                tell=lambda message: None,
                bad=IGNORED,
            ) as rows:
                row = lower
                for batch in _numbered(rows.batches, first + lower):
                    yield batch.slice(0, upper - row)
                    row += len(batch)
                    if row >= upper:
                        break
        first += file.rows


# From the bytes of one file to its batches


@contextlib.contextmanager
def _open(
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
    name, (form, ending) = _called(path), format_of(path)
    if form in ("parquet", "xlsx") and not is_remote(path):
        check_file(Path(path), regular=True)
    with contextlib.nullcontext(stdin) if stdin is not None else open_file(path) as file:
        if form == "xlsx":
            yield _of_workbook(path, file, fields, start, tell, bad)
            return
        if form == "parquet":
            with open_parquet(file, name, hint="give another file", error=UsageError) as parquet:
                header = parquet.schema_arrow.names
                count = parquet.metadata.num_rows
                repeated = next((column for column in header if header.count(column) > 1), None)
                if repeated is not None:
                    raise UsageError(f"{name}: several columns are named {repeated!r}; rename them")
                columns = fields.choose(header, name, tell=tell)
                forms = ColumnForms()
                others = None
                if fields.cells:
                    chosen = set(columns.values())
                    others = [column for column in header if column not in chosen]
                batches = _parquet(parquet, columns, others, name, start, bad, forms)
                digest = functools.partial(_sha256, path)
                yield Rows(str(path), columns, batches, digest, lambda: count, forms)
            return
        text = open_text(file, name, ending, tell, bad)
        if not text.head:
            yield Rows(str(path), {}, iter(()), text.sha256, lambda: 0)
            return
        dialect = dialect_of(path, text, fields, name, tell)
        lines = itertools.islice(text.lines, dialect.skipped, None)
        read_lines = {"text": _text, "table": _table, "jsonl": _jsonl, "array": _array}[
            dialect.format
        ]
        header, rows = read_lines(lines, dialect, name, tell, bad)
        if (
            dialect.format == "jsonl"
            and {"_id", "title", TEXT} <= set(header or ())
            and fields.text in (None, TEXT)
        ):
            tell(f"{name}: a BEIR corpus; title and text are read as one")
            rows = ((number, row and {**row, TEXT: _titled(row)}) for number, row in rows)
        columns = fields.choose(header, name, dialect, tell)
        if (
            header is not None
            and dialect.format != "table"
            and PAIRS[0] in columns
            and not fields.named
        ):
            rows = _with_all_negatives(rows, header, name, bad)
        wanted = itertools.islice(rows, start, None)
        forms = ColumnForms(dialect.delimiter if dialect.format == "table" else None)
        batches = _batches(wanted, columns, fields.cells, name, bad, forms)

        def total() -> int | None:
            # counting would empty a pipe
            local = stdin is None and not is_remote(path) and Path(path).is_file()
            if not local or not text.plain or dialect.format == "array":
                return None
            above = dialect.skipped + (dialect.format == "table" and not dialect.header)
            return max(_count_rows(Path(path), dialect) - above, 0)

        yield Rows(str(path), columns, batches, text.sha256, total, forms)


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
    digest = functools.partial(_sha256, path)
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


def _called(path: str | Path) -> str:
    if str(path) == str(STANDARD):
        return "standard input"
    return str(path)


def _sha256(path: str | Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def _numbered(batches: Iterator[RecordBatch], row: int = 0) -> Iterator[RecordBatch]:
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


# Each reader returns the names of the columns (plain text has none: None) and the rows


def _text(
    lines: Iterator[str], dialect: Dialect, name: str, tell: Tell, bad: BadRows
) -> tuple[None, _Numbered]:
    return None, ((number, {"": _without_end(line)}) for number, line in enumerate(lines, 1))


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _jsonl(
    lines: Iterator[str], dialect: Dialect, name: str, tell: Tell, bad: BadRows
) -> tuple[list[str] | None, _Numbered]:
    rows = _objects(lines, name, bad)
    begin = list[tuple[int, Any]]()
    for number, row in rows:  # the first object has the columns
        begin.append((number, row))
        if row is not None:
            return list(row), itertools.chain(begin, rows)
    return None, iter(begin)


def _objects(lines: Iterator[str], name: str, bad: BadRows) -> _Numbered:
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
            value = json.loads(text)  # to msgspec NaN, say, is no number
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > _DEEPEST and _is_deeper(value, _DEEPEST):
        raise ValueError(_TOO_DEEP)
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


def _with_all_negatives(
    rows: _Numbered, header: Sequence[str], name: str, bad: BadRows
) -> _Numbered:
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
            bad.add(name, "line", number, reason, _as_json(row))
            row = None
        else:
            known |= unknown
        yield number, row


def _array(
    lines: Iterator[str], dialect: Dialect, name: str, tell: Tell, bad: BadRows
) -> tuple[list[str] | None, _Numbered]:
    """Read one JSON array of objects or of sentences; the number of a row is that in the array."""
    held = list[str]()
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size > LONGEST_LINE:
            cure = "make lines of it: jq -c '.[]' IN > OUT.jsonl"
            raise UsageError(f"{name}: a JSON array of more than 64 MiB; {cure}")
    try:
        items = _json_value("".join(held))
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
            bad.add(name, "row", number, reason, _as_json(item))
            item = None
        rows.append(item)
    first = next((row for row in rows if row is not None), None)
    return None if first is None else list(first), enumerate(rows, 1)


def _table(
    lines: Iterator[str], dialect: Dialect, name: str, tell: Tell, bad: BadRows
) -> tuple[list[str], _Numbered]:
    if dialect.quoted:
        rows = _quoted(lines, dialect, name, bad)
    else:
        rows = _plain(lines, dialect, name, tell)
    header = list(dialect.header) or next(rows, (0, []))[1]
    if not header:
        raise UsageError(f"{name} is empty; give a header and at least one row")
    if len(header) > _COLUMNS:
        raise UsageError(f"{name}: {len(header):,} columns; give a table of at most {_COLUMNS:,}")
    # pandas: a nameless index
    header = [column or str(number) for number, column in enumerate(header, 1)]
    return header, _even(rows, header, dialect, name, bad)


def _even(
    rows: Iterator[tuple[int, list[str]]],
    header: list[str],
    dialect: Dialect,
    name: str,
    bad: BadRows,
) -> _Numbered:
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


def _plain(
    lines: Iterator[str], dialect: Dialect, name: str, tell: Tell
) -> Iterator[tuple[int, list[str]]]:
    told = False
    for number, line in enumerate(lines, 1 + dialect.skipped):
        cells = _without_end(line).split(dialect.delimiter)
        if '""' in line and any(map(is_doubled, cells)):  # the first rows had no such cell
            if not told:
                tell(
                    f"{name}: cells with doubled quotes are read without them, first in line"
                    f" {number}"
                )
                told = True
            cells = [cell[1:-1].replace('""', '"') if is_doubled(cell) else cell for cell in cells]
        yield number, cells


def _quoted(
    lines: Iterator[str], dialect: Dialect, name: str, bad: BadRows
) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_LINE)  # the module's own limit is 128 KiB
    held = list[str]()  # the lines of a row
    reader = csv.reader(_kept(lines, held), delimiter=dialect.delimiter, strict=True)
    number = dialect.skipped + 1
    while True:
        held.clear()
        try:
            row = next(reader, None)
        except csv.Error as error:
            bad.add(name, "line", number, f"{error}; {_hint(dialect)}", held[0])
            # the lines after the first, which an open quote has taken, are rows of their own
            lines = itertools.chain(held[1:], lines)
            held = []
            reader = csv.reader(_kept(lines, held), delimiter=dialect.delimiter, strict=True)
            yield number, []
            number += 1
            continue
        if row is None:
            return
        yield number, row
        number += len(held)


def _kept(lines: Iterator[str], held: list[str]) -> Iterator[str]:
    """Yield lines, and keep them."""
    for line in lines:
        held.append(line)
        yield line


def _as_json(row: Any) -> str:
    """Return a row that was read as the line of a file; half a surrogate pair is an escape."""
    text = json.dumps(row, ensure_ascii=False, default=str)
    if is_unicode(text):
        return text
    return json.dumps(row, default=str)


def _hint(dialect: Dialect) -> str:
    if not dialect.quoted:
        return "a text with tabs cannot be in it"
    return f"a text with {dialect.delimiter!r} or quotes is written in double quotes"


def _titled(row: dict[str, Any]) -> Any:
    """Return the title and the text of a document, as BEIR joins them."""
    title = row.get("title")
    text = row.get(TEXT)
    if not isinstance(title, str) or not isinstance(text, str):
        return text
    return " ".join(part for part in (title, text) if part)


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
    groups, row = _groups_from(file, start)
    read = [*set(columns.values()), *(others or ())]
    few_rows = _few_rows(file, name, columns=read, row_groups=groups)
    for batch in windows(few_rows, BATCH, _CHARACTERS):
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
                _readable(columns, each, name, "row", number, bad)
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
        for _ in range(_DEEPEST):
            kinds = [kind.field(place).type for kind in kinds for place in range(kind.num_fields)]
        if kinds:
            raise UsageError(f"{name}: column {column!r}: {_TOO_DEEP}; leave it out")


def _groups_from(file: Any, start: int) -> tuple[list[int], int]:
    """Return the row groups from that of row ``start`` on, and the number of their first row."""
    first_row = 0
    for group in range(file.num_row_groups):
        end = first_row + file.metadata.row_group(group).num_rows
        if end > start:
            return list(range(group, file.num_row_groups)), first_row
        first_row = end
    return [], first_row


def _other_cells(batch: RecordBatch, columns: Sequence[str], name: str) -> list[dict[str, Any]]:
    """Return the cells of each row by their columns."""
    if not columns:
        return [{} for _ in range(len(batch))]
    values = [values_of(batch, column, name) for column in columns]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def _few_rows(file: Any, name: str, **options: Any) -> Iterator[RecordBatch]:
    """Yield few rows at a time, of long texts a single one.

    A dictionary makes many long texts of a small file. The options are those of ``iter_batches``.
    """
    unpacked = 0
    packed = _size_of(file)
    for batch in read_batches(file, _FEW, **options):
        pieces = [batch]
        if batch.nbytes > _CHARACTERS:
            pieces = [batch.slice(row, 1) for row in range(len(batch))]
        for piece in map(_without_dictionaries, pieces):
            unpacked += piece.nbytes
            check_unpacked(name, unpacked, packed, _UNPACK)
            yield piece


def _without_dictionaries(batch: RecordBatch) -> RecordBatch:
    """Return a batch with values where Arrow has their numbers in a dictionary."""
    import pyarrow as pa

    if not any(map(pa.types.is_dictionary, batch.schema.types)):
        return batch
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        columns[name] = column
    return pa.record_batch(columns)


def _batches(
    rows: _Numbered,
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
            bad.add(name, "line", number, reason, _as_json(row))
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
            values = _readable(columns, values, name, "line", number, bad, row)
        numbers.append(number)
        cells.append(values)
        size += sum(map(_characters, values))
        if len(cells) == BATCH or size >= _CHARACTERS:
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


def _readable(
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
    if all(map(_is_plain, values[: len(columns)])):
        return list(values)
    cells = [[value] for value in values[: len(columns)]]
    try:
        column_texts(columns, cells, kind, [number], blank=True)
    except ValueError as error:
        if row is None:
            row = dict(zip(columns.values(), values, strict=False))
        bad.add(name, kind, number, str(error).removeprefix(f"{kind} {number}: "), _as_json(row))
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


@contextlib.contextmanager
def open_parquet(
    source: Path | str | BinaryIO,
    name: Path | str,
    *,
    hint: str,
    error: type[PromptcliError] = CheckFailedError,
    sums: bool = False,
) -> Iterator[Any]:
    """Yield an open ``pyarrow.parquet.ParquetFile``.

    The others are for the refusal of a damaged one.

    With ``sums`` the checksum of each page is compared when it is read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # small pages at a time: without a buffer size a complete column chunk is read at once
        with pq.ParquetFile(source, buffer_size=1 << 20, page_checksum_verification=sums) as file:
            check_unpacked(str(name), _unpacked_size(file.metadata), _size_of(file), _UNPACK)
            yield file
    except (
        pa.ArrowException,
        OSError,
        UnicodeDecodeError,
    ) as problem:  # the last: the name of a column
        raise error(
            f"{name} is not a whole Parquet file ({one_line(problem, 100)}); {hint}"
        ) from None


def _size_of(file: Any) -> int:
    """Return the bytes of an open Parquet file."""
    return sum(column.total_compressed_size for column in _chunks(file.metadata))


def _unpacked_size(metadata: Any) -> int:
    """Return the bytes that a Parquet file has at least when it is read, by its footer."""
    return sum(
        max(column.total_uncompressed_size, column.num_values * _VALUE)
        for column in _chunks(metadata)
    )


def _chunks(metadata: Any) -> Iterator[Any]:
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        yield from map(group.column, range(metadata.num_columns))


def read_batches(file: Any, rows: int, **options: Any) -> Iterator[RecordBatch]:
    """Yield batches of at most ``rows`` rows, all texts valid UTF-8.

    Options are those of ``iter_batches``.
    """
    for batch in file.iter_batches(rows, **options):
        batch.validate(full=True)
        yield batch


def values_of(batch: RecordBatch, column: str, name: Path | str) -> list[Any]:
    """Return a column of a batch as Python's values; ``name`` is the file's."""
    array = batch.column(column)
    try:
        return cast(list[Any], array.to_pylist())
    except (OverflowError, ValueError) as problem:  # such as a date after the year 9999
        why = f"cannot be read ({one_line(problem, 80)}); give text or whole numbers"
        raise UsageError(f"{name}: column {column!r} of {array.type} {why}") from None


def cells_array(rows: Sequence[Any]) -> Any:
    """Return the cells of rows as an Arrow array of maps."""
    import pyarrow as pa

    return pa.array(rows, pa.map_(pa.string(), pa.large_string()))


def cells_of_columns(columns: Any, count: int) -> tuple[Any, ColumnForms]:
    """Return an Arrow array of the cells of ``count`` rows, and the forms by which they were read.

    ``columns`` hold the values of each row by their name: a mapping, or a DataFrame.
    """
    by_name = dict[str, list[Any]]()
    for name in columns:
        values = [getattr(value, "item", lambda value=value: value)() for value in columns[name]]
        if len(values) != count:
            raise UsageError(
                f"column {name!r} has {len(values):,} values for {count:,} sentences; give one for"
                " each"
            )
        by_name[str(name)] = values
    forms = ColumnForms()
    rows = [
        dict(zip(by_name, values, strict=True)) for values in zip(*by_name.values(), strict=True)
    ]
    for row in rows:
        forms.see(row)
    cells = cells_array([_cells_of(row) for row in rows])
    return converted_cells(cells, forms.decide()), forms


def converted_cells(cells: Any, converts: Mapping[str, Convert]) -> Any:
    """Return an Arrow array of the cells of rows with those of some columns converted."""
    if not converts:
        return cells
    rows = list[Cells]()
    for row in cells.to_pylist():
        rows.append(
            tuple(
                (name, converts[name](cell) if name in converts else cell)
                for name, cell in row or ()
            )
        )
    return cells_array(rows)


def column_texts(
    columns: Columns,
    values: Sequence[Sequence[Any]],
    kind: str,
    numbers: Sequence[int],
    *,
    blank: bool = False,
) -> dict[str, list[Any]]:
    """Return columns as texts.

    ``blank``: a missing sentence counts as blank. ValueError with the number of the line or row
    (``kind``) that is wrong.
    """
    checked = {}
    for (column, in_file), cells in zip(columns.items(), values, strict=True):
        as_text: Callable[[Any], Any] = _CELLS.get(
            OPTIONAL if is_optional(column) else column, _sentence_text
        )
        plain = column == ID or as_text is _sentence_text
        if blank and column == TEXT:
            as_text = _text_or_blank
        texts = list[Any]()
        for number, cell in zip(numbers, cells, strict=True):
            if plain and _is_plain(cell):
                texts.append(cell)
                continue
            try:
                texts.append(as_text(cell))
            except ValueError as problem:
                raise ValueError(f"{kind} {number}: {in_file!r} {problem}") from None
        checked[column] = texts
    return checked


def _is_plain(cell: Any) -> bool:
    """Return whether a cell is text that is right without a closer look."""
    return type(cell) is str and cell.isascii() and "\0" not in cell


def id_text(value: Any) -> str:
    """Return an id as text; raise ``ValueError`` unless it is text or a whole number."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"is {shorten(value)}; an id is text or a whole number")
    return _sentence_text(str(value))


def _sentence_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"is {shorten(value)}; a sentence is text")
    if "\0" in value:
        raise ValueError("holds a NUL character")
    if not is_unicode(value):
        raise ValueError("holds half a surrogate pair")
    return value


def _text_or_blank(value: Any) -> str:
    """Return a sentence; a missing one, null or NaN, is blank, as an empty cell of a CSV is."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return _sentence_text(value)


def _optional_text(value: Any) -> str:
    """Return a sentence that may be missing as pandas writes it, too."""
    text = _text_or_blank(value)
    if text.strip().lower() in ("", "nan", "none", "null"):
        return ""
    return text


def _label_text(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("is empty; give text or a number")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"is {shorten(value)}; a label or a score is text or a number")
    return _sentence_text(str(value))


def _score_text(value: Any) -> str:
    """Return a score as text; true and false, as of duplicates, are 1 and 0."""
    word = str(value).lower()
    if word in ("true", "false"):
        return str(int(word == "true"))
    return _label_text(value)


def _cells_of(row: Mapping[str, Any]) -> Cells:
    """Return the cells of a row that are not empty as texts.

    Lists, objects, true and false are written as JSON.
    """
    cells = list[tuple[str, str]]()
    for name, value in row.items():
        if type(value) is str:  # as most are
            text = value.strip()
        elif isinstance(value, (bool, list, dict)):
            text = json.dumps(value, ensure_ascii=False, default=str)
        else:
            text = str(value).strip()
        if value is not None and text not in _MISSING:
            cells.append((_encodable(name), _encodable(text)))
    return tuple(cells)


def _encodable(text: str) -> str:
    """Return a text with ``?`` for halves of surrogate pairs."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()


#: Column of a batch -> how a cell becomes text; the others hold sentences.
_CELLS: dict[str, Callable[[Any], Any]] = {
    ID: id_text,
    CELLS: _cells_of,
    OPTIONAL: _optional_text,
    "label": _label_text,
    "score": _score_text,
    "grade": _score_text,
}
