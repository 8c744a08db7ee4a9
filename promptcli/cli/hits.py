"""Hits of a search as lines that fit the terminal, CSV or JSON."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from promptcli.cli.console import result_document, result_folded
from promptcli.errors import unknown
from promptcli.retrieval.ranking import reaches

Format = Annotated[
    str | None, typer.Option(help="How rows are printed: table (default), csv or json.")
]
Show = Annotated[
    str | None, typer.Option(help="Columns to show beside each hit, in table and csv: a,b.")
]
FORMATS = ("table", "csv", "json")
_BELOW_ONE = 0.9999
#: Ends of lines of other systems: a terminal obeys the first sign.
_OTHER_ENDS = re.compile("\r\n?")
#: Breaks of lines and pages, and tabs.
_BREAKS = re.compile("[\t-\r\x85\u2028\u2029]")
_LONGEST = 1000  # characters of a text that are printed; `--json` prints all


def column_names(show: str | None) -> list[str]:
    """Return the names of the columns to show; one with a comma is in quotes."""
    if show is None:
        return []
    names = next(csv.reader([show], skipinitialspace=True))
    return list(dict.fromkeys(name.strip() for name in names if name.strip()))


class HitTable:
    """Prints hits as rows of a CSV, under one line of heads."""

    def __init__(self) -> None:
        self._heads: list[str] = []

    def row(self, record: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
        """Print a hit with further columns."""
        values = dict(record)
        for name, value in columns.items():
            values[f"column {name}" if name in record else name] = value
        if not self._heads:
            self._heads = list(values)
            _print_cells(self._heads)
        _print_cells([values[head] for head in self._heads])


def chosen_columns(names: Sequence[str], of_hit: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the columns to show of a hit, whatever their case and spaces; others are None."""
    known = {_key(name): value for name, value in (of_hit or {}).items()}
    return {name: known.get(_key(name)) for name in names}


def check_columns(names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse columns that no row has."""
    for name in missing_columns(names, [known]):
        raise unknown("column", name, known)


def missing_columns(names: Sequence[str], of_hits: Iterable[Iterable[str]]) -> list[str]:
    """Return the names that no hit has a column of, whatever their case and spaces."""
    keys = {_key(name) for known in of_hits for name in known}
    return [name for name in names if _key(name) not in keys]


def _key(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()


def one_line(text: str) -> str:
    """Return a text on one line, cut to what a screen holds."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    return _BREAKS.sub(" ", text)


def score_text(score: float) -> str:
    """Return a score with four decimals; only that of an exact copy is 1.0000."""
    return f"{score if reaches(score, 1) else min(score, _BELOW_ONE):.4f}"


def figures(hit: Any, width: int = 0) -> str:
    """Return a hit's score and what found it, to be printed before it."""
    found_by = "" if hit.found_by is None else f"  {hit.found_by:<7}"
    return f"{score_text(hit.score):>{width}}{found_by}"


def print_hit(label: str, text: str, columns: Mapping[str, Any]) -> None:
    """Print a hit: where it was found, its text, and columns."""
    if columns:
        cells = [f"{name}: {'' if value is None else value}" for name, value in columns.items()]
        text = f"{text}  [{', '.join(cells)}]"
    result_folded(label, text)


def nothing_found(query: str, min_score: float | None, where: str | None) -> str:
    """Return why a search has no hit: only its conditions can leave out every row."""
    if min_score is not None:
        reason = f"no row scores at least {min_score} for {query!r}"
        return reason if where is None else f"{reason} among those that meet the condition"
    return "no row meets the condition" if where is not None else f"no row matches {query!r}"


def _print_cells(cells: Sequence[Any]) -> None:
    line = io.StringIO()
    cells = [_OTHER_ENDS.sub("\n", cell) if isinstance(cell, str) else cell for cell in cells]
    csv.writer(line, lineterminator="\n").writerow(cells)  # which quotes cells of several lines
    result_document(line.getvalue().removesuffix("\n"))
