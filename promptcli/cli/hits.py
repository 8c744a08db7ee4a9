"""Hits of a search as lines that fit the terminal, CSV or JSON."""

import csv
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from promptcli.cli import console
from promptcli.cli.options import format_name
from promptcli.data.layouts import name_key
from promptcli.errors import UsageError, unknown
from promptcli.retrieval.ranking import Explanation, reaches

Format = Annotated[str | None, typer.Option(help="Output format: table (default), csv or json.")]
Show = Annotated[
    str | None,
    typer.Option(help="Columns to show beside each hit, e.g. year,lang; in table and csv."),
]
_BELOW_ONE = 0.9999
#: Ends of lines of other systems: a terminal obeys the first sign.
_OTHER_ENDS = re.compile("\r\n?")
#: Breaks of lines and pages, and tabs.
_BREAKS = re.compile("[\t-\r\x85\u2028\u2029]")
_INDENT = " " * 8  # of what follows a hit
_LONGEST_TEXT = 1000  # characters of a text that are printed; `--json` prints all


class HitPrinter:
    """Prints hits in the format that is asked for, and the columns to show beside each."""

    def __init__(
        self, format: str | None, show: str | None, *, json: bool, explain: bool = False
    ) -> None:
        self.format = format_name(format, ("table", "csv", "json"), json=json)
        if explain and self.format == "csv":
            raise UsageError("csv has no explanations; give table or json", parameter="format")
        names = next(csv.reader([show or ""], skipinitialspace=True))  # one with a comma is quoted
        self._names = list(dict.fromkeys(name.strip() for name in names if name.strip()))
        self._heads: list[str] = []

    def missing(self, of_hits: Iterable[Iterable[str]]) -> list[str]:
        """Return the names that no hit has a column of, whatever their case and spaces."""
        keys = {name_key(name) for names in of_hits for name in names}
        return [name for name in self._names if name_key(name) not in keys]

    def check_columns(self, known: Sequence[str]) -> None:
        """Refuse columns that no row has."""
        for name in self.missing([known]):
            raise unknown("column", name, known)

    def columns(self, of_hit: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the columns to show of a hit; those that it lacks are None."""
        known = {name_key(name): value for name, value in (of_hit or {}).items()}
        return {name: known.get(name_key(name)) for name in self._names}

    def hit(
        self,
        document: Mapping[str, Any],
        columns: Mapping[str, Any],
        *lines: tuple[str, str],
        explanation: Mapping[str, Explanation] | None = None,
    ) -> None:
        """Print a hit as JSON, as a row of a CSV without the values of several parts, or as lines,
        each a label and a text. The last line ends with the columns, and its words of an
        explanation are marked; what this says follows.
        """
        if self.format == "json":
            if explanation is not None:
                figures = {name: part.figures for name, part in explanation.items()}
                document = {**document, "explanation": figures}
            console.result_json(document)
        elif self.format == "csv":
            record = {
                name: value
                for name, value in document.items()
                if not isinstance(value, dict | tuple)
            }
            for name, value in columns.items():
                record[f"column {name}" if name in record else name] = value
            if not self._heads:
                self._heads = list(record)
                _print_cells(self._heads)
            _print_cells([record[head] for head in self._heads])
        else:
            parts = list((explanation or {}).values())
            words = {word for part in parts for word in part.marked}
            cells = [f"{name}: {'' if value is None else value}" for name, value in columns.items()]
            for number, (label, text) in enumerate(lines, 1):
                shown = one_line(text)
                is_last = number == len(lines)
                marked = _places(shown, words) if is_last else []
                if cells and is_last:
                    shown = f"{shown}  [{', '.join(cells)}]"
                console.result_marked(label, shown, marked)
            for part in parts:
                console.result_marked(_INDENT, part.line)


def _places(text: str, words: Collection[str]) -> list[tuple[int, int]]:
    """Return where words begin and end in a text; one that is only found inside others, of a script
    without spaces, there.
    """
    patterns = []
    for word in sorted(words, key=len, reverse=True):
        alone = rf"\b{re.escape(word)}\b"
        patterns.append(alone if re.search(alone, text, re.I) else re.escape(word))
    found = re.finditer("|".join(patterns), text, re.I) if patterns else ()
    return [match.span() for match in found]


def one_line(text: str) -> str:
    """Return a text on one line, cut to what a screen holds."""
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}…"
    return _BREAKS.sub(" ", text)


def score_text(score: float) -> str:
    """Return a score with four decimals; only that of an exact copy is 1.0000."""
    return f"{score if reaches(score, 1) else min(score, _BELOW_ONE):.4f}"


def figures(hit: Any, width: int = 0) -> str:
    """Return a hit's score and what found it, to be printed before it."""
    found_by = "" if hit.found_by is None else f"  {hit.found_by:<7}"
    return f"{score_text(hit.score):>{width}}{found_by}"


def nothing_found(query: str, min_score: float | None, where: str | None) -> str:
    """Return why a search has no hit: it is blank, or its conditions leave out every row."""
    if not query.strip():
        return "a blank query has no hits"
    if min_score is not None:
        reason = f"no row scores at least {min_score} for {query!r}"
        return reason if where is None else f"{reason} among those that meet the condition"
    return "no row meets the condition" if where is not None else f"no row matches {query!r}"


def _print_cells(cells: Sequence[Any]) -> None:
    line = io.StringIO()
    cells = [_OTHER_ENDS.sub("\n", cell) if isinstance(cell, str) else cell for cell in cells]
    csv.writer(line, lineterminator="\n").writerow(cells)  # which quotes cells of several lines
    console.result_document(line.getvalue().removesuffix("\n"))
