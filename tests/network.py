"""Tests have no network: what would leave this machine is counted and fails as unreachable."""

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

#: The attempts, each with its event and its destination.
attempts: list[str] = []
#: Called at every attempt.
listeners: list[Callable[[], None]] = []

_ASKING = ("socket.getaddrinfo", "socket.gethostbyname")
_WATCHED = frozenset(("socket.connect", "socket.sendto", *_ASKING))
_LOCAL = ("localhost", "::1", "0.0.0.0", "::", "", None)


def _is_local(host: Any) -> bool:
    host = host.decode() if isinstance(host, bytes) else host
    return host in _LOCAL or host == socket.gethostname() or host.startswith("127.")


def _is_address(host: Any) -> bool:
    """Return whether a host is an address, so that no name server is asked."""
    host = host.decode() if isinstance(host, bytes) else host
    with contextlib.suppress(OSError):
        return bool(socket.inet_aton(host))
    with contextlib.suppress(OSError):
        return bool(socket.inet_pton(socket.AF_INET6, host.partition("%")[0]))
    return False


def _audit(event: str, given: tuple[Any, ...]) -> None:
    if event not in _WATCHED:  # nearly all of a million events
        return
    if event in _ASKING:
        where = given[0]
        if _is_local(where) or _is_address(where):
            return
    else:
        where = given[1]  # a path is a socket of this machine
        if not isinstance(where, tuple) or _is_local(where[0]):
            return
    for listener in listeners:
        listener()
    attempts.append(f"{event} {where}")
    raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))


def block() -> None:
    """Cut this process and its forks off the network; sockets of this machine still work."""
    sys.addaudithook(_audit)
