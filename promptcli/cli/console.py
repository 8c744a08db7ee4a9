"""The output of the command line: notes and progress on stderr, results and tables on stdout."""

import contextlib
import io
import json
import logging
import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from promptcli.cli.visible import escape_controls, escape_controls_in_json
from promptcli.errors import shorten_message
from promptcli.notes import LOG
from promptcli.notes import note as note

err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
out = Console(highlight=False, soft_wrap=True, emoji=False)

#: An option as the library's messages name it: ``force=True``, ``data_dir=FOLDER``,
#: ``engine="ray"``. The user types ``--force``, ``--data-dir FOLDER``, ``--engine ray``.
_OPTION = re.compile(
    r"\b(backbone|base|data_dir|engine|force|offline|resume|seeds|select|skip_bad|sweep|trials"
    r"|workers)=(?:True\b|([A-Z]+)\b|\"([a-z]+)\")"
)


def say(message: str) -> None:
    """Print a message as one short line on stderr, even with ``--quiet``.

    A terminal wraps the line between words.
    """
    message = _OPTION.sub(_typed_option, message)
    err.print(
        escape_controls(shorten_message(message)), markup=False, soft_wrap=not err.is_terminal
    )


def _typed_option(option: re.Match[str]) -> str:
    """Return an option of a message as the user types it."""
    name, placeholder, value = option.groups()
    return " ".join(filter(None, (f"--{name}".replace("_", "-"), placeholder, value)))


def confirm(question: str) -> bool:
    """Ask a yes-or-no question at a terminal; without a terminal the answer is no."""
    return (
        sys.stdin.isatty()
        and err.is_terminal
        and typer.confirm(escape_controls(question), err=True)
    )


class _NoteHandler(logging.Handler):
    """Shows the library's notes as the command's own."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def set_up_streams() -> None:
    """Show the library's notes on stderr; escape characters that stdout's encoding lacks."""
    LOG.handlers[:] = [_NoteHandler()]
    LOG.propagate = False
    if LOG.level != logging.INFO:  # setting the level clears the cache of every logger
        LOG.setLevel(logging.INFO)
    if isinstance(sys.stdout, io.TextIOWrapper):
        if isinstance(sys.stdout.buffer, io.RawIOBase):  # PYTHONUNBUFFERED
            # on a full disk or a closed pipe, an unbuffered stream drops output without an error
            raw = io.FileIO(sys.stdout.fileno(), "wb", closefd=False)
            sys.stdout = io.TextIOWrapper(
                io.BufferedWriter(raw), sys.stdout.encoding, line_buffering=True
            )
        sys.stdout.reconfigure(errors="backslashreplace")


def print_line(line: str) -> None:
    """Write one line of result to stdout."""
    sys.stdout.write(escape_controls(line) + "\n")


def print_document(text: str) -> None:
    """Write a result of several lines, such as a CSV file, to stdout."""
    for line in text.split("\n"):
        print_line(line)


def print_json(value: Any) -> None:
    """Write one JSON document on one line to stdout."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    document = json.dumps(value, ensure_ascii=not is_utf8, default=_json_ready)
    sys.stdout.write(escape_controls_in_json(document) + "\n")


def _json_ready(value: Any) -> Any:
    """Return an object or an array as values that JSON can hold."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "tolist"):
        return value.tolist()
    return vars(value)


#: A cell of a column of numbers; it may also be empty.
_NUMBER = re.compile(r"[-+±]?\d[\d,]*(\.\d+)?[%*]?|<0\.001|-?")


@dataclass(frozen=True)
class Grid:
    """Rows of cells, with column headers or without; columns of numbers are aligned right.

    A row may lack its last cells.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: (row, column) of the best scores, which LaTeX prints in bold
    best: Collection[tuple[int, int]] = ()

    def numeric_columns(self) -> list[bool]:
        """Return for each column whether its cells are numbers."""
        columns = zip_longest(*self.rows, fillvalue="") if self.rows else [()] * len(self.headers)
        return [any(cells) and all(map(_NUMBER.fullmatch, cells)) for cells in columns]

    def __rich__(self) -> Table:
        table = Table(
            box=None, pad_edge=False, show_header=bool(self.headers), padding=(0, 2, 0, 0)
        )
        numeric = self.numeric_columns()
        for header, is_numeric in zip(self.headers or [""] * len(numeric), numeric, strict=True):
            table.add_column(
                escape_controls(header),
                justify="right" if is_numeric else "left",
                overflow="fold",
                no_wrap=is_numeric,
            )
        for row in self.rows:
            table.add_row(*map(escape_controls, row))
        return table


