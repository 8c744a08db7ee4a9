"""What every handler has: what is served, bodies read and checked, and the encoding thread, waited for."""

import asyncio
import contextlib
import functools
import hmac
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from promptcli.encoder.encoded import Encoded, Progress
from promptcli.encoder.encoder import Encoder
from promptcli.errors import NotFoundError, UsageError, one_line
from promptcli.index.vector_index import VectorIndex
from promptcli.recipe import RECIPES
from promptcli.serving.batcher import Batcher, BusyError, StoppedError
from promptcli.serving.metrics import Metrics
from promptcli.serving.settings import ServeSettings
from promptcli.serving.wire import RequestError

Result = TypeVar("Result")
Body = TypeVar("Body", bound=msgspec.Struct)

#: Seconds until a body must be there.
_BODY_SECONDS = 60.0
#: Characters of a library's message in one of ours.
_MESSAGE = 200
#: A body too large is read to its end all the same, up to so many times the limit: else many clients see no answer.
_READ_ON = 8


@dataclass(frozen=True)
class ServedIndex:
    """An index and the encoder of its rows."""

    name: str
    index: VectorIndex
    encoder: Encoder


@dataclass(frozen=True)
class Served:
    """What a server serves."""

    models: dict[str, Encoder]  #: by the names that requests give; the first is the default
    indexes: dict[str, ServedIndex] = field(default_factory=dict)
    normalize: bool = False  #: vectors go out with length 1
    _compared: dict[str, dict[str, Encoder]] = field(default_factory=dict)

    def prepare(self) -> None:
        """Do what the first request would have to wait for."""
        for encoder in (*self.models.values(), *(served.encoder for served in self.indexes.values())):
            assert encoder.fingerprint and encoder.width

    def model(self, name: str | None) -> Encoder:
        """Return the encoder of that name, or the default.

        Raises:
            RequestError: 404.
        """
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            there = ", ".join(self.models)
            raise RequestError(
                404, f"model {name!r} is not served; there are: {there}", param="model", code="model_not_found"
            )
        return self.models[name]

    def searched(self, names: Sequence[str] | None) -> list[ServedIndex]:
        """Return the indexes of those names, or all; their scores can be compared.

        Raises:
            RequestError: 404 no such index; 400 indexes of different encoders.
        """
        wanted = dict.fromkeys(names or self.indexes)
        missing = [name for name in wanted if name not in self.indexes]
        if missing or not wanted:
            there = f"there are: {', '.join(self.indexes)}" if self.indexes else "none is: give the server an index"
            asked = f"index {missing[0]!r} is not served" if missing else "no index is served"
            raise RequestError(404, f"{asked}; {there}", param="index", code="index_not_found")
        chosen = [self.indexes[name] for name in wanted]
        first = chosen[0]
        for other in chosen[1:]:
            if other.encoder.fingerprint != first.encoder.fingerprint:
                raise RequestError(
                    400,
                    f"indexes {first.name!r} and {other.name!r} come from different encoders, whose scores cannot be"
                    " compared; search one at a time",
                    param="index",
                )
        return chosen

    def compared(self, name: str | None) -> dict[str, Encoder]:
        """Return a model, and every named recipe that its backbone can do without fitting, by name."""
        encoder = self.model(name)
        label = name or next(iter(self.models))
        if label not in self._compared:
            made = {label: encoder}
            for recipe_name, recipe in RECIPES.items():
                try:
                    made[recipe_name] = Encoder(recipe.replace(backbone=encoder.recipe.backbone), encoder.backbone, {})
                except UsageError:  # it needs fitted numbers, or what the backbone does not have
                    continue
            self._compared[label] = made
        return self._compared[label]


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
        """Return the request's JSON body.

        Raises:
            RequestError: 413 too large, 408 too slow, 400 no JSON or not of that kind.
        """
        most, closes = self.settings.max_body_mib << 20, {"Connection": "close"}
        too_large = RequestError(
            413,
            f"the body is larger than {self.settings.max_body_mib} MiB; send fewer texts in a request",
            code="body_too_large",
            headers=closes,
        )
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and float(declared) > _READ_ON * most:
            raise too_large
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= most:
                        body += chunk
                    elif size > _READ_ON * most:
                        break
        except TimeoutError:
            raise RequestError(
                408, f"the body did not come within {_BODY_SECONDS:.0f} seconds", headers=closes
            ) from None
        if size > most:
            raise too_large
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            raise RequestError(
                400, f"the body is not what {request.url.path} takes: {one_line(error, _MESSAGE)}"
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(400, f"the body is no JSON: {one_line(error, _MESSAGE)}", code="no_json") from None

    def texts(self, given: Any, param: str) -> list[str]:
        """Return a text or a list of texts as a list.

        Raises:
            RequestError: 400, neither; too many, or one too long.
        """
        texts = given if isinstance(given, list) else [given]
        refused = functools.partial(RequestError, 400, param=param)
        if not texts:
            raise refused(f"{param} is empty; give a text or a list of texts")
        if len(texts) > self.settings.max_texts:
            most = f"{param} has {len(texts):,} texts; a request takes at most {self.settings.max_texts:,}"
            raise refused(most, code="too_many_texts")
        for number, text in enumerate(texts):
            if isinstance(text, int | list) and not isinstance(text, bool):
                raise refused(
                    f"{param} holds token numbers, which belong to another model's vocabulary; send text"
                    " (LangChain: check_embedding_ctx_length=False)",
                    code="tokens_refused",
                )
            if not isinstance(text, str):
                raise refused(f"{param}[{number}] is no text; give a text or a list of texts")
            if len(text) > self.settings.max_characters:
                most = f"a text takes at most {self.settings.max_characters:,}"
                raise refused(f"{param}[{number}] has {len(text):,} characters; {most}", code="text_too_long")
        return texts

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
