"""What a person sees: notes, tables and progress on stderr; results on stdout. Part of the entrance."""

import codecs
import contextlib
import io
import itertools
import json
import logging
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from promptcli.errors import short_line
from promptcli.notes import LOG

err = Console(stderr=True, highlight=False, soft_wrap=True)
out = Console(highlight=False, soft_wrap=True)
_quiet = False
_written: Mapping[str, str] = {}
#: A field as the library names it, and the blank before a value of it that stands there in capitals.
_FIELD = re.compile(r"`([a-z][a-z0-9_]*)`( (?=[A-Z]))?")

#: What stands for a sign that the terminal cannot show; of others their number is written.
_SPELLED = {"±": "+-", "…": "...", "█": "#", "▓": "=", "▒": "-", "░": ".", **dict.fromkeys("▏▎▍▌▋▊▉", "|")}


def write_what_cannot_be_shown() -> None:
    """Let stdout and stderr write in ASCII what their encoding does not hold, instead of failing."""
    codecs.register_error("spelled", _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="spelled")


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_SPELLED.get(one, json.dumps(one)[1:-1]) for one in characters), error.end


@contextlib.contextmanager
def speaking(*, quiet: bool = False, written: Mapping[str, str]) -> Iterator[None]:
    """Speak in the block as a command does.

    Args:
        quiet: Show no notes and no progress bars: the command's ``--quiet``.
        written: Field of the library -> the option that gives it, for ``as_typed``.
    """
    global _quiet, _written
    before = _quiet, _written
    _quiet, _written = quiet, written
    try:
        yield
    finally:
        _quiet, _written = before


def as_typed(message: str, written: Mapping[str, str] | None = None) -> str:
    """Return a message of the library as the command line says it: a `field` is the option that gives it."""
    known = _written if written is None else written

    def option(found: re.Match[str]) -> str:
        if found[1] not in known:
            return found[0]
        name, blank = known[found[1]], found[2] or ""
        return name + ("=" if blank and " " in name else blank)

    return _FIELD.sub(option, message)


def draws_bars() -> bool:
    """Return whether anybody sees a progress bar."""
    return err.is_terminal and not _quiet


def note(message: str) -> None:
    """Say one line on stderr, unless ``--quiet`` is given."""
    if not _quiet:
        say(message)


class _NoteHandler(logging.Handler):
    """Shows the library's notes as the command's own."""

    def emit(self, record: logging.LogRecord) -> None:
        note(as_typed(record.getMessage()))


def show_library_notes() -> None:
    """Show what the library says while it works on stderr, unless ``--quiet`` is given."""
    LOG.handlers[:] = [_NoteHandler()]
    LOG.setLevel(logging.INFO)
    LOG.propagate = False


def value_typed(value: Any) -> str:
    """Return a setting's value as it is typed: ``true``, ``1e-05``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def say(message: str) -> None:
    """Say one short line on stderr, whatever ``--quiet`` says; a terminal shows it wrapped between words."""
    err.print(short_line(message), markup=False, soft_wrap=not err.is_terminal)


def result(line: str) -> None:
    """Write one line of result to stdout, as it is."""
    sys.stdout.write(line + "\n")


def result_json(value: Any) -> None:
    """Write one JSON document on one line to stdout."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    result(json.dumps(value, ensure_ascii=not unicode))


def rounded(values: Sequence[float]) -> list[float]:
    """Return figures as JSON documents hold them."""
    return [round(value, 6) for value in values]


def half_interval(interval: tuple[float, float]) -> str:
    """Return half the width of an interval, as tables show it."""
    return f"±{(interval[1] - interval[0]) / 2:.2f}"


#: Characters of a column of text, at least.
_NARROWEST = 12
#: What stands in a column of figures, which is aligned on the right.
_FIGURE = re.compile(r"[-+±]?\d[\d,]*(\.\d+)?%?|-?")


def result_table(heads: Sequence[str], rows: Sequence[Sequence[str] | str]) -> None:
    """Write rows in columns to stdout, as wide as they are; on a terminal long texts are folded within their columns.

    Args:
        heads: Of the columns; empty where there are none.
        rows: Cells; a row that is a text stands alone, as a heading within the table. Columns of figures are aligned
            on the right, their heads too.
    """
    cells = [row for row in rows if not isinstance(row, str)]
    columns = list(zip(*([heads, *cells] if heads else cells), strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(map(_FIGURE.fullmatch, column[bool(heads) :])) and any(column) for column in columns]
    if out.is_terminal:
        _fold(widths, right, out.width)
    for row in [heads, *rows] if heads else rows:
        if isinstance(row, str):
            result(row)
            continue
        folded = [
            [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_on_hyphens=False)
            for cell, width in zip(row, widths, strict=True)
        ]
        for line in itertools.zip_longest(*folded, fillvalue=""):
            aligned = [
                cell.rjust(width) if figures else cell.ljust(width)
                for cell, width, figures in zip(line, widths, right, strict=True)
            ]
            result("  ".join(aligned).rstrip())


def _fold(widths: list[int], right: Sequence[bool], most: int) -> None:
    """Make the widest columns of text narrower until a table is ``most`` wide, none narrower than ``_NARROWEST``."""
    texts = [column for column, figures in enumerate(right) if not figures]
    while texts and sum(widths) + 2 * (len(widths) - 1) > most:
        widest = max(texts, key=widths.__getitem__)
        if widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "-/s")


class ProgressBar:
    """Moves a progress bar: called with the number of rows newly done."""

    def __init__(self, bar: Progress, task: TaskID, label: str) -> None:
        self._bar, self._task, self._label = bar, task, label

    def __call__(self, done: float) -> None:
        """Move by ``done`` rows; a part of one where a row is much work."""
        self._bar.advance(self._task, done)

    def describe(self, text: str) -> None:
        """Show a text after the label."""
        self._bar.update(self._task, description=f"{self._label}  {text}")


@contextlib.contextmanager
def progress(label: str, total: int | None) -> Iterator[ProgressBar]:
    """Yield what takes the number of rows newly done; draw a bar on stderr where that is a terminal.

    Args:
        label: What is being done, e.g. ``embed``.
        total: Rows in all, or None where nobody knows.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=err, disable=not draws_bars(), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield ProgressBar(bar, task, label)