def half_interval(interval: Sequence[float], decimals: int = 2) -> str:
    """Return half the width of an interval, as tables show it."""
    low, high = interval
    return f"±{(high - low) / 2:.{decimals}f}"


def show(*tables_and_lines: RenderableType) -> None:
    """Write tables and lines to stdout, wrapped to the width if stdout is a terminal."""
    width = out.width if out.is_terminal else 100_000
    wide = Console(width=width, highlight=False, emoji=False, markup=False)
    with wide.capture() as captured:
        for item in tables_and_lines:
            wide.print(escape_controls(item) if isinstance(item, str) else item)
    for line in captured.get().splitlines():  # with the styles of a terminal
        sys.stdout.write(line.rstrip() + "\n")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows in columns to stdout; cells are printed as text."""
    show(Grid(headers, [list(map(str, row)) for row in rows]))


def print_marked(label: str, text: str, after: str = "", *, pattern: str = "") -> None:
    """Write a label, its text and the text after it to stdout as one line.

    Matches of ``pattern`` in the text are bold in a terminal with colours, else in brackets. A
    terminal wraps the line between words.
    """
    marked_text = Text(escape_controls(text))
    if pattern:
        words = re.compile(pattern, re.I)
        if out.is_terminal and out.color_system is not None and not out.no_color:
            marked_text.highlight_regex(words, "bold underline")
        else:
            marked_text = Text(words.sub(r"[\g<0>]", marked_text.plain))
    line = Text.assemble(escape_controls(label), marked_text, escape_controls(after))
    if out.is_terminal:
        show(line)
    else:
        print_line(line.plain.rstrip())


#: Seconds between two lines of progress if stderr is not a terminal.
_LINE_INTERVAL_S = 30.0


def rate(speed: float | None) -> str:
    """Return a speed in steps a second."""
    if not speed:
        return "-/s"
    return f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s"


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(rate(task.speed))


class ProgressBar:
    """Shows the progress of a stage: called with the number of new rows, or a fraction of a row."""

    def __init__(self, bar: Progress, label: str, total: int | None) -> None:
        self._bar = bar
        self._label = escape_controls(label)
        self._task = bar.add_task(self._label, total=total)
        self._last_line = time.monotonic()

    def __call__(self, done: float) -> None:
        """Move the bar; without a terminal, write a line of progress now and then."""
        self._bar.advance(self._task, done)
        if err.is_terminal or time.monotonic() - self._last_line <= _LINE_INTERVAL_S:
            return
        self._last_line = time.monotonic()
        task = self._bar.tasks[0]
        of_total = "" if task.total is None else f" of {task.total:,.0f}"
        speed = rate(task.speed or task.completed / (task.elapsed or 1))
        line = f"{task.description}: {task.completed:,.0f}{of_total}, {speed}"
        if task.time_remaining is not None:
            line += f", {timedelta(seconds=task.time_remaining)} left"
        note(line)

    def describe(self, text: str) -> None:
        """Show a text after the label."""
        self._bar.update(self._task, description=f"{self._label}  {escape_controls(text)}")


class StageProgress:
    """Shows the progress of stages on stderr: bars on a terminal, else lines now and then."""

    bars = err.is_terminal  #: see ``notes.shows_bars``

    @contextlib.contextmanager
    def __call__(self, label: str, total: int | None) -> Iterator[ProgressBar]:
        """Show a stage while the block runs; ``total`` is None if it is unknown."""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as bar:
            yield ProgressBar(bar, label, total)


progress = StageProgress()
