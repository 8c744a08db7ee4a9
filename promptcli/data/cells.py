"""Cells of a table as what they mean: texts and ids of the chosen columns, and the other columns as
numbers, dates, truth values or texts.
"""

import datetime
import decimal
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from promptcli.data.csv_options import CsvOptions
from promptcli.data.given import is_unicode
from promptcli.data.layouts import ID, TEXT, is_optional
from promptcli.data.tables import MISSING, IsoDate, Table
from promptcli.errors import shorten

_ISO = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d{1,3})?")
#: What may have a point between thousands as well as a decimal point.
_DOUBTFUL = re.compile(r"-?[1-9]\d{0,2}\.\d{3}")


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

    def _plain(self, text: str) -> str:
        """Return a number as Python writes it."""
        return text.replace(self._thousands, "").replace(self._point or ".", ".")

    def score(self, cell: Any) -> str:
        """Return a cell of a column of scores as text."""
        word = str(cell).strip()
        if word.lower() in ("true", "false"):
            return str(int(word.lower() == "true"))
        return (
            self._plain(word) if self._point and self._number.fullmatch(word) else label_text(cell)
        )

    def number(self, cell: Any) -> int | float | None:
        """Return the number that a cell is, else None."""
        if type(cell) is str:
            if self._are_texts and self._number.fullmatch(cell):
                text = self._plain(cell)
                return int(text) if _WHOLE.fullmatch(text) else float(text)
            return None
        if type(cell) is int:
            return cell if abs(cell) < 1 << 63 else None
        return float(cell) if isinstance(cell, float | decimal.Decimal) else None

    def is_number(self, cell: Any) -> bool:
        return self.number(cell) is not None

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

    def columns(self, table: Table, names: Sequence[str], blocks: Iterable[Any]) -> "list[Column]":
        """Return what columns hold, by all their cells: a type that each cell has, else text."""
        readers = {"number": self.number, "truth": self.truth, "date": self.date}
        if table.types:
            columns = [(name, table.types[name]) for name in names]
            return [
                Column(name, kind, readers.get(kind, cell_text), name in table.whole)
                for name, kind in columns
            ]
        seen = [_Seen(list(readers)) for _ in names]
        for _, rows in blocks:
            for column, cells in zip(seen, zip(*rows, strict=True), strict=True):
                filled = [cell for cell in map(stripped, cells) if cell is not None]
                for kind in list(column.kinds):
                    values = list(map(readers[kind], filled))
                    if None in values:
                        column.kinds.remove(kind)
                    elif kind == "number":
                        column.types.update(map(type, values))
                        pointed = (cell for cell in filled if type(cell) is str and "." in cell)
                        column.doubts.update(
                            _DOUBTFUL.fullmatch(cell) is not None for cell in pointed
                        )
        found = list[Column]()
        for name, column in zip(names, seen, strict=True):
            # all are left where no cell has a value
            kind = column.kinds[0] if 0 < len(column.kinds) < len(readers) else "text"
            if kind == "number" and not self._point and column.doubts == {True}:
                kind = "text"
            found.append(Column(name, kind, readers.get(kind, cell_text), column.types <= {int}))
        return found


@dataclass
class _Seen:
    """What the cells of a column have shown so far."""

    kinds: list[str]  #: the types that all have
    types: set[type] = field(default_factory=set)  #: of the numbers
    #: whether a point is one between thousands as well as a decimal point
    doubts: set[bool] = field(default_factory=set)


@dataclass(frozen=True)
class Column:
    """A column of a file that is kept beside the sentences."""

    name: str
    kind: str  #: number, date, truth or text
    read: Callable[[Any], Any]
    is_whole: bool  #: whether a number has no decimals

    def array(self, cells: Sequence[Any]) -> Any:
        """Return cells as an Arrow array: whole or floating-point numbers, truth values, or texts;
        dates are texts as ISO writes them; an empty cell is null.
        """
        import pyarrow as pa

        types = {"truth": pa.bool_(), "number": pa.int64() if self.is_whole else pa.float64()}
        values = [None if cell is None else self.read(cell) for cell in map(stripped, cells)]
        return pa.array(values, types.get(self.kind, pa.string()))


def stripped(cell: Any) -> Any:
    """Return a cell without the space around a text, None if it is empty."""
    if type(cell) is str:
        return cell.strip() or None
    if cell is MISSING or (isinstance(cell, float) and math.isnan(cell)):
        return None
    return cell


def cell_text(cell: Any) -> str:
    """Return a cell as text; lists, objects, true and false as JSON writes them."""
    if isinstance(cell, bool | list | dict):
        text = json.dumps(cell, ensure_ascii=False, default=str)
    else:
        text = str(cell)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def id_text(value: Any) -> str:
    """Return an id as text; ``ValueError`` unless it is text or a whole number."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"is {_shown(value)}; an id is text or a whole number")
    return _sentence_text(str(value))


def _shown(value: Any) -> str:
    return "missing" if value is MISSING else shorten(value)


def _sentence_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"is {_shown(value)}; a sentence is text")
    if "\0" in value:
        raise ValueError("holds a NUL character")
    if not is_unicode(value):
        raise ValueError("holds half a surrogate pair")
    return value


def is_missing(value: Any) -> bool:
    """Return whether a sentence is null or NaN, which is blank, like an empty cell of a CSV."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _text_or_blank(value: Any) -> str:
    return "" if is_missing(value) else _sentence_text(value)


def _optional_text(value: Any) -> str:
    """Return a sentence that may be missing as pandas writes it, too."""
    text = "" if value is MISSING else _text_or_blank(value)
    return "" if text.strip().lower() in ("", "nan", "none", "null") else text


def label_text(value: Any) -> str:
    """Return a label or a score as text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, str) and not (is_number and math.isfinite(value)):
        raise ValueError(f"is {_shown(value)}; a label or a score is text or a number")
    return _sentence_text(str(value))


def reader_of(role: str, cells: CellReader, *, blank: bool = True) -> Callable[[Any], str]:
    """Return how a cell of a chosen column becomes text; ``ValueError`` if it cannot.

    With ``blank`` a missing sentence is blank.
    """
    if is_optional(role):
        return _optional_text
    readers = {
        TEXT: _text_or_blank if blank else _sentence_text,
        ID: id_text,
        "label": label_text,
        "score": cells.score,
        "grade": cells.score,
    }
    return readers.get(role, _sentence_text)


def _iso(day: datetime.date) -> str:
    """Return a day, or a day and a time, as ISO writes it; a time with a zone in UTC."""
    if not isinstance(day, datetime.datetime):
        return day.isoformat()
    if day.tzinfo is not None:
        day = day.astimezone(datetime.UTC).replace(tzinfo=None)
    return day.isoformat(" ") if day.time() != datetime.time() else day.date().isoformat()
