"""What every handler has: what is served, the encoding thread, and waiting for it without blocking the event loop."""

import asyncio
import contextlib
import hmac
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from promptcli.encoder.encoded import Encoded, Progress
from promptcli.encoder.encoder import Encoder
from promptcli.errors import NotFoundError, UsageError
from promptcli.serving.batcher import Batcher, BusyError, StoppedError
from promptcli.serving.metrics import Metrics
from promptcli.serving.served import Served
from promptcli.serving.settings import ServeSettings
from promptcli.serving.wire import Body, RequestError, read, texts_of

Result = TypeVar("Result")


class Service:
    """A server without its sockets.

    Args:
        served: Models and indexes.
        settings: Limits.
        key: Asked of every request but the page and ``/health``; None asks nothing.
        log: Takes a line on what goes wrong.
        prepare: Called first on the encoding thread.
    """

    def __init__(
        self,
        served: Served,
        settings: ServeSettings | None = None,
        *,
        key: str | None = None,
        log: Callable[[str], None] = lambda line: None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.served, self.settings, self.log = served, settings or ServeSettings(), log
        self._keys = [] if key is None else [key.encode("utf-8", "surrogateescape")]
        with contextlib.suppress(UnicodeEncodeError):  # as some clients send it
            self._keys += [] if key is None else [key.encode("latin-1")]
        self.stopping = False  #: what is in work is finished; connections are closed after their answer
        self._made: dict[str, Future[Any]] = {}  #: what was made once for all requests, by name
        served.prepare()
        self.batcher = Batcher(
            gather=self.settings.gather_ms / 1000, most_waiting=self.settings.max_waiting, prepare=prepare
        )
        self.metrics = Metrics(self.batcher)

    def admits(self, given: str) -> bool:
        """Return whether an Authorization header, its bytes as Latin-1, holds the key."""
        sent = given.encode("latin-1", "replace")
        return not self._keys or any(hmac.compare_digest(sent, b"Bearer " + key) for key in self._keys)

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """Return the request's body; see ``wire.read``."""
        return await read(request, kind, self.settings)

    def texts(self, given: object, param: str) -> list[str]:
        """Return texts checked; see ``wire.texts_of``."""
        return texts_of(given, param, self.settings)

    async def encode(self, request: Request, encoder: Encoder, texts: Sequence[str]) -> Encoded:
        """Return the vectors of n texts, in batches shared with other requests."""
        return await self._wait(request, lambda: self.batcher.encode(encoder, texts))

    async def work(self, request: Request, function: Callable[[Progress], Result]) -> Result:
        """Return what a function makes on the encoding thread; see ``Batcher.call``."""
        return await self._wait(request, lambda: self.batcher.call(function))

    async def once(self, request: Request, name: str, function: Callable[[], Result]) -> Result:
        """Return what a function makes beside the encoding thread, called for the first request of that name only."""
        if name not in self._made:
            self._made[name] = _beside(function)
        return await self._wait(request, lambda: asyncio.shield(asyncio.wrap_future(self._made[name])))

    async def _wait(self, request: Request, begin: "Callable[[], Future[Result] | asyncio.Future[Result]]") -> Result:
        """Wait for the encoding thread, or until the client leaves, whose work is then dropped."""
        try:
            work = asyncio.wrap_future(begin())
            left = asyncio.ensure_future(_left(request.receive))
            try:
                await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    raise ClientDisconnect
                return work.result()
            finally:
                left.cancel()
                work.cancel()
        except BusyError as error:
            raise RequestError(
                429, str(error), code="queue_full", headers={"Retry-After": str(error.seconds)}
            ) from None
        except (StoppedError, asyncio.CancelledError):
            if not self.batcher.alive or self.stopping:
                raise RequestError(503, "the server is stopping", code="stopping") from None
            raise
        except NotFoundError as error:
            raise RequestError(404, str(error)) from None
        except UsageError as error:
            raise RequestError(400, str(error)) from None


def _beside(function: Callable[[], Result]) -> "Future[Result]":
    """Call a function on a thread of its own, which holds up no encoding, and no end of the program."""
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


async def _left(receive: Callable[[], Awaitable[Message]]) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
