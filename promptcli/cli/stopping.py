"""The end of a command by SIGTERM or Ctrl-C.

An interrupted C++ library may raise its own error. In a distributed run, a process may wait for the
others half an hour inside torch, where Python handles no signal.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

PATIENCE_S = 10.0  #: from SIGTERM or Ctrl-C to the end of the process
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Terminated(KeyboardInterrupt):
    """SIGTERM; it unwinds the stack like Ctrl-C."""


@contextlib.contextmanager
def interruptible(ends_process: bool) -> Iterator[list[KeyboardInterrupt]]:
    """Raise ``Terminated`` at SIGTERM, KeyboardInterrupt at Ctrl-C; yield the list of the raised
    errors.

    Ctrl-C stays ignored if it was, as in a shell's background job. If the process ends with the
    block, both signals are ignored from then on: the exit code is final.
    """
    raised = list[KeyboardInterrupt]()

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raised.append(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
        raise raised[-1]

    handlers = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handlers[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    try:
        yield raised
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_IGN if ends_process else handler)


@contextlib.contextmanager
def ended_by_signals(active: bool) -> Iterator[None]:
    """End the process ``PATIENCE_S`` seconds after a signal if the block has not ended by then."""
    if not active:
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ended = threading.Event()

    def watch() -> None:
        while received := os.read(reader, 1):
            if received[0] in _SIGNALS and not ended.wait(PATIENCE_S):
                os.write(
                    2,
                    b"promptcli: interrupted while it waited for other processes; `--resume`"
                    b" continues the run\n",
                )
                os._exit(128 + received[0])

    # Python writes a signal to it even while a library blocks the main thread
    previous_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(previous_writer)
        os.close(writer)  # wakes the thread
        thread.join()
        os.close(reader)
