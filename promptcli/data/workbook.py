"""The rows of an XLSX workbook, read by python-calamine in a separate process with limits of memory
and time: a small file can need any amount of both.
"""

import dataclasses
import datetime
import json
import re
import sys
import zipfile

#: Bytes of memory and seconds of processor time that a workbook may take.
MAX_BYTES = 2 << 30
MAX_SECONDS = 120
#: A cell with a formula and no value.
_FORMULA = re.compile(
    rb"<(?:\w+:)?f\b[^>]*(?:/>|>[^<]*</(?:\w+:)?f>)\s*(?:<(?:\w+:)?v\s*/>)?\s*</(?:\w+:)?c>"
)
#: Bytes of a sheet that are searched at once, and bytes of the longest such cell.
_BYTES_AT_ONCE, _CELL_BYTES = 1 << 20, 1 << 12


@dataclasses.dataclass
class Contents:
    """What a workbook contains."""

    sheets: list[str]
    filled_sheets: list[str]  #: the visible sheets with rows
    formulas: int  #: cells that hold a formula and no value
    merged: int  #: merged ranges of the sheets that are read


def _limit() -> None:
    try:
        import resource
    except ImportError:  # Windows: only the waiting process limits the time
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _value(cell: object) -> object:
    """Return a cell as a JSON value; a date or a time as ``{"date": ISO}``."""
    if isinstance(cell, datetime.datetime):
        is_day = cell.time() == datetime.time()
        return {"date": cell.date().isoformat() if is_day else cell.isoformat(" ")}
    if isinstance(cell, datetime.date):
        return {"date": cell.isoformat()}
    if isinstance(cell, datetime.time | datetime.timedelta):
        return str(cell)
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return int(cell)
    return None if cell == "" else cell


def _empty_formulas(path: str) -> int:
    """Return the number of cells of all sheets that hold a formula and no value."""
    count = 0
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not re.match(r"xl/worksheets/[^/]+\.xml$", name):
                continue
            with archive.open(name) as sheet:
                rest = b""
                while block := sheet.read(_BYTES_AT_ONCE):
                    block = rest + block
                    end = len(block)
                    if end > 2 * _CELL_BYTES:
                        end -= _CELL_BYTES
                    for formula in _FORMULA.finditer(block):
                        count += 1
                        end = max(end, formula.end())
                    rest = block[end:]
    return count


def main(path: str, output: str, choice: str, skip: str) -> None:
    """Write JSON lines: the contents of a workbook, then the sheet, the number and the cells of
    every row that is not empty.

    The ``choice`` is a sheet, ``*`` for all visible sheets with rows, or "" for the only such
    sheet.
    """
    _limit()
    from python_calamine import CalamineWorkbook

    book = CalamineWorkbook.from_path(path)
    sheets = {name: book.get_sheet_by_name(name) for name in book.sheet_names}
    filled_sheets = [
        sheet.name
        for sheet in book.sheets_metadata
        if "Visible" in str(sheet.visible) and sheets[sheet.name].total_height
    ]
    names = [choice] if choice in sheets else filled_sheets if choice in ("*", "") else []
    merged = sum(len(sheets[name].merged_cell_ranges or ()) for name in names)
    contents = Contents(list(sheets), filled_sheets, _empty_formulas(path), merged)
    with open(output, "w", encoding="utf-8") as lines:
        lines.write(f"{json.dumps(dataclasses.asdict(contents))}\n")
        for name in names if choice or len(filled_sheets) == 1 else ():
            for number, row in enumerate(sheets[name].iter_rows(), 1):
                cells = list(map(_value, row))
                if number > int(skip) and any(cell is not None for cell in cells):
                    lines.write(f"{json.dumps([name, number, cells])}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
