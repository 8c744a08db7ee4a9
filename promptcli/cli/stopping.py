"""The end of a command by SIGTERM or Ctrl-C, also inside a library that does not pass them on.

An interrupted C++ library may raise its own error instead. In a distributed run a process may wait
half an hour for the others inside torch, where Python handles no signal.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

PATIENCE = 10.0  #: seconds from SIGTERM or Ctrl-C to the end of the process
_WATCHED = (signal.SIGTERM, signal.SIGINT)


class Terminated(KeyboardInterrupt):
    """SIGTERM; it unwinds the stack like Ctrl-C."""


@contextlib.contextmanager
def interruptible(ends_process: bool) -> Iterator[list[KeyboardInterrupt]]:
    """Raise ``Terminated`` at SIGTERM, KeyboardInterrupt at Ctrl-C; yield the list of those raised.

    Ctrl-C stays ignored if it already is, as in a shell's background job. If the process ends with
    the block, both are ignored from then on: the command is done, and its exit code is final.
    """
    raised = list[KeyboardInterrupt]()

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raised.append(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
        raise raised[-1]

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    try:
        yield raised
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if ends_process else handler)


@contextlib.contextmanager
def ended_by_signals(wanted: bool) -> Iterator[None]:
    """End the process ``PATIENCE`` seconds after a signal if the block, which the signal
    interrupts, has not ended.
    """
    if not wanted:
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ended = threading.Event()

    def watch() -> None:
        while received := os.read(reader, 1):
            if received[0] in _WATCHED and not ended.wait(PATIENCE):
                os.write(
                    2,
                    b"promptcli: interrupted while it waited for other processes; `--resume`"
                    b" continues the run\n",
                )
                os._exit(128 + received[0])

    # written to even while a library blocks
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(writer)  # which wakes the watch
        watching.join()
        os.close(reader)
