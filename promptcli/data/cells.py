"""The values of cells: texts and ids in the columns of a layout; numbers, dates, truth values and
texts in the other columns.
"""

import datetime
import decimal
import json
import math
import re
from collections.abc import Iterable
from typing import Any, cast

from promptcli.data.arguments import is_unicode
from promptcli.data.csv_options import CsvOptions
from promptcli.data.layouts import ID, NUMERIC, TEXT, is_optional
from promptcli.data.tables import MISSING, IsoDate
from promptcli.errors import short_repr

_ISO = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d{1,3})?")
#: A number whose point may separate thousands or decimals.
_DOUBTFUL = re.compile(r"-?[1-9]\d{0,2}\.\d{3}")
#: Cells of an absent hard negative.
_ABSENT = ("", "nan", "none", "null")


def finite_number(text: str) -> float | None:
    """Return a text as a finite number; None for any other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def scale_value(cell: str) -> float | None:
    """Return a cell as a number, and an ISO date as a fractional year; None for another cell.

    Example:
        >>> scale_value("2024-07-02"), scale_value("1.5"), scale_value("a")
        (2024.5, 1.5, None)
    """
    number = finite_number(cell)
    if number is not None or not _ISO.fullmatch(cell):
        return number
    try:
        day = datetime.date.fromisoformat(cell[:10])
    except ValueError:
        return None
    days = datetime.date(day.year, 12, 31).timetuple().tm_yday
    return day.year + (day.timetuple().tm_yday - 1) / days


class CellReader:
    """Reads the cells of a file that is written with certain options."""

    def __init__(self, options: CsvOptions, *, are_texts: bool) -> None:
        self._format = options.dateformat
        self._are_texts = are_texts
        self._point = options.decimal_separator
        self._thousands = {"": "", ".": ",", ",": "."}[self._point]
        self._number = _NUMBER
        if self._point:
            point, thousands = re.escape(self._point), re.escape(self._thousands)
            integer = rf"\d{{1,3}}({thousands}\d{{3}}){{1,5}}|0|[1-9]\d{{0,17}}"
            self._number = re.compile(rf"-?({integer})({point}\d+)?")

    def _plain(self, text: str) -> str:
        """Return a number as Python writes it."""
        return text.replace(self._thousands, "").replace(self._point or ".", ".")

    def score(self, cell: Any) -> str:
        """Return a cell of a column of scores as text."""
        word = str(cell).strip()
        if word.lower() in ("true", "false"):
            return str(int(word.lower() == "true"))
        if self._point and self._number.fullmatch(word):
            return self._plain(word)
        return text_of("score", cell)

    def kinds(self, cells: Iterable[Any]) -> set[str]:
        """Return the kinds of the cells that are not empty; ``type_of`` derives the type of their
        column.

        The kinds are whole, decimal, thousands (a number whose point may separate thousands),
        truth, date and text.
        """
        if self._are_texts:
            cells = set(cells)  # the cells of many columns repeat
        filled = (cell for cell in map(_stripped, cells) if cell is not None)
        return {self._meaning(cell)[0] for cell in filled}

    def _meaning(self, cell: Any) -> tuple[str, Any]:
        """Return the kind and the value of a cell that is not empty.

        A number is finite, and a whole number is below 2**63. A date is an ISO 8601 text; a time
        with a zone is in UTC.
        """
        if isinstance(cell, str):
            return self._meaning_of_text(cell)
        if isinstance(cell, bool):
            return "truth", cell
        if isinstance(cell, int) and abs(cell) < 1 << 63:
            return "whole", cell
        if isinstance(cell, float | decimal.Decimal) and math.isfinite(cell):
            return "decimal", float(cell)
        if isinstance(cell, datetime.date):
            return "date", _iso(cell)
        return "text", cell_text(cell)

    def _meaning_of_text(self, cell: str) -> tuple[str, Any]:
        if self._are_texts and self._number.fullmatch(cell):
            plain = self._plain(cell)
            if _WHOLE.fullmatch(plain):
                return "whole", int(plain)
            number = float(plain)
            if not math.isfinite(number):
                return "text", cell
            if self._point:
                return "decimal", number
            if _DOUBTFUL.fullmatch(cell):
                return "thousands", number
            return ("decimal" if "." in cell else "whole"), number
        if self._are_texts and cell.lower() in ("true", "false"):
            return "truth", cell.lower() == "true"
        if isinstance(cell, IsoDate):
            return "date", str(cell)
        try:
            if self._format:
                return "date", _iso(datetime.datetime.strptime(cell, self._format))
            if _ISO.fullmatch(cell):
                return "date", _iso(datetime.datetime.fromisoformat(cell))
        except ValueError:  # such as the 31st of February
            pass
        return "text", cell_text(cell)

    def value(self, kind: str, cell: Any) -> Any:
        """Return a cell as a number, a truth value or a text, by the type of its column.

        A date is an ISO 8601 text, and an empty cell is None. A cell of another type raises
        ``ValueError``.
        """
        cell = _stripped(cell)
        if cell is None:
            return None
        if kind == "text":
            return cell_text(cell)
        kind, value = self._meaning(cell)
        if kind == "text":
            raise ValueError(
                f"is {short_repr(cell)}, not a finite number below 2**63; write null in its place,"
                " or cast the column to text"
            )
        return value


def type_of(kinds: set[str]) -> str:
    """Return the type of a column by the kinds of its cells: number, truth, date or text.

    A column of different types is text. A column of numbers is text, too, if their points may
    separate thousands and no number has a clear decimal point.
    """
    if kinds and kinds <= {"whole", "decimal", "thousands"}:
        return "number" if "decimal" in kinds or "thousands" not in kinds else "text"
    return next(iter(kinds)) if len(kinds) == 1 else "text"


def _stripped(cell: Any) -> Any:
    """Return a cell without the space around a text; None if it is empty."""
    if type(cell) is str:
        return cell.strip() or None
    return None if cell is MISSING or is_missing(cell) else cell


def cell_text(cell: Any) -> str:
    """Return a cell as text; lists, objects and truth values are JSON."""
    if isinstance(cell, bool | list | dict):
        text = json.dumps(cell, ensure_ascii=False, default=str)
    else:
        text = str(cell)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def is_missing(value: Any) -> bool:
    """Return whether a cell is null or NaN; such a cell counts as empty."""
    return value is None or (isinstance(value, float) and math.isnan(value))


_SENTENCE = (str, "a sentence is text")
#: Role -> the types of its cells, and their description in messages.
_ALLOWED: dict[str, tuple[Any, str]] = {
    ID: (str | int, "an id is text or a whole number"),
    **dict.fromkeys(NUMERIC, (str | int | float, "a label or a score is text or a number")),
}


def text_of(role: str, value: Any, *, blank: bool = False) -> str:
    """Return a cell of a layout's column as text; a cell of a wrong type raises ``ValueError``.

    With ``blank`` a missing sentence is blank. A missing hard negative is always blank; pandas
    writes it as NaN.
    """
    if role != TEXT and is_optional(role):
        if value is MISSING or str(value).strip().lower() in _ABSENT:
            return ""
    if type(value) is not str:
        if blank and role == TEXT and is_missing(value):
            return ""
        types, description = _ALLOWED.get(role, _SENTENCE)
        fits = isinstance(value, types) and not isinstance(value, bool)
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            value_text = "missing" if value is MISSING else short_repr(value)
            raise ValueError(f"is {value_text}; {description}")
        value = str(value)
    if "\0" in value:
        raise ValueError("holds a NUL character")
    if not is_unicode(value):
        raise ValueError("holds half a surrogate pair")
    return cast(str, value)


def _iso(day: datetime.date) -> str:
    """Return a date, or a date with its time, in ISO 8601; a time with a zone becomes UTC."""
    if not isinstance(day, datetime.datetime):
        return day.isoformat()
    if day.tzinfo is not None:
        day = day.astimezone(datetime.UTC).replace(tzinfo=None)
    return day.isoformat(" ") if day.time() != datetime.time() else day.date().isoformat()
