"""Sheets of Excel's workbooks (.xlsx) as tables: the types of their cells are those of the file."""

import contextlib
import datetime
import functools
import itertools
import re
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from promptcli.errors import UsageError, did_you_mean, one_line, require
from promptcli.retrieval.reading.column_forms import ColumnForms
from promptcli.retrieval.reading.input_files import check_unpacked
from promptcli.retrieval.reading.layouts import unique_names
from promptcli.retrieval.reading.row_batches import OpenFile, Rows, batches_of, file_sha256

#: Bytes that a workbook may unpack to, and cells of a sheet, empty ones between others included,
#: since the library makes a place for each.
_UNPACKED = 1 << 30
_CELLS = 50_000_000
_AS_CSV = "save the sheet as CSV"
#: The place of a cell, and the beginning of a tag that a block of XML may cut.
_PLACE = re.compile(rb'<(?:\w+:)?c [^>]*?\br="([A-Z]{1,3})(\d{1,7})"')
_BLOCK = 1 << 20
_TAG = 200


class Workbook:
    """An open workbook; ``name`` is its file's, for messages."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        require("python_calamine", extra="xlsx")
        from python_calamine import CalamineError, CalamineWorkbook

        self._name = name
        try:
            _check_size(file, name)
            file.seek(0)
            self._book = CalamineWorkbook.from_filelike(file)
        except (CalamineError, zipfile.BadZipFile, OSError, ValueError, EOFError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                f"{name} is not a whole XLSX file ({one_line(error, 100)}); {_AS_CSV}"
            ) from None
        self.sheets = list(self._book.sheet_names)

    def rows(self, sheet: str | None) -> Iterator[list[Any]]:
        """Yield the rows of a sheet, by its name; None: of the first."""
        from python_calamine import CalamineError

        if not self.sheets:
            raise UsageError(f"{self._name} has no sheet; {_AS_CSV}")
        if sheet is not None and sheet not in self.sheets:
            listed = ", ".join(self.sheets)
            near = did_you_mean(sheet, self.sheets)
            raise UsageError(f"{self._name}: no sheet {sheet!r}; sheets: {listed}{near}")
        try:
            for row in self._book.get_sheet_by_name(sheet or self.sheets[0]).iter_rows():
                yield [_value(cell) for cell in row]
        except (CalamineError, ValueError) as error:
            why = one_line(error, 100)
            raise UsageError(f"{self._name}: a sheet cannot be read ({why}); {_AS_CSV}") from None


@contextlib.contextmanager
def open_workbook_rows(file: OpenFile, start: int) -> Iterator[Rows]:
    """Yield the rows of a sheet, whose first row that is not empty is its header."""
    name = file.name
    workbook = Workbook(file.file, name)
    sheet, fields = file.fields.of_sheet(workbook.sheets)
    rows = workbook.rows(sheet)
    first = next((row for row in rows if any(cell is not None for cell in row)), None)
    digest = functools.partial(file_sha256, file.path)
    if first is None:
        yield Rows(name, {}, iter(()), digest, lambda: 0)
        return
    header = [
        str(number) if cell is None else str(cell).strip() for number, cell in enumerate(first, 1)
    ]
    names = unique_names(header)
    columns = fields.choose(header, name, tell=file.tell)
    numbered = enumerate(map(functools.partial(_object, names), rows), 1)
    forms = ColumnForms()
    wanted = itertools.islice(numbered, start, None)
    batches = batches_of(wanted, columns, fields.cells, name, file.bad, forms)
    yield Rows(name, columns, batches, digest, lambda: None, forms)


def _object(names: Sequence[str], cells: Sequence[Any]) -> dict[str, Any] | None:
    """Return the cells of a row by their columns; None if all are empty."""
    if all(cell is None for cell in cells):
        return None
    return dict(zip(names, cells, strict=False))


def _check_size(file: BinaryIO, name: str) -> None:
    """Refuse a workbook that would fill the memory."""
    with zipfile.ZipFile(file) as archive:
        parts = archive.infolist()
        unpacked = sum(part.file_size for part in parts)
        check_unpacked(name, unpacked, sum(part.compress_size for part in parts), _AS_CSV)
        if unpacked > _UNPACKED:
            raise UsageError(f"{name} unpacks to {unpacked >> 20:,} MiB; {_AS_CSV}")
        for part in parts:
            if not part.filename.startswith("xl/worksheets/"):
                continue
            with archive.open(part) as sheet:
                if _area(sheet) > _CELLS:
                    raise UsageError(f"{name}: a sheet has cells too far apart; {_AS_CSV}")


def _area(sheet: Any) -> int:
    """Return the number of cells of a sheet up to the last row and column, from its XML."""
    last_row = last_column = 0
    rest = b""
    while block := sheet.read(_BLOCK):
        for letters, row in _PLACE.findall(rest + block):
            last_row = max(last_row, int(row))
            column = 0
            for letter in letters:
                column = 26 * column + letter - 64
            last_column = max(last_column, column)
        rest = block[-_TAG:]
    return last_row * last_column


def _value(cell: Any) -> Any:
    """Return a cell as JSON would have it; a day, or a time of a day, as ISO writes it."""
    if isinstance(cell, datetime.datetime):
        if cell.time() == datetime.time():
            return cell.date().isoformat()
        return cell.isoformat(" ")
    if isinstance(cell, datetime.date | datetime.time):
        return cell.isoformat()
    if isinstance(cell, datetime.timedelta):
        return str(cell)
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return int(cell)
    return None if cell == "" else cell
