"""The program, ``promptcli`` or ``python -m promptcli``: signals are taken care of before anything else is loaded."""

import atexit
import contextlib
import os
import signal
import sys
from typing import Any, NoReturn


def _leave(number: int, frame: Any) -> NoReturn:
    """End at once: before the command line runs and after it, nothing is being written."""
    with contextlib.suppress(OSError):
        os.write(2, b"promptcli: interrupted; nothing half written is left\n")
    os._exit(128 + number)


def _ignore_signals() -> None:
    """Let nothing stop the interpreter's own end, when all is done and Python would no longer answer."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _open_closed_streams() -> None:
    """Put something in the place of a closed stdout or stderr, else the next file opened would be taken for it.

    Writing to a closed stdout fails; what is said on a closed stderr is lost.
    """
    for number, name, mode in ((1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, mode)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))


def main() -> None:
    """Run the command line; always ends in ``SystemExit`` with a documented code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    atexit.register(_ignore_signals)
    _open_closed_streams()
    from promptcli.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
