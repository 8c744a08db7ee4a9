"""An end within seconds for a command that hangs in a library, where Python answers no signal.

A process of several waits for the others inside torch, for half an hour; one of them may never
come.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

PATIENCE = 10.0  #: seconds from SIGTERM or Ctrl-C to the end of the process
_WATCHED = (signal.SIGTERM, signal.SIGINT)


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
    before = signal.set_wakeup_fd(
        writer, warn_on_full_buffer=False
    )  # written to even while a library holds on
    watch = threading.Thread(target=_watch, args=(reader, ended), daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(writer)  # which wakes the watch
        watch.join()
        os.close(reader)


def _watch(reader: int, ended: threading.Event) -> None:
    while received := os.read(reader, 1):
        number = received[0]
        if number in _WATCHED and not ended.wait(PATIENCE):
            os.write(
                2,
                b"promptcli: interrupted while it waited for other processes; `--resume` continues"
                b" the run\n",
            )
            os._exit(128 + number)
