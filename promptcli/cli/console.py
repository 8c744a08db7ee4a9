"""What a person sees: notes and progress on stderr, results and tables on stdout. Part of the entrance."""

import contextlib
import dataclasses
import io
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from rich.console import Console, RenderableType
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
from rich.table import Table
from rich.text import Text

from promptcli.cli.options import RUNTIME
from promptcli.errors import short_line
from promptcli.notes import LOG

err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
out = Console(highlight=False, soft_wrap=True, emoji=False)
#: Parameter of the library -> how the running command types it: messages say ``--from`` for `start`.
TYPED: ContextVar[Mapping[str, str]] = ContextVar("typed", default={})  # noqa: B039


def draws_bars() -> bool:
    """Return whether anybody sees a progress bar."""
    return err.is_terminal and not RUNTIME.get().quiet


def note(message: str) -> None:
    """Say one line on stderr, unless ``--quiet`` is given."""
    if not RUNTIME.get().quiet:
        say(message)


def say(message: str) -> None:
    """Say one short line on stderr, whatever ``--quiet`` says; a terminal shows it wrapped between words."""
    err.print(short_line(as_typed(message)), markup=False, soft_wrap=not err.is_terminal)


def as_typed(message: str) -> str:
    """Return a message with the options of the running command in place of the library's parameters."""
    return re.sub(r"(?<!field )`(\w+)`", lambda name: TYPED.get().get(name[1], name[0]), message)


class _NoteHandler(logging.Handler):
    """Shows the library's notes as the command's own."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def set_up_streams() -> None:
    """Show the library's notes on stderr, and escape on stdout what its encoding does not hold."""
    LOG.handlers[:], LOG.propagate = [_NoteHandler()], False
    LOG.setLevel(logging.INFO)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def result(line: str) -> None:
    """Write one line of result to stdout, unchanged."""
    sys.stdout.write(line + "\n")


def result_json(value: Any) -> None:
    """Write one JSON document on one line to stdout."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    result(json.dumps(value, ensure_ascii=not unicode))


def json_ready(value: Any) -> Any:
    """Return dataclasses, arrays and figures as JSON documents hold them: with six decimals."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


def half_interval(interval: tuple[float, float]) -> str:
    """Return half the width of an interval, as tables show it."""
    return f"±{(interval[1] - interval[0]) / 2:.2f}"


#: A cell of a column of figures, which is aligned on the right.
_FIGURE = re.compile(r"[-+±]?\d[\d,]*(\.\d+)?[%*]?|<0\.001|-?")


def table(heads: Sequence[str], rows: Sequence[Sequence[str | Text]], styles: Sequence[str] = ()) -> Table:
    """Return rows under their heads, if there are any; columns of figures are aligned on the right."""
    grid = Table(box=None, pad_edge=False, show_header=bool(heads), padding=(0, 2, 0, 0))
    columns = list(zip(*rows, strict=True)) or [()] * len(heads)
    for head, cells in zip(heads or [""] * len(columns), columns, strict=True):
        figures = all(_FIGURE.fullmatch(str(cell)) for cell in cells) and any(cells)
        grid.add_column(Text(head), justify="right" if figures else "left", overflow="fold")
    for row, style in zip(rows, styles or [""] * len(rows), strict=True):
        grid.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row), style=style)
    return grid


def show(*parts: RenderableType) -> None:
    """Write tables and lines to stdout: folded to the width of a terminal, else as wide as they are."""
    wide = Console(width=None if out.is_terminal else 100_000, highlight=False, emoji=False, markup=False)
    with wide.capture() as captured:
        for part in parts:
            wide.print(part)
    for line in captured.get().splitlines():
        result(line.rstrip())


def result_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows in columns to stdout."""
    show(table(heads, rows))


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "-/s")


class ProgressBar:
    """Moves a progress bar: called with the number of rows newly done."""

    def __init__(self, bar: Progress, task: TaskID, label: str) -> None:
        self._bar, self._task, self._label = bar, task, label

    def __call__(self, done: float) -> None:
        """Move by ``done`` rows, or a fraction of one."""
        self._bar.advance(self._task, done)

    def describe(self, text: str) -> None:
        """Show a text after the label."""
        self._bar.update(self._task, description=f"{self._label}  {text}")


#: Seconds between two lines of progress, if stderr is no terminal.
_LINES_EVERY = 30.0


class ProgressLines:
    """Says on stderr how far a stage of the work is, with its rate and the time left, now and then."""

    bars = False

    @contextlib.contextmanager
    def __call__(self, label: str, total: int | None) -> Iterator[Callable[[float], None]]:
        """Follow a stage while the block runs; ``total`` is None if unknown."""
        done, first, since = 0.0, 0.0, time.monotonic()
        said = since

        def advance(steps: float) -> None:
            nonlocal done, first, since, said
            now = time.monotonic()
            if not done:  # the first report may be of what was there: the rate begins after it
                first, since = steps, now
            done += steps
            if now - said < _LINES_EVERY or done == first:
                return
            said, rate = now, (done - first) / max(now - since, 1e-9)
            of = "" if total is None else f" of {total:,}"
            left = "" if total is None else f", {timedelta(seconds=round((total - done) / rate))} left"
            note(f"{label}: {done:,.0f}{of}, {rate:,.1f}/s{left}")

        yield advance


@contextlib.contextmanager
def progress(label: str, total: int | None) -> Iterator[ProgressBar]:
    """Draw a progress bar on stderr, if that is a terminal, while the block runs; ``total`` is None if unknown."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=err, disable=not draws_bars(), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield ProgressBar(bar, task, label)
