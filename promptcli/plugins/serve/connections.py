"""The connections of a server, which close if their clients neither send nor read, and its end
after a signal.
"""

import asyncio
import errno
import os
import resource
import select
import socket
import threading
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from promptcli import notes
from promptcli.plugins.serve.service import Service

#: The start of a request must arrive in this time after the connection or the previous answer.
_HEAD_TIMEOUT_S = 30.0
#: A client that reads nothing of its answer in this time is cut off.
_READ_TIMEOUT_S = 30.0
#: After a signal, connections are accepted for this time; each is closed after its answer.
_LAST_ACCEPT_S = 0.3
#: Then, accepted requests are answered for this time; the process ends within 60 seconds of the
#: signal.
DRAIN_TIMEOUT_S = 50
#: Descriptors reserved for files: indexes that are opened again, and libraries that are loaded
#: late.
_RESERVED_DESCRIPTORS = 32
#: Connections accepted at a time. They use the reserved descriptors until asyncio lets us close
#: others.
_ACCEPTED_AT_A_TIME = 16
_BACKLOG = 2048
_MIN_CONNECTIONS = 4


class Connections(ServerState):
    """The open connections of a server, up to ``max_count``."""

    def __init__(self, max_count: int) -> None:
        super().__init__()
        self.max_count = max_count
        self._has_warned = False

    def warn(self, reason: str) -> None:
        """Log once that connections are closed."""
        if not self._has_warned:
            self._has_warned = True
            notes.warn(
                f"{reason}; those that have waited longest for a request are closed, without"
                " further lines; allow more connections, or more descriptors (`ulimit -n`)"
            )

    async def close_late_connections(self) -> None:
        """Close late connections, until cancelled."""
        while True:
            await asyncio.sleep(1)
            for connection in self.open_connections():
                connection.close_if_late()

    def idle_connections(self) -> "list[Connection]":
        """Return the connections without a request in progress."""
        return [connection for connection in self.open_connections() if connection.is_idle]

    def open_connections(self) -> "list[Connection]":
        """Return the connections that are not being closed."""
        return [
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and not connection.transport.is_closing()
        ]


class Connection(H11Protocol):
    """A connection that is closed if no request arrives, or if its client does not read."""

    server_state: Connections

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.idle_since = self.loop.time()  #: time of the connection or of the last answer's end
        self._unsent_bytes = 0  # at the last check
        self._last_read = self.idle_since  # time at which the client last read something

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection that has waited longest for a request, if there are too many.

        If none waits, the new connection is closed.
        """
        super().connection_made(transport)
        state = self.server_state
        if len(state.open_connections()) > state.max_count:
            idle = state.idle_connections()
            min(idle, key=lambda other: other.idle_since, default=self).transport.abort()
            state.warn(f"{state.max_count:,} connections are open, the allowed maximum")

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def close_if_late(self) -> None:
        """Close the connection if its client has sent no request, or read nothing of its answer,
        for too long.
        """
        now = self.loop.time()
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes != self._unsent_bytes or not unsent_bytes:
            self._last_read = now
        self._unsent_bytes = unsent_bytes
        is_waiting = self.is_idle and not unsent_bytes
        if is_waiting and now - self.idle_since > _HEAD_TIMEOUT_S:
            self.transport.abort()
        elif now - self._last_read > _READ_TIMEOUT_S:
            self.transport.abort()


class Server(uvicorn.Server):
    """Uvicorn's server; after a signal, it first answers what its clients have already sent."""

    def __init__(self, config: uvicorn.Config, service: Service, max_connections: int) -> None:
        super().__init__(config)
        self._service = service
        self.server_state = self._connections = Connections(max_connections)
        self._closing_late: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._handle)
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_BACKLOG)  # asyncio has set it to the connections accepted at a time
        self._closing_late = asyncio.create_task(self._connections.close_late_connections())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the pending connections and read their requests, then close."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _LAST_ACCEPT_S
        while loop.time() < end and not self.force_exit:
            poll = select.poll()
            for listening in sockets or ():
                poll.register(listening, select.POLLIN)
            for connection in self._connections.idle_connections():
                poll.register(connection.transport.get_extra_info("socket"), select.POLLIN)
            if not poll.poll(0):
                break
            await asyncio.sleep(0)  # the loop accepts and reads
        await super().shutdown(sockets)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if getattr(context.get("exception"), "errno", None) in (errno.EMFILE, errno.ENFILE):
            self._connections.warn("all descriptors are in use")  # asyncio tries again every second
        else:
            loop.default_exception_handler(context)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self._service.stopping
        self._service.stopping = True
        closing = threading.Timer(_LAST_ACCEPT_S, setattr, (self, "should_exit", True))
        closing.daemon = True
        closing.start()


def make_server(app: Any, service: Service) -> Server:
    """Return the server of an application, with as many connections as descriptors allow."""
    settings = service.settings
    max_connections = settings.max_connections
    max_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if max_descriptors != resource.RLIM_INFINITY:
        free = max_descriptors - len(os.listdir("/dev/fd")) - _RESERVED_DESCRIPTORS
        max_connections = max(min(max_connections, free), _MIN_CONNECTIONS)
    # the other half may be idle, and is closed for new connections
    service.max_requests = min(settings.max_requests, max(max_connections // 2, 1))
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        backlog=_ACCEPTED_AT_A_TIME,
        timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
        log_config=None,
        log_level="critical",
        access_log=False,
    )
    return Server(config, service, max_connections)
