"""Cells of a table as what they mean: texts and ids of the chosen columns, and the other columns as
numbers, dates, truth values or texts.
"""

import datetime
import decimal
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

from promptcli.data.csv_options import CsvOptions
from promptcli.data.given import is_unicode
from promptcli.data.layouts import ID, NUMERIC, TEXT, is_optional
from promptcli.data.tables import MISSING, IsoDate
from promptcli.errors import shorten

_ISO = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d{1,3})?")
#: What may have a point between thousands as well as a decimal point.
_DOUBTFUL = re.compile(r"-?[1-9]\d{0,2}\.\d{3}")
_NONE = ("", "nan", "none", "null")


def finite_number(text: str) -> float | None:
    """Return the finite number that a text is, else None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def scale_value(cell: str) -> float | None:
    """Return the place of a cell on a scale: a number, or an ISO date as a year with a fraction;
    else None.

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
    """Reads the cells of the columns of a file, as its options say."""

    def __init__(self, options: CsvOptions, *, are_texts: bool) -> None:
        self._format = options.dateformat
        self._are_texts = are_texts
        self._point = options.decimal_separator
        self._thousands = {"": "", ".": ",", ",": "."}[self._point]
        self._number = _NUMBER
        if self._point:
            point, other = re.escape(self._point), re.escape(self._thousands)
            whole = rf"\d{{1,3}}({other}\d{{3}}){{1,5}}|0|[1-9]\d{{0,17}}"
            self._number = re.compile(rf"-?({whole})({point}\d+)?")
        self._readers: dict[str, Callable[[Any], Any]] = {
            "whole": self.number,
            "decimal": self.number,
            "truth": self.truth,
            "date": self.date,
            "text": cell_text,
        }

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

    def number(self, cell: Any) -> int | float | None:
        """Return the finite number that a cell is, else None."""
        if type(cell) is str:
            if not self._are_texts or not self._number.fullmatch(cell):
                return None
            cell = self._plain(cell)
            if _WHOLE.fullmatch(cell):
                return int(cell)
        elif type(cell) is int:
            return cell if abs(cell) < 1 << 63 else None
        elif not isinstance(cell, float | decimal.Decimal):
            return None
        number = float(cell)
        return number if math.isfinite(number) else None

    def truth(self, cell: Any) -> bool | None:
        """Return the truth value that a cell is, else None."""
        if isinstance(cell, bool):
            return cell
        if self._are_texts and cell.lower() in ("true", "false"):
            return bool(cell.lower() == "true")
        return None

    def date(self, cell: Any) -> str | None:
        """Return the date that a cell is, as ISO writes it (a time with a zone: in UTC), else
        None.
        """
        if isinstance(cell, IsoDate):
            return str(cell)
        if isinstance(cell, datetime.date):
            return _iso(cell)
        if not isinstance(cell, str):
            return None
        try:
            if self._format:
                day = datetime.datetime.strptime(cell, self._format)
            elif _ISO.fullmatch(cell):
                day = datetime.datetime.fromisoformat(cell)
            else:
                return None
        except ValueError:
            return None
        return _iso(day)

    def kinds_of(self, cells: Iterable[Any]) -> set[str]:
        """Return what the cells are that are not empty: whole, decimal, power (as 2e3, without a
        point), doubtful (a number whose point may be one between thousands), truth, date or text.
        """
        return {self._kind(cell) for cell in map(stripped, cells) if cell is not None}

    def _kind(self, cell: Any) -> str:
        number = self.number(cell)
        if number is None:
            if self.truth(cell) is not None:
                return "truth"
            return "text" if self.date(cell) is None else "date"
        if type(number) is int:
            return "whole"
        if type(cell) is not str or self._point:
            return "decimal"
        if _DOUBTFUL.fullmatch(cell):
            return "doubtful"
        return "decimal" if "." in cell else "power"

    def value(self, kind: str, cell: Any) -> Any:
        """Return a cell of a column of a kind as a number, a truth value, or a text; ``ValueError``
        if it is none.

        A date is a text as ISO writes it; an empty cell is None.
        """
        cell = stripped(cell)
        if cell is None:
            return None
        value = self._readers[kind](cell)
        if value is None:
            raise ValueError(
                f"is {shorten(cell)}, not a finite number below 2**63; give it as text"
            )
        return float(value) if kind == "decimal" else value


def common_kind(kinds: set[str]) -> str:
    """Return the kind of a column by those of its cells: one that all have, else text."""
    if "doubtful" in kinds and "decimal" not in kinds:
        return "text"
    if len(kinds) == 1 and "power" not in kinds:
        return next(iter(kinds))
    numbers = {"whole", "decimal", "power", "doubtful"}
    return "decimal" if kinds and kinds <= numbers else "text"


def type_of(kind: str) -> str:
    """Return the type of a column of a kind: number, truth, date or text."""
    return "number" if kind in ("whole", "decimal") else kind


def stripped(cell: Any) -> Any:
    """Return a cell without the space around a text, None if it is empty."""
    if type(cell) is str:
        return cell.strip() or None
    return None if cell is MISSING or is_missing(cell) else cell


def cell_text(cell: Any) -> str:
    """Return a cell as text; lists, objects, true and false as JSON writes them."""
    if isinstance(cell, bool | list | dict):
        text = json.dumps(cell, ensure_ascii=False, default=str)
    else:
        text = str(cell)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def is_missing(value: Any) -> bool:
    """Return whether a sentence is null or NaN, which is blank, like an empty cell of a CSV."""
    return value is None or (isinstance(value, float) and math.isnan(value))


_SENTENCE = (str, "a sentence is text")
#: Role -> the types of its cells, and what messages say of them.
_ALLOWED: dict[str, tuple[Any, str]] = {
    ID: (str | int, "an id is text or a whole number"),
    **dict.fromkeys(NUMERIC, (str | int | float, "a label or a score is text or a number")),
}


def text_of(role: str, value: Any, *, blank: bool = False) -> str:
    """Return a cell of a chosen column as text; ``ValueError`` if it is none.

    With ``blank`` a missing sentence is blank. A hard negative may be missing as pandas writes it,
    too.
    """
    if is_optional(role) and (value is MISSING or str(value).strip().lower() in _NONE):
        return ""
    if type(value) is not str:
        if blank and role == TEXT and is_missing(value):
            return ""
        types, said = _ALLOWED.get(role, _SENTENCE)
        fits = isinstance(value, types) and not isinstance(value, bool)
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            shown = "missing" if value is MISSING else shorten(value)
            raise ValueError(f"is {shown}; {said}")
        value = str(value)
    if "\0" in value:
        raise ValueError("holds a NUL character")
    if not is_unicode(value):
        raise ValueError("holds half a surrogate pair")
    return cast(str, value)


def _iso(day: datetime.date) -> str:
    """Return a day, or a day and a time, as ISO writes it; a time with a zone in UTC."""
    if not isinstance(day, datetime.datetime):
        return day.isoformat()
    if day.tzinfo is not None:
        day = day.astimezone(datetime.UTC).replace(tzinfo=None)
    return day.isoformat(" ") if day.time() != datetime.time() else day.date().isoformat()
