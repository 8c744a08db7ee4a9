"""The rows of an XLSX workbook, read by python-calamine in a separate process with limits of memory
and time: a small file can need any amount of both.
"""

import dataclasses
import datetime
import json
import re
import sys
import zipfile

#: Bytes of memory, and seconds of the processor, that a workbook may take.
MEMORY = 2 << 30
SECONDS = 120
_FORMULA = re.compile(
    rb"<(?:\w+:)?f\b[^>]*(?:/>|>[^<]*</(?:\w+:)?f>)\s*(?:<(?:\w+:)?v\s*/>)?\s*</(?:\w+:)?c>"
)
_BYTES_AT_ONCE, _CELL = 1 << 20, 1 << 12


@dataclasses.dataclass
class Contents:
    """What a workbook contains."""

    sheets: list[str]
    filled: list[str]  #: the visible sheets with rows
    formulas: int  #: cells that hold a formula and no value
    merged: int  #: merged ranges of the sheets that are read


def _limit() -> None:
    try:
        import resource
    except ImportError:  # Windows: the time alone is limited, by the process that waits
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
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
        for part in archive.namelist():
            if not re.match(r"xl/worksheets/[^/]+\.xml$", part):
                continue
            with archive.open(part) as sheet:
                rest = b""
                while block := sheet.read(_BYTES_AT_ONCE):
                    block = rest + block
                    end = len(block) - _CELL if len(block) > 2 * _CELL else len(block)
                    found = list(_FORMULA.finditer(block))
                    count += len(found)
                    rest = block[max(end, found[-1].end() if found else 0) :]
    return count


def main(path: str, output: str, wanted: str, skip: str) -> None:
    """Write JSON lines: the contents of a workbook, then the sheet, number and cells of every row
    that is not empty: of the sheet ``wanted``, of all visible sheets with rows (``*``), else of the
    only such sheet.
    """
    _limit()
    from python_calamine import CalamineWorkbook

    book = CalamineWorkbook.from_path(path)
    sheets = {name: book.get_sheet_by_name(name) for name in book.sheet_names}
    filled = [
        each.name
        for each in book.sheets_metadata
        if "Visible" in str(each.visible) and sheets[each.name].total_height
    ]
    names = [wanted] if wanted in sheets else filled if wanted in ("*", "") else []
    merged = sum(len(sheets[name].merged_cell_ranges or ()) for name in names)
    contents = Contents(list(sheets), filled, _empty_formulas(path), merged)
    with open(output, "w", encoding="utf-8") as lines:
        lines.write(f"{json.dumps(vars(contents))}\n")
        for name in names if wanted or len(filled) == 1 else ():
            for number, row in enumerate(sheets[name].iter_rows(), 1):
                cells = list(map(_value, row))
                if number > int(skip) and any(cell is not None for cell in cells):
                    lines.write(f"{json.dumps([name, number, cells])}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
