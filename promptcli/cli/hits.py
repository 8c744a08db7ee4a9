"""Hits of a search as lines that fit the terminal, CSV or JSON."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcli.cli.console import result_document, result_folded
from promptcli.errors import UsageError, look_up
from promptcli.index.basics import reaches, way_record
from promptcli.settings import setting

_FORMATS = {"table": "lines", "csv": "a row for each hit", "json": "a document for each hit"}
_BELOW_ONE = 0.9999
_ROUGH = 95  # percent, below which a rarity is printed without decimals
#: Ends of lines of other systems: a terminal obeys the first sign.
_OTHER_ENDS = re.compile("\r\n?")
#: Breaks of lines and pages, and tabs.
_BREAKS = re.compile("[\t-\r\x85\u2028\u2029]")
_LONGEST = 1000  # characters of a text that are printed; `--json` prints all


@dataclass(frozen=True)
class HitOptions:
    """How hits are printed."""

    format: str | None = setting(None, "How hits are printed: table (default), csv or json.")
    show: str | None = setting(None, "Columns to show beside each hit, in table and csv: a,b.")

    def name(self, *, json: bool) -> str:
        """Return the format that is asked for, by ``--format`` or ``--json``."""
        if self.format is not None:
            look_up("format", self.format, _FORMATS)
        if json and self.format not in (None, "json"):
            raise UsageError(f"--json and --format {self.format} exclude each other; give one")
        return "json" if json else self.format or "table"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns to show; one with a comma is in quotes."""
        if self.show is None:
            return ()
        names = next(csv.reader([self.show], skipinitialspace=True))
        return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


class HitTable:
    """Prints hits as rows of a CSV, under one line of heads."""

    def __init__(self) -> None:
        self._heads: list[str] | None = None

    def row(self, record: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
        """Print a hit with further columns."""
        values = {**record, **{_free(name, record): value for name, value in columns.items()}}
        if self._heads is None:
            self._heads = list(values)
            _print_cells(self._heads)
        _print_cells([values[head] for head in self._heads])


def beside(columns: Mapping[str, Any]) -> str:
    """Return the columns of a hit as the end of its line."""
    if not columns:
        return ""
    cells = [f"{name}: {'' if value is None else value}" for name, value in columns.items()]
    return f"  [{', '.join(cells)}]"


def choose_columns(columns: Sequence[str], of_hit: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the columns to show of those that a hit has; others are None."""
    return {name: (of_hit or {}).get(name) for name in columns}


def one_line(text: str) -> str:
    """Return a text on one line, cut to what a screen holds."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    return _BREAKS.sub(" ", text)


def score_text(score: float) -> str:
    """Return a score with four decimals; only that of an exact copy is 1.0000."""
    if not reaches(score, 1):
        score = min(score, _BELOW_ONE)
    return f"{score:.4f}"


def rarity_text(percent: float | None) -> str:
    """Return how many random pairs a cosine exceeds, to be printed behind it: never 100%."""
    if percent is None:
        return ""
    digits = 0 if percent < _ROUGH else 2
    step = 10**-digits
    return f"  {math.floor(percent / step) * step:5.{digits}f}%"


def rounded_way(hit: Any) -> dict[str, Any]:
    """Return what found a hit, with its rounded BM25; nothing if one way ranked."""
    record = way_record(hit)
    if record:
        record["bm25"] = round(record["bm25"], 6)
    return record


def way_text(hit: Any) -> str:
    """Return what found a hit, to be printed behind its score."""
    return "" if hit.found_by is None else f"  {hit.found_by:<7}"


def figures(hit: Any, width: int = 0) -> str:
    """Return a hit's score, its rarity and what found it, to be printed before it."""
    return f"{score_text(hit.score):>{width}}{rarity_text(hit.rarity)}{way_text(hit)}"


def print_hit(label: str, text: str, columns: Mapping[str, Any]) -> None:
    """Print a hit: where it was found, its text, and columns."""
    result_folded(label, f"{text}{beside(columns)}")


def _free(name: str, record: Mapping[str, Any]) -> str:
    """Return the head of a column that may have the name of a part of the hit."""
    return f"column {name}" if name in record else name


def _print_cells(cells: Sequence[Any]) -> None:
    line = io.StringIO()
    cells = [_OTHER_ENDS.sub("\n", cell) if isinstance(cell, str) else cell for cell in cells]
    csv.writer(line, lineterminator="\n").writerow(cells)  # which quotes cells of several lines
    result_document(line.getvalue().removesuffix("\n"))
