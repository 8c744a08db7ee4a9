"""Conditions on the columns of rows: the expression after WHERE in SQLite's SQL.

SQLite's authorizer restricts a condition to the columns of rows and to harmless functions; a
progress handler ends a slow condition.
"""

import re
import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from promptcli.data.layouts import ID, TEXT
from promptcli.errors import UsageError
from promptcli.retrieval.store import DAMAGE_CODES, Keys, Store, basic_code, quote_name

TIME_LIMIT_S = 10.0
_MAX_CHARACTERS = 10_000
_STEPS_PER_CHECK = 10_000  # SQLite instructions between two checks of the clock
_FUNCTIONS = frozenset(
    "like lower upper length abs round coalesce ifnull instr substr trim ltrim rtrim min max year"
    " month day starts_with contains".split()
)
_READ_ACTIONS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)
_TABLES = ("rows", "columns")
_DISPLAYED_ID_SQL = "r.id || CASE r.part WHEN 0 THEN '' ELSE '#' || r.part END"
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`")
_QUOTED_TEXT = re.compile(r"'(?!\s*[-+]?\.?\d[\d.eE+-]*\s*')(?:[^']|'')*'")  # not a quoted number
_REFUSED_SQL = re.compile(
    r"\b(select|values|with|collate|glob|regexp|match)\b|;|--|/\*|[?@$\[\x00]", re.I
)
_COMPARISON = r"\s*(?:=|==|!=|<>|<=?|>=?|(?:not\s+)?between|(?:not\s+)?in\s*\()\s*"
_ORDER_COMPARISON = r"\s*(?:<=?|>=?|(?:not\s+)?between)\s*"
_PLACES_IN_DATE = {"year": slice(0, 4), "month": slice(5, 7), "day": slice(8, 10)}
_REST_OF_DATE = {4: "-01-01", 7: "-01"}  # length of a date -> what it lacks
#: For each column type: a pattern of wrong comparison values, and the allowed form.
_WRONG_VALUES = {
    "text": (
        r"[-+]?\.?\d",
        "a text in quotes, or read numbers by the csv options decimal_separator=. or =,",
    ),
    "date": (r"[-+]?\.?\d", 'a date in quotes, e.g. "2024-05"'),
    "number": (r"'(?!\s*[-+]?\.?\d[\d.eE+-]*\s*')", "a number, without quotes"),
    "truth": (r"'", "true or false, without quotes"),
}


class Condition:
    """A condition on the columns of an index, its ids and texts."""

    def __init__(self, text: str) -> None:
        self._text = text
        if len(text) > _MAX_CHARACTERS:
            raise self._error(f"it has {len(text):,} characters, the limit is {_MAX_CHARACTERS:,}")
        self._sql = _QUOTED.sub(_to_literal, text)
        refused = _REFUSED_SQL.search(_QUOTED.sub("''", text))
        if refused is not None:
            raise self._error(f"{refused[0]!r} is not allowed in a condition")

    def _error(self, reason: str) -> UsageError:
        return UsageError(f"{self._text[:80]!r}: {reason}", parameter="where")

    def keys(self, store: Store, check_cancelled: Callable[[], None] = lambda: None) -> Keys:
        """Return the keys of the rows that fulfil the condition, ascending.

        ``check_cancelled`` is called at intervals and may raise.
        """
        columns = _columns(store)
        self._check_types({name: column_type for name, (column_type, _) in columns.items()})
        named_columns = [f"{sql} AS {quote_name(name)}" for name, (_, sql) in columns.items()]
        # a common table expression hides SQLite's rowid; a subquery does not
        query = (
            f"WITH named AS (SELECT c._key AS _key, {', '.join(named_columns)} FROM columns c LEFT"
            f" JOIN rows r ON r.key=c._key) SELECT _key FROM named WHERE (\n{self._sql}\n)"
            " ORDER BY _key"
        )
        end = time.monotonic() + TIME_LIMIT_S
        cancellation: BaseException | None = None

        def should_stop() -> bool:
            nonlocal cancellation
            try:
                check_cancelled()
            except BaseException as error:
                cancellation = error
            return cancellation is not None or time.monotonic() > end

        sql = store.sql
        _add_functions(sql)
        sql.set_authorizer(_authorize)
        sql.set_progress_handler(should_stop, _STEPS_PER_CHECK)
        try:
            rows = sql.execute(query).fetchall()
        except sqlite3.Error as error:
            if cancellation is not None:
                raise cancellation from None
            if time.monotonic() > end:
                raise self._error(f"it takes more than {TIME_LIMIT_S:g} seconds") from None
            if basic_code(error) in DAMAGE_CODES:
                raise
            raise self._error(_explain(str(error), store)) from None
        finally:
            sql.set_progress_handler(None, 0)
            sql.set_authorizer(None)
        return np.array([key for (key,) in rows], np.int64)

    def _check_types(self, types: Mapping[str, str]) -> None:
        """Refuse a comparison with a value of another type; SQLite would accept it."""
        sql = _QUOTED_TEXT.sub("'a'", self._sql)  # a text may contain the name of a column
        for name, column_type in types.items():
            wrong_value, allowed = _WRONG_VALUES[column_type]
            column = rf"(?<![\w`])(?:{re.escape(name)}|`{re.escape(name)}`)(?![\w`])"
            date_comparison = rf"{column}{_ORDER_COMPARISON}'\d{{4}}-\d\d"
            if column_type == "text" and re.search(date_comparison, self._sql, re.I):
                hint = "read it as dates by the csv option dateformat, e.g. dateformat=%d.%m.%Y"
                raise self._error(f"column {name!r} holds text, not dates; {hint}")
            if re.search(f"{column}{_COMPARISON}{wrong_value}", sql, re.I):
                raise self._error(f"column {name!r} holds {column_type}; compare it with {allowed}")


def _columns(store: Store) -> dict[str, tuple[str, str]]:
    """Return the type and the SQL of the columns that a condition may name, with id and text.

    In searched files, ``id`` is the table's own column if it has one.
    """
    types = store.settings.types
    own_columns = {TEXT: ("text", "r.text")}
    if not (ID in types and store.scalar("SELECT source FROM rows LIMIT 1")):
        has_text_ids = "SELECT EXISTS(SELECT 1 FROM rows WHERE typeof(id)='text' OR part)"
        # SQLite compares the result of CAST with a quoted number as numbers
        own_columns[ID] = ("number", "CAST(r.id AS INTEGER)")
        if store.scalar(has_text_ids):
            own_columns[ID] = ("text", _DISPLAYED_ID_SQL)
    columns = {}
    for name, column_type in types.items():
        if name.casefold() not in own_columns:
            collation = " COLLATE dates" if column_type == "date" else ""
            columns[name] = column_type, f"c.{quote_name(name)}{collation}"
    return columns | own_columns


def _to_literal(quoted: "re.Match[str]") -> str:
    """Return a double-quoted text as a single-quoted SQL literal, and others unchanged."""
    text = quoted[0]
    if text[0] != '"':
        return text
    content = text[1:-1].replace('""', '"').replace("'", "''")
    return f"'{content}'"


def _authorize(action: int, first: Any, second: Any, *_: Any) -> int:
    """Allow reading our tables and calling harmless functions."""
    is_allowed = action in _READ_ACTIONS
    if action == sqlite3.SQLITE_READ:
        is_allowed = first in _TABLES
    elif action == sqlite3.SQLITE_FUNCTION:
        is_allowed = str(second).lower() in _FUNCTIONS
    return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY


def _add_functions(sql: sqlite3.Connection) -> None:
    sql.create_collation("dates", _compare_dates)
    for name, place in _PLACES_IN_DATE.items():

        def number_in_date(date: Any, place: slice = place) -> int | None:
            text = str(date)[place]
            return int(text) if text.isdecimal() else None

        sql.create_function(name, 1, number_in_date, deterministic=True)

    def starts_with(text: Any, prefix: Any) -> bool | None:
        return None if text is None else str(text).startswith(str(prefix))

    def contains(text: Any, substring: Any) -> bool | None:
        return None if text is None else str(substring) in str(text)

    sql.create_function("starts_with", 2, starts_with, deterministic=True)
    sql.create_function("contains", 2, contains, deterministic=True)


def _compare_dates(first: str, second: str) -> int:
    """Compare dates; a year or a month means its first day."""
    first += _REST_OF_DATE.get(len(first), "")
    second += _REST_OF_DATE.get(len(second), "")
    return (first > second) - (first < second)


def _explain(error: str, store: Store) -> str:
    """Return SQLite's message with what the user may write instead."""
    if error.startswith("no such column"):
        names = ", ".join(dict.fromkeys([ID, TEXT, *store.settings.types]))
        return f"{error}; columns: {names[:400]}; texts are in quotes"
    if "prohibited" in error or "not authorized" in error:
        return "a condition may only read columns and call a few functions"
    return error
