"""What the library tells its caller while it works, and whether it may use the network.

Notes go to the logger ``promptcli``: the command line shows them on stderr, a program by its own logging settings. What
is about to use the network is said as a warning, which Python shows where no logging is set up.
"""

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

LOG = logging.getLogger("promptcli")
_OFFLINE: ContextVar[bool] = ContextVar("promptcli_offline", default=False)


@contextlib.contextmanager
def offline(wanted: bool = True) -> Iterator[None]:
    """Forbid the network in the block where it is wanted; a block inside cannot allow it again."""
    before = _OFFLINE.set(wanted or _OFFLINE.get())
    try:
        yield
    finally:
        _OFFLINE.reset(before)


def is_offline() -> bool:
    """Return whether the network is forbidden."""
    return _OFFLINE.get()


def note(message: str) -> None:
    """Say one line about the work: what was assumed, chosen or left out."""
    LOG.info("%s", message)


def note_network(message: str) -> None:
    """Say one line before the network is used."""
    LOG.warning("%s", message)
