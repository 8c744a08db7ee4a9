"""The options that describe a table whose file does not; their names are DuckDB's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from promptcli.errors import UsageError, unknown_name_error


@dataclass(frozen=True)
class CsvOptions:
    """The options of a table; an empty value means that the option was not given."""

    delim: str = ""  #: between two cells
    quote: str = '"'  #: around a cell; empty: quotes are text
    header: str = ""  #: ``true`` or ``false``: whether the first line has the names of the columns
    skip: int = 0  #: number of lines above the names
    encoding: str = ""  #: default: UTF-8
    decimal_separator: str = ""  #: ``.`` or ``,``; the other sign may separate thousands
    dateformat: str = ""  #: of dates other than 2024-12-31, e.g. ``%d.%m.%Y``
    sheets: str = ""  #: ``all``: every sheet of a workbook

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> "CsvOptions":
        """Return the options of a mapping.

        Raises:
            UsageError: An unknown name, or a value that is not allowed.
        """
        values = {name: str(value) for name, value in (given or {}).items()}
        names = [item.name for item in fields(cls)]
        for name in values:
            if name not in names:
                raise unknown_name_error("csv option", name, names)
        patterns = {
            "delim": (r"[^\w\s\"]|\t|\\t|tab", "one character, or tab"),
            "quote": (r"['\"]?", "one of the two quotation marks, or empty"),
            "header": (r"(?i)true|false", "true or false"),
            "skip": (r"\d{1,6}", "a whole number"),
            "decimal_separator": ("[.,]", "a point or a comma"),
            "dateformat": (r".*%.*", "a form with %, such as %d.%m.%Y"),
            "sheets": ("all", "all"),
        }
        for name, (pattern, allowed) in patterns.items():
            if name in values and not re.fullmatch(pattern, values[name]):
                raise UsageError(
                    f"{name}={values[name]!r} is not allowed; it must be {allowed}", parameter="csv"
                )
        if values.get("delim") in ("\\t", "tab"):
            values["delim"] = "\t"
        skip = int(values.pop("skip", 0))
        return cls(**{**values, "header": values.get("header", "").lower()}, skip=skip)


def stored_options(given: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return options as texts, for a record; None without options. Invalid options are refused."""
    CsvOptions.of(given)
    return {name: str(value) for name, value in given.items()} if given else None


_NAMES = "|".join(item.name for item in fields(CsvOptions))


def csv_options(texts: Sequence[str] | None) -> dict[str, str] | None:
    """Return the options of ``delim=;,decimal_separator=,,skip=1``, or of several such texts; a
    value may be a comma.

    Example:
        >>> csv_options(["delim=;,decimal_separator=,", "skip=1"])
        {'delim': ';', 'decimal_separator': ',', 'skip': '1'}
    """
    if not texts:
        return None
    options = {}
    for part in re.split(rf",(?=(?:{_NAMES})=)", ",".join(texts)):
        name, equals, value = part.partition("=")
        if not equals:
            raise UsageError(
                f"takes NAME=VALUE,..., e.g. delim=; or skip=1; got {part!r}", parameter="csv"
            )
        options[name.strip()] = value
    return options
