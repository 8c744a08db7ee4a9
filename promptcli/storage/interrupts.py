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

    In another thread it does nothing: signals interrupt only the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Any] = {}
    for delayed in _SIGNALS:
        handler = signal.getsignal(delayed)
        if callable(handler):
            handlers[delayed] = handler
            signal.signal(delayed, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in received[:1]:
            handlers[number](number, frame)
