"""Threads for requests whose clients may have stopped waiting."""

import threading

#: Name of a thread while it computes what the end of the process does not wait for.
COMPUTING = "promptcli-computing"


def computing() -> bool:
    """Return whether a thread with that name is running."""
    return any(thread.name == COMPUTING for thread in threading.enumerate())
