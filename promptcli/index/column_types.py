"""The types of columns, by their cells: numbers, true and false, dates or texts; and which cell
made texts of one.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from promptcli.data.column_forms import ISO_DATE, PLAIN_NUMBER
from promptcli.data.layouts import CELLS
from promptcli.notes import keyword

NUMBER = f"^{PLAIN_NUMBER}$"
#: Numbers in forms that only a whole column of a file tells apart, see ``column_forms``.
_OTHER_NUMBER = r"^-?\d{1,15}([.,]\d{1,15})*$"
_FLAG = r"^(?i:true|false)$"
_DAY = r"^(\d{4}-\d\d-\d\d)$"
_DATE = f"^{ISO_DATE}$"
#: Dates in other orders, or without zeros: 31/5/2024, 5/31/24, 31.5.2024, 2024-5-1.
_OTHER_DATE = r"^(\d{1,2}[-./]\d{1,2}[-./](\d{4}|\d\d)|\d{4}[-./]\d{1,2}[-./]\d{1,2})([T ].*)?$"
#: A year, month or day in a condition, and the rest of its first day.
_REST_OF_DATE = {4: "-01-01", 7: "-01"}
_MOMENT = pa.timestamp("us", "UTC")


def matches(cells: Any, form: str) -> Any:
    """Return for each cell whether it has that form; null if it is empty."""
    return pc.match_substring_regex(cells, form)


def _all(mask: Any) -> bool:
    return bool(pc.all(mask).as_py())  # of those that are not null


def _any(mask: Any) -> bool:
    return bool(pc.any(mask).as_py())


def _numbers(cells: Any) -> Any:
    """Return the cells as float64, or None if one is not a number."""
    if _all(matches(cells, NUMBER)):
        return cells.cast(pa.float64())
    return None


def _flags(cells: Any) -> Any:
    if _all(matches(cells, _FLAG)):
        return pc.equal(pc.utf8_lower(cells), "true")
    return None


def _moments(cells: Any) -> Any:
    """Return moments: a day is its midnight, and a time without a zone is one of UTC."""
    if not _all(matches(cells, _DATE)):
        return None
    texts = pc.replace_substring(cells, ",", ".")
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    texts = pc.replace_substring_regex(texts, _DAY, r"\1 00:00")
    zoned = matches(texts, r"[T ].*(Z|[+-]\d\d:?\d\d)$")
    texts = pc.if_else(zoned, texts, pc.replace_substring_regex(texts, "$", "Z"))
    try:
        return texts.cast(_MOMENT)
    except pa.ArrowInvalid:  # such as the 31st of February
        return None


def moment(text: str) -> Any:
    """Return the beginning of a year, a month, a day or a minute as in a condition.

    None if it is not one of them.
    """
    whole = text + _REST_OF_DATE.get(len(text), "")
    moments = _moments(pa.array([whole], pa.large_string()))
    if moments is None:
        return None
    return moments[0]


@dataclass(frozen=True)
class ColumnType:
    """A type of columns."""

    read: Callable[[Any], Any]  #: the cells as values of the type; None if one of them cannot be
    form: str  #: of a usual cell
    one: str  #: the type of a cell in words, for messages
    wanted: str  #: the values that a condition compares it with, in words, for messages


#: The cells of a column are of the first type that all of them have, and are compared with such
#: values.
TYPES = {
    "numbers": ColumnType(
        _numbers, f"{NUMBER}|{_OTHER_NUMBER}", "a number", "a number, without quotes"
    ),
    "true and false": ColumnType(_flags, _FLAG, "true or false", "true or false, without quotes"),
    "dates": ColumnType(
        _moments, _DATE, "a date such as 2024-05-31", 'a date in quotes, e.g. "2024-05"'
    ),
    "texts": ColumnType(lambda cells: cells, "", "a text", "a text in quotes"),
}


def type_of(cells: Any) -> tuple[str, Any]:
    """Return the type of a column with at least one cell that is not empty, and its cells as values
    of the type.
    """
    read = ((name, kind.read(cells)) for name, kind in TYPES.items())
    return next((name, values) for name, values in read if values is not None)


def column_of(labels: pa.Table, name: str) -> Any:
    """Return the cells of a column of rows as texts; null where they are empty."""
    if name in labels.column_names and name != CELLS:
        return labels.column(name).cast(pa.large_string())
    if CELLS in labels.column_names:
        return pc.map_lookup(labels.column(CELLS), pa.scalar(name), "first")
    return pa.nulls(len(labels), pa.large_string())


def cell_columns(labels: pa.Table) -> list[str]:
    """Return the names of the columns in the cells of rows."""
    chunks = labels.column(CELLS).chunks if CELLS in labels.column_names else []
    return sorted({name for chunk in chunks for name in pc.unique(chunk.keys).to_pylist()})


def column_kinds(labels: pa.Table) -> dict[str, str]:
    """Return the types of the columns in the cells of rows."""
    kinds = dict[str, str]()
    for name in cell_columns(labels):
        cells = column_of(labels, name)
        if cells.null_count < len(cells):
            kinds[name] = type_of(cells)[0]
    return kinds


def odd_columns(labels: pa.Table, names: Collection[str] | None = None) -> dict[str, str]:
    """Return the columns of texts most of whose cells are of another type, each with a line on the
    first that is not.

    ``names`` are the columns to look at; None: all. Dates in other orders than 2024-05-31, or
    without its zeros, are texts, too.
    """
    lines = dict[str, str]()
    for name in cell_columns(labels):
        if names is not None and name not in names:
            continue
        cells = column_of(labels, name)
        if cells.null_count == len(cells) or type_of(cells)[0] != "texts":
            continue
        odd = _odd_cell(cells)
        if odd is not None:
            row, wanted = odd
            cell = cells[row].as_py()
            of_row = labels.column("id")[row].as_py()
            lines[name] = (
                f"column {name!r}: {cell!r:.40} of row {of_row} is not {wanted}; {keyword('where')}"
                " compares its cells as texts"
            )
    return lines


def _odd_cell(cells: Any) -> tuple[int, str] | None:
    """Return the row of the first cell that does not fit the type of most cells, and that type."""
    is_date = matches(cells, _DATE)
    is_other_date = pc.and_(matches(cells, _OTHER_DATE), pc.invert(is_date))
    is_any_date = pc.or_(is_date, is_other_date)
    if _any(is_other_date) and _most(is_any_date):
        fits = is_date if _all(is_any_date) else is_any_date
        return _first_false(fits), TYPES["dates"].one
    for kind in TYPES.values():
        fits = matches(cells, kind.form)
        if _most(fits) and not _all(fits):
            return _first_false(fits), kind.one
    return None


def _most(mask: Any) -> bool:
    count: int = pc.sum(mask).as_py() or 0
    return bool(2 * count > len(mask) - mask.null_count)


def _first_false(mask: Any) -> int:
    """Return the first row of which a mask is false, not null."""
    row: int = pc.index(pc.fill_null(mask, True), False).as_py()
    return row
