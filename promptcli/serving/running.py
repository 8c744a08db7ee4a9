"""A service on a socket: bound before anything slow is done, served until a signal, stopped with nothing lost."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from promptcli.errors import PromptcliError
from promptcli.serving.app import make_app
from promptcli.serving.service import Service
from promptcli.serving.settings import ServeSettings

#: Seconds after the signal in which connections are still accepted: those that were on their way are answered.
_GRACE = 0.3
#: Seconds after which a client that stands still is cut off while the server stops.
_STALLED = 5.0


def bind(settings: ServeSettings) -> socket.socket:
    """Return a socket bound to the settings' address, not listening yet.

    Raises:
        PromptcliError: the port is in use or not allowed, or the address is not this machine's.
    """
    where = f"{settings.host} port {settings.port}"
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(address)
        except OSError:
            made.close()
            raise
    except OSError as error:
        why = {errno.EADDRINUSE: "it is in use", errno.EACCES: "that needs special rights"}.get(error.errno or 0)
        raise PromptcliError(
            f"cannot listen on {where}: {why or error.strerror}; give another `port` (0: a free one) or `host`"
        ) from None
    except ValueError:  # no letters of a host's name, or too many
        raise PromptcliError(f"cannot listen on {where[:80]!r}: that is no host; give another `host`") from None
    return made


def serve(service: Service, listening: socket.socket, *, ready: Callable[[str], None] = lambda url: None) -> int | None:
    """Serve until SIGTERM or Ctrl-C, then finish what was accepted; a second signal ends at once.

    Args:
        service: What to serve; its encoding thread has ended afterwards.
        listening: Of ``bind``.
        ready: Called with the address once requests are accepted.

    Returns:
        The second signal's number, or None where everything was finished.

    Raises:
        PromptcliError: another program listens there by now.
    """
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    config = uvicorn.Config(make_app(service), http="h11", ws="none", log_config=None, access_log=False)
    config.load()
    server = _Server(config, service, lambda: ready(_url(service.settings.host, listening)))
    try:
        listening.listen(config.backlog)
        asyncio.run(server.serve(sockets=[listening]))
    except OSError as error:
        raise PromptcliError(f"cannot listen: {error.strerror}; give another `port` (0: a free one)") from None
    finally:
        service.batcher.close(abandon=True)
        listening.close()
    return server.second


def _url(host: str, listening: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listening.getsockname()[1]}"


class _Server(uvicorn.Server):
    """Uvicorn's server with signals of ours: the first drains, the second ends."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready
        self.second: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept requests, and say so."""
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals while the server runs, in the main thread; elsewhere its owner calls ``stop``."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.getsignal(number) for number in numbers}
        loop = asyncio.get_running_loop()
        for number in numbers:
            loop.add_signal_handler(number, self.stop, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    def stop(self, number: int) -> None:
        """Begin to stop; asked again, end at once."""
        if self._service.stopping:
            self.second, self.force_exit, self.should_exit = number, True, True
        else:
            self._service.stopping = True
            asyncio.get_running_loop().call_later(_GRACE, setattr, self, "should_exit", True)
            self._drop_stalled({})

    def _drop_stalled(self, before: dict[Any, int]) -> None:
        """Cut clients off that neither sent the rest of a body nor read an answer since the look ``before``."""
        waiting: dict[Any, int] = {}
        for connection in list[Any](self.server_state.connections):
            cycle, transport = connection.cycle, connection.transport
            if cycle is not None and not cycle.response_complete:
                unread = transport.get_write_buffer_size()
                if unread or cycle.more_body:
                    waiting[connection] = unread or -len(cycle.body) - 1
                if connection in before and waiting.get(connection) == before[connection]:
                    transport.abort()
        asyncio.get_running_loop().call_later(_STALLED, self._drop_stalled, waiting)
