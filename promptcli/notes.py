"""Notes, warnings and progress from the library to its caller, who may also forbid the network and
record the typed command.

Notes and warnings go to the logger ``promptcli``. The command line shows them on stderr; a program
shows notes if it sets up logging. What the caller sets holds for a ``with`` block.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TypeVar

Value = TypeVar("Value")


@contextlib.contextmanager
def _set(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


# -- notes and warnings

LOG = logging.getLogger("promptcli")
_SILENT: ContextVar[bool] = ContextVar("promptcli_silent", default=False)


def note(message: str) -> None:
    """Tell the user one line about the work: an assumption, a choice, something left out."""
    if not _SILENT.get():
        LOG.info("%s", message)


def warn(message: str) -> None:
    """Log a warning, which Python shows even without logging set up.

    It says that something is left out, or that the network is about to be used.
    """
    if not _SILENT.get():
        LOG.warning("%s", message)


def note_counts(
    rows: int, *, blank: int, truncated: int, zero: int = 0, limit: str = "the model's input"
) -> None:
    """Note how many rows are empty, were cut, or have a zero vector."""
    for count, what in (
        (blank, "blank lines, which keep their rows"),
        (zero, "sentences without a known token, whose vectors are zero"),
        (truncated, f"sentences cut to {limit}"),
    ):
        if count:
            note(f"{what}: {count:,} of {rows:,}")


def silent(active: bool = True) -> AbstractContextManager[None]:
    """Suppress notes, warnings and progress in the block if ``active``, e.g. in all processes of a
    run but one; a block inside cannot show them again.
    """
    return _set(_SILENT, active or _SILENT.get())


# -- progress

#: Function that takes the number of new steps, which may be a fraction.
Advance = Callable[[float], None]
#: Shows a stage of the work, with its name and number of steps (None: unknown), while its block
#: runs.
StageDisplay = Callable[[str, int | None], AbstractContextManager[Advance]]
_DISPLAY: ContextVar[StageDisplay | None] = ContextVar("promptcli_stages", default=None)


def no_progress(done: float) -> None:
    """Ignore progress."""


def showing_stages(display: StageDisplay | None) -> AbstractContextManager[None]:
    """Show the stages of the work in the block with ``display``, e.g. as progress bars.

    None shows nothing.
    """
    return _set(_DISPLAY, display)


def stage(name: str, steps: int | None) -> AbstractContextManager[Advance]:
    """Begin a stage of the work; yield the function that takes the number of new steps."""
    display = _display()
    if display is None:
        return nullcontext(no_progress)
    return display(name, steps)


def describe(advance: Advance, text: str) -> None:
    """Show a text next to the name of a stage, if its display has room for it."""
    show = getattr(advance, "describe", None)
    if show is not None:
        show(text)


def shows_bars() -> bool:
    """Return whether stages are shown as bars."""
    display = _display()
    return display is not None and getattr(display, "bars", True)


def _display() -> StageDisplay | None:
    return None if _SILENT.get() else _DISPLAY.get()


# -- the network

_OFFLINE: ContextVar[bool] = ContextVar("promptcli_offline", default=False)


def without_network(active: bool = True) -> AbstractContextManager[None]:
    """Forbid the network in the block if ``active``; a block inside cannot allow it again."""
    return _set(_OFFLINE, active or _OFFLINE.get())


def is_offline() -> bool:
    """Return whether the network is forbidden."""
    return _OFFLINE.get()


# -- the typed command

_COMMAND: ContextVar[str] = ContextVar("promptcli_command", default="")


def recording_command(command: str) -> AbstractContextManager[None]:
    """Record the typed command for the block; its results name it."""
    return _set(_COMMAND, command)


def current_command() -> str:
    """Return the recorded command; "" if a Python program calls the library."""
    return _COMMAND.get()
