"""Ctrl-C and SIGTERM as an exception that unwinds the stack, raised again where it came to nothing on its way."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

#: Seconds after which a stop that nothing came of is asked for again.
_AGAIN = 0.1


class Stopped(BaseException):
    """A signal asked the program to end. No Exception, so that nothing on the way takes it for a failure."""


#: The signals that asked for it: a library in whose middle the exception is raised may make another one of it.
stopped_by: list[int] = []


def _stop(number: int, frame: Any) -> NoReturn:
    stopped_by.append(number)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)
    raise Stopped(number)


def _stop_again(number: int, frame: Any) -> None:
    """Raise what a callback of the interpreter or compiled code has swallowed; never while the stack is unwound."""
    if sys.exc_info()[0] is None:
        raise Stopped(stopped_by[0])


@contextlib.contextmanager
def stopping_by_exception() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM unwind the stack while a command runs, so that temporary files go.

    Raises:
        Stopped: in the midst of the block, wherever the signal finds it.
    """
    stopped_by.clear()
    handlers = {signal.SIGINT: _stop, signal.SIGTERM: _stop, signal.SIGALRM: _stop_again}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    said = sys.unraisablehook

    def say_unless_stopped(unraisable: Any) -> None:
        if unraisable.exc_type is not Stopped:
            said(unraisable)

    sys.unraisablehook = say_unless_stopped
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = said
        for number, handler in before.items():
            signal.signal(number, handler)
