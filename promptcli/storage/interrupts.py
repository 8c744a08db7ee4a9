"""Ctrl-C and SIGTERM delayed until a critical block is complete."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block, if Python handles them.

    Only the main thread is affected: signals do not interrupt others.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Any] = {}
    for watched in _SIGNALS:
        handler = signal.getsignal(watched)
        if callable(handler):
            handlers[watched] = handler
            signal.signal(watched, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in came[:1]:
            handlers[number](number, frame)
