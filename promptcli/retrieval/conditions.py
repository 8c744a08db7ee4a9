"""Conditions on the columns of rows: the expression after WHERE in SQLite's SQL.

SQLite's authorizer restricts a condition to the columns of rows and harmless functions; its
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
from promptcli.retrieval.store import Keys, Store, quoted

SECONDS = 10.0  #: time limit of a condition
_LONGEST_CONDITION = 10_000  # characters of a condition
_STEPS = 10_000  # SQLite instructions between two checks of the clock
_FUNCTIONS = frozenset(
    "like lower upper length abs round coalesce ifnull instr substr trim ltrim rtrim min max year"
    " month day starts_with contains".split()
)
_READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)
_TABLES = ("rows", "columns")
_TEXT_ID = "r.id || CASE r.part WHEN 0 THEN '' ELSE '#' || r.part END"
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`")
_TEXT = re.compile(r"'(?!\s*[-+]?\.?\d[\d.eE+-]*\s*')(?:[^']|'')*'")  # not a quoted number
_OTHER_SQL = re.compile(
    r"\b(select|values|with|collate|glob|regexp|match)\b|;|--|/\*|[?@$\[\x00]", re.I
)
_OPERATOR = r"\s*(?:=|==|!=|<>|<=?|>=?|(?:not\s+)?between|(?:not\s+)?in\s*\()\s*"
_ORDER = r"\s*(?:<=?|>=?|(?:not\s+)?between)\s*"
_REST_OF_DATE = {4: "-01-01", 7: "-01"}
#: For each column type: a pattern of wrong comparison values, and the allowed form.
_WRONG = {
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
        if len(text) > _LONGEST_CONDITION:
            raise self._refusal(
                f"it has {len(text):,} characters; give at most {_LONGEST_CONDITION:,}"
            )
        self._sql = _QUOTED.sub(_literal, text)
        other = _OTHER_SQL.search(_QUOTED.sub("''", text))
        if other is not None:
            raise self._refusal(f"{other[0]!r} is not allowed in a condition")

    def _refusal(self, reason: str) -> UsageError:
        return UsageError(f"{self._text[:80]!r}: {reason}", parameter="where")

    def keys(self, store: Store, check_cancelled: Callable[[], None] = lambda: None) -> Keys:
        """Return the keys of the rows that fulfil the condition, ascending.

        ``check_cancelled`` is called at intervals and may raise.
        """
        columns = _columns(store)
        self._check_types({name: kind for name, (kind, _) in columns.items()})
        shown = [f"{sql} AS {quoted(name)}" for name, (_, sql) in columns.items()]
        # from a common table expression, since SQLite also finds a rowid in a subquery
        query = (
            f"WITH named AS (SELECT c._key AS _key, {', '.join(shown)} FROM columns c LEFT JOIN"
            f" rows r ON r.key=c._key) SELECT _key FROM named WHERE (\n{self._sql}\n) ORDER BY _key"
        )
        end = time.monotonic() + SECONDS
        stopped: list[BaseException] = []

        def progress() -> int:
            try:
                check_cancelled()
            except BaseException as error:
                stopped.append(error)
            return bool(stopped) or time.monotonic() > end

        sql = store.sql
        _add_functions(sql)
        sql.set_authorizer(_allows)
        sql.set_progress_handler(progress, _STEPS)
        try:
            rows = sql.execute(query).fetchall()
        except sqlite3.Error as error:
            if stopped:
                raise stopped[0] from None
            if time.monotonic() > end:
                raise self._refusal(f"it takes more than {SECONDS:g} seconds") from None
            raise self._refusal(_reason(str(error), store)) from None
        finally:
            sql.set_progress_handler(None, 0)
            sql.set_authorizer(None)
        return np.array([key for (key,) in rows], np.int64)

    def _check_types(self, types: Mapping[str, str]) -> None:
        """Refuse a comparison with a value of another type, which SQLite would silently accept."""
        shape = _TEXT.sub("'a'", self._sql)  # no column is named inside a text
        for name, kind in types.items():
            form, wanted = _WRONG[kind]
            column = rf"(?<![\w`])(?:{re.escape(name)}|`{re.escape(name)}`)(?![\w`])"
            if kind == "text" and re.search(rf"{column}{_ORDER}'\d{{4}}-\d\d", self._sql, re.I):
                hint = "read it as dates by the csv option dateformat, e.g. dateformat=%d.%m.%Y"
                raise self._refusal(f"column {name!r} holds text, not dates; {hint}")
            if re.search(f"{column}{_OPERATOR}{form}", shape, re.I):
                raise self._refusal(f"column {name!r} holds {kind}; compare it with {wanted}")


def _columns(store: Store) -> dict[str, tuple[str, str]]:
    """Return the type and the SQL of the columns that a condition may name, with id and text.

    In searched files, ``id`` is the table's column if it has one.
    """
    own = {TEXT: ("text", "r.text")}
    if not (ID in store.types and store.scalar("SELECT source FROM rows LIMIT 1")):
        texts = "SELECT EXISTS(SELECT 1 FROM rows WHERE typeof(id)='text' OR part)"
        # an integer also equals a quoted number
        number = ("number", "CAST(r.id AS INTEGER)")
        own[ID] = ("text", _TEXT_ID) if store.scalar(texts) else number
    columns = {}
    for name, kind in store.types.items():
        if name.casefold() not in own:
            dates = " COLLATE dates" if kind == "date" else ""
            columns[name] = kind, f"c.{quoted(name)}{dates}"
    return columns | own


def _literal(quoted: "re.Match[str]") -> str:
    """Return a double-quoted text as a single-quoted SQL literal."""
    text = quoted[0]
    if text[0] != '"':
        return text
    inner = text[1:-1].replace('""', '"').replace("'", "''")
    return f"'{inner}'"


def _allows(action: int, first: Any, second: Any, *_: Any) -> int:
    allowed = action in _READS
    if action == sqlite3.SQLITE_READ:
        allowed = first in _TABLES
    elif action == sqlite3.SQLITE_FUNCTION:
        allowed = str(second).lower() in _FUNCTIONS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _add_functions(sql: sqlite3.Connection) -> None:
    sql.create_collation("dates", _compare_dates)
    for name, start, stop in (("year", 0, 4), ("month", 5, 7), ("day", 8, 10)):

        def part(date: Any, start: int = start, stop: int = stop) -> int | None:
            text = str(date)[start:stop]
            return int(text) if text.isdecimal() else None

        sql.create_function(name, 1, part, deterministic=True)
    sql.create_function("starts_with", 2, _starts_with, deterministic=True)
    sql.create_function("contains", 2, _contains, deterministic=True)


def _starts_with(text: Any, begin: Any) -> bool | None:
    return None if text is None else str(text).startswith(str(begin))


def _contains(text: Any, part: Any) -> bool | None:
    return None if text is None else str(part) in str(text)


def _compare_dates(one: str, other: str) -> int:
    """Compare dates; a year or a month means its beginning."""
    first = one + _REST_OF_DATE.get(len(one), "")
    second = other + _REST_OF_DATE.get(len(other), "")
    return (first > second) - (first < second)


def _reason(error: str, store: Store) -> str:
    if error.startswith("no such column"):
        names = ", ".join(dict.fromkeys([ID, TEXT, *store.types]))
        return f"{error}; columns: {names[:400]}; texts are in quotes"
    if "prohibited" in error or "not authorized" in error:
        return "a condition may only read columns and call a few functions"
    return error
