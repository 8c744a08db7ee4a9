"""What the library tells its caller while it works, and whether it may use the network.

Notes go to the logger ``promptcli``: the command line shows them on stderr, a program by its own logging settings. What
is about to use the network is said as a warning, which Python shows where no logging is set up.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

LOG = logging.getLogger("promptcli")
#: Takes the number of steps newly done, which may be a fraction.
Advance = Callable[[float], None]
#: Shows a part of the work, by its name and its number of steps (None: unknown), while its block runs.
Stage = Callable[[str, int | None], AbstractContextManager[Advance]]
_STAGE: ContextVar[Stage | None] = ContextVar("promptcli_stage", default=None)
_SILENT: ContextVar[bool] = ContextVar("promptcli_silent", default=False)
_OFFLINE: ContextVar[bool] = ContextVar("promptcli_offline", default=False)


@contextlib.contextmanager
def offline(wanted: bool = True) -> Iterator[None]:
    """Forbid the network in the block where it is wanted; a block inside cannot allow it again."""
    before = _OFFLINE.set(wanted or _OFFLINE.get())
    try:
        yield
    finally:
        _OFFLINE.reset(before)


def obeys_offline(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Let a function's parameter ``offline`` forbid the network in all that it calls."""

    @functools.wraps(function)
    def obeying(*given: Given.args, **named: Given.kwargs) -> Result:
        with offline(bool(named.get("offline"))):
            return function(*given, **named)

    return obeying


def is_offline() -> bool:
    """Return whether the network is forbidden."""
    return _OFFLINE.get()


@contextlib.contextmanager
def showing(stage: Stage | None) -> Iterator[None]:
    """Show the parts of the work in the block by ``stage``, e.g. as progress bars; without one nothing is shown."""
    before = _STAGE.set(stage)
    try:
        yield
    finally:
        _STAGE.reset(before)


def is_shown() -> bool:
    """Return whether anybody sees the parts of the work."""
    return _STAGE.get() is not None


def working(name: str, steps: int | None) -> AbstractContextManager[Advance]:
    """Begin a part of the work; what it yields takes the steps newly done."""
    stage = _STAGE.get()
    return nullcontext(lambda done: None) if stage is None else stage(name, steps)


def describe(advance: Advance, text: str) -> None:
    """Show a text next to the name of a part of the work, where it is shown as one that has room for it."""
    show = getattr(advance, "describe", None)
    if show is not None:
        show(text)


@contextlib.contextmanager
def silent(wanted: bool = True) -> Iterator[None]:
    """Say and show nothing in the block where it is wanted, e.g. in all processes of a run but one."""
    before, stage = _SILENT.set(wanted or _SILENT.get()), _STAGE.set(None if wanted else _STAGE.get())
    try:
        yield
    finally:
        _SILENT.reset(before)
        _STAGE.reset(stage)


def note(message: str) -> None:
    """Say one line about the work: what was assumed, chosen or left out."""
    if not _SILENT.get():
        LOG.info("%s", message)


def warn(message: str) -> None:
    """Say one line that a program should hear, too: what is left out, or that the network is about to be used."""
    if not _SILENT.get():
        LOG.warning("%s", message)


def note_counts(rows: int, *, blank: int, truncated: int, zero: int = 0, limit: str = "the model's input") -> None:
    """Say how many of some rows are blank, were cut, or have no vector."""
    for count, what in (
        (blank, "lines are blank; each keeps its row"),
        (zero, "sentences have a zero vector: nothing in them is known"),
        (truncated, f"sentences were longer than {limit} and were cut"),
    ):
        if count:
            note(f"{count:,} of {rows:,} {what}")
