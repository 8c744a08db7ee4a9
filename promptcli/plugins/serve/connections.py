"""Connections whose clients send nothing or never read, and the end of a server after a signal."""

import asyncio
import errno
import os
import resource
import select
import socket
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from promptcli import notes
from promptcli.plugins.serve.service import Service

#: Seconds in which a request's head must arrive after the connection or the previous answer.
_HEAD_SECONDS = 30.0
#: Seconds after which a client that reads nothing of its answer is cut off.
_UNREAD_SECONDS = 30.0
#: Seconds after a signal in which connections are still accepted, each closed after its answer.
_CLOSING_SECONDS = 0.3
#: Seconds after that in which accepted requests are answered; the process has ended 60 seconds
#: after the signal.
DRAIN_SECONDS = 50
#: Descriptors reserved for files: indexes that are read again, and libraries that are loaded
#: late.
_FILES = 32
#: Connections that are accepted at a time; asyncio makes room for them only afterwards, out of
#: ``_FILES``.
_AT_A_TIME = 16
_BACKLOG = 2048
_LEAST = 4


class Connections(ServerState):
    """The open connections, of which there are at most ``most``."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self._warned = False

    def make_room(self, new: "Connection") -> None:
        """Close the connection that has waited longest for a request, if there are too many.

        If none waits, the new one is closed.
        """
        if len(self.alive()) > self.most:
            min(self.idle(), key=lambda each: each.idle_since, default=new).transport.abort()
            self.warn(f"{self.most:,} connections are open, the allowed maximum")

    def warn(self, why: str) -> None:
        """Log once that connections are closed."""
        if not self._warned:
            self._warned = True
            notes.warn(
                f"{why}; those that have waited longest for a request are closed, without further"
                " lines; allow more connections, or more descriptors (`ulimit -n`)"
            )

    async def close_late_ones(self) -> None:
        """Close late connections, until cancelled."""
        while True:
            await asyncio.sleep(1)
            for connection in self.alive():
                connection.close_if_late()

    def idle(self) -> "list[Connection]":
        """Return the connections without a request in progress."""
        return [each for each in self.alive() if each.is_idle]

    def alive(self) -> "list[Connection]":
        """Return the connections that are not being closed."""
        return [
            each
            for each in self.connections
            if isinstance(each, Connection) and not each.transport.is_closing()
        ]


class Connection(H11Protocol):
    """A connection; it is closed if no request arrives, or if its client does not read."""

    server_state: Connections

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.idle_since = self.loop.time()  #: The connection, or the end of the last answer.
        self._unsent = 0  #: Bytes that the client has not taken.
        self._taken_at = self.idle_since  #: When it last took some.

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.server_state.make_room(self)

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def close_if_late(self) -> None:
        """Close the connection if its client has sent no request, or read nothing of its answer,
        for too long.
        """
        now = self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent or not unsent:
            self._taken_at = now
        self._unsent = unsent
        is_silent = self.is_idle and not unsent and now - self.idle_since > _HEAD_SECONDS
        if is_silent or now - self._taken_at > _UNREAD_SECONDS:
            self.transport.abort()


class Server(uvicorn.Server):
    """Uvicorn's server; after a signal, clients may first end their connections, so that no request
    is lost.
    """

    def __init__(self, config: uvicorn.Config, service: Service, most: int) -> None:
        super().__init__(config)
        self._service = service
        self.server_state = self._connections = Connections(most)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._handle)
        await super().startup(sockets)
        for listening in sockets or ():
            # asyncio also uses its number of accepted connections for this one
            listening.listen(_BACKLOG)
        self._closing_late_ones = asyncio.create_task(self._connections.close_late_ones())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the pending connections and read their requests, then close."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _CLOSING_SECONDS
        while self._has_unread(sockets or ()) and loop.time() < until and not self.force_exit:
            await asyncio.sleep(0)  # the loop accepts and reads
        await super().shutdown(sockets)

    def _has_unread(self, listening: Iterable[socket.socket]) -> bool:
        poll = select.poll()
        for each in listening:
            poll.register(each, select.POLLIN)
        for connection in self._connections.idle():
            poll.register(connection.transport.get_extra_info("socket"), select.POLLIN)
        return bool(poll.poll(0))

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if getattr(context.get("exception"), "errno", None) in (errno.EMFILE, errno.ENFILE):
            self._connections.warn("all descriptors are in use")  # asyncio tries again every second
        else:
            loop.default_exception_handler(context)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self._service.stopping
        self._service.stopping = True
        closing = threading.Timer(_CLOSING_SECONDS, setattr, (self, "should_exit", True))
        closing.daemon = True
        closing.start()


def make_server(app: Any, service: Service) -> Server:
    """Return the server of an application.

    It has at most as many connections as descriptors allow.
    """
    settings = service.settings
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    free = settings.max_connections
    if allowed != resource.RLIM_INFINITY:
        free = allowed - len(os.listdir("/dev/fd")) - _FILES
    most = max(min(settings.max_connections, free), _LEAST)
    # the others can be closed for new ones
    service.most_requests = min(settings.max_requests, max(most // 2, 1))
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        backlog=_AT_A_TIME,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        log_config=None,
        log_level="critical",
        access_log=False,
    )
    return Server(config, service, most)
