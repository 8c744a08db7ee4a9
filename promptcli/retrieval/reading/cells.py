"""Cells of rows as texts: ids, sentences, labels, scores, and the other columns of a file."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from promptcli.data.given import is_unicode
from promptcli.errors import UsageError, shorten
from promptcli.retrieval.reading.column_forms import ColumnForms, Convert
from promptcli.retrieval.reading.layouts import CELLS, ID, OPTIONAL, TEXT, Columns, is_optional

#: What is in a cell without a value: pandas writes the names.
_MISSING = ("", "nan", "NaT", "<NA>")
#: The other columns of a row that are not empty: their names and cells.
Cells = tuple[tuple[str, str], ...]


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
            if plain and is_plain(cell):
                texts.append(cell)
                continue
            try:
                texts.append(as_text(cell))
            except ValueError as problem:
                raise ValueError(f"{kind} {number}: {in_file!r} {problem}") from None
        checked[column] = texts
    return checked


def is_plain(cell: Any) -> bool:
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
    """Return a sentence; a missing one, null or NaN, is blank, like an empty cell of a CSV."""
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
