"""The models and indexes of a server: requests are read and checked, and their texts are encoded in
shared batches.
"""

import asyncio
import functools
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from promptcli import errors
from promptcli.encoder.embeddings import Embeddings
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import PromptcliError
from promptcli.plugins.serve.metrics import Metrics
from promptcli.plugins.serve.settings import ServeSettings
from promptcli.retrieval.sentence_index import SentenceIndex
from promptcli.retrieval.vectors import set_search_threads
from promptcli.threads import Worker

#: Key in a request's scope: bytes that the request holds, see ``Service.hold``.
HELD_BYTES = "promptcli.held_bytes"

Result = TypeVar("Result")
Body = TypeVar("Body", bound=msgspec.Struct)

#: Seconds that an idle server waits for more requests to encode together.
_GATHER_SECONDS = 0.002
#: Seconds in which a request's body must arrive.
_BODY_SECONDS = 60.0
#: Bytes of bodies and answers of all requests in progress, above which new ones are refused.
_MOST_HELD_BYTES = 512 << 20
#: Characters of a library's message quoted in an answer.
_MESSAGE = 200
#: Budget of a round in characters. A text costs min(its length, ``_MOST_COUNTED``) +
#: ``_PER_TEXT``, because models cut longer texts.
CHARACTERS_PER_ROUND = 1 << 17
_PER_TEXT = 16
_MOST_COUNTED = 4096


class RequestError(HTTPException):
    """A refusal with the fields of OpenAI's error object."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}
        super().__init__(status, message, headers.get(status))
        self.param = param
        self.code = code


@dataclass(eq=False)
class _Job:
    """The texts of one request."""

    encoder: Encoder
    texts: Sequence[str]
    result: "asyncio.Future[Embeddings]"
    taken: int = 0  #: texts that a round has taken
    encoded: list[Embeddings] = field(default_factory=list)

    def add(self, encoded: Embeddings) -> None:
        """Add the texts of a round; if they were the last, the result is set."""
        self.encoded.append(encoded)
        if self.taken < len(self.texts) or self.result.done():
            return
        joined = Embeddings.join(self.encoded)
        if np.isfinite(joined.vectors).all():
            self.result.set_result(joined)
        else:
            self.fail(PromptcliError("a vector is not finite; try dtype float32"))

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


#: The jobs of a round that share an encoder, one per text, and the texts.
_Turns = dict[Encoder, tuple[list[_Job], list[str]]]


class Batcher:
    """Encodes on one thread; requests that wait at the same time share batches.

    A round takes one text of each waiting request in turn, so that a long request does not delay a
    short one.
    """

    def __init__(self, settings: ServeSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._queue: asyncio.Queue[_Job] = asyncio.Queue()
        self._thread = Worker()
        self._running: asyncio.Task[None] | None = None  #: lives while texts wait
        self.waiting = 0  #: texts waiting for a round
        self.rounds = 0  #: so far

    async def encode(self, encoder: Encoder, texts: Sequence[str]) -> Embeddings:
        """Return n texts encoded; if cancelled, texts still waiting are dropped."""
        if self.waiting and self.waiting + len(texts) > self._settings.max_waiting:
            busy = f"the server is busy: {self.waiting:,} texts are waiting; try again"
            raise RequestError(429, busy, code="queue_full")
        job = _Job(encoder, texts, asyncio.get_running_loop().create_future())
        self.waiting += len(texts)
        self._queue.put_nowait(job)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        try:
            return await job.result
        finally:
            self.waiting -= len(texts) - job.taken

    async def _run(self) -> None:
        await asyncio.sleep(_GATHER_SECONDS)
        while turns := self._next_round():
            self.rounds += 1
            for encoder, (jobs, texts) in turns.items():
                await self._encode(encoder, jobs, texts)

    def _next_round(self) -> _Turns:
        """Take texts from the queue by encoder, one of each request in turn.

        Cancelled requests are removed.
        """
        turns: _Turns = defaultdict(lambda: ([], []))
        room = CHARACTERS_PER_ROUND
        while room > 0 and not self._queue.empty():
            job = self._queue.get_nowait()
            if job.result.done():
                continue
            text = job.texts[job.taken]
            jobs, texts = turns[job.encoder]
            jobs.append(job)
            texts.append(text)
            room -= min(len(text), _MOST_COUNTED) + _PER_TEXT
            job.taken += 1
            self.waiting -= 1
            if job.taken < len(job.texts):
                self._queue.put_nowait(job)
        return turns

    async def _encode(self, encoder: Encoder, jobs: Sequence[_Job], texts: Sequence[str]) -> None:
        """Encode texts, and give each job its rows: row i belongs to ``jobs[i]``."""
        rows_of = defaultdict[_Job, list[int]](list)
        for row, job in enumerate(jobs):
            rows_of[job].append(row)
        try:
            loop = asyncio.get_running_loop()
            encoded = await loop.run_in_executor(self._thread, encoder.encode_report, texts)
        except Exception as error:
            if len(rows_of) == 1:
                jobs[0].fail(error)
                return
            # one job may be at fault; the others are answered
            for job, rows in rows_of.items():
                await self._encode(encoder, [job] * len(rows), [texts[row] for row in rows])
            return
        self._metrics.sentences.inc(len(texts))
        self._metrics.truncated.inc(int(encoded.truncated.sum()))
        for job, rows in rows_of.items():
            job.add(encoded.take(np.array(rows)))


class Service:
    """The state shared by all handlers: the models and indexes that requests name; the first ones
    are the defaults.
    """

    def __init__(
        self,
        models: Mapping[str, Encoder],
        indexes: Mapping[str, SentenceIndex] | None = None,
        settings: ServeSettings | None = None,
        *,
        normalize: bool = True,
        key: str | None = None,  # required of every request except the page and ``/health``
        threads: int | None = None,  # of a search
    ) -> None:
        self.models = dict(models)
        self.indexes = dict(indexes or {})
        self.settings = settings or ServeSettings()
        self.normalize = normalize
        self.authorization = f"Bearer {key}".encode() if key else None  #: required of a request
        for encoder in (
            *self.models.values(),
            *(index.open_encoder() for index in self.indexes.values()),
        ):
            assert encoder.fingerprint and encoder.width  # computed before the first request
        self.stopping = False  #: connections are closed after their answer
        self.in_work = 0  #: requests in progress
        #: in work; the server lowers it if it has few descriptors
        self.most_requests = self.settings.max_requests
        self.dropped = 0  #: requests that were not answered when the server stopped
        self.held_bytes = 0  #: of bodies and answers in memory
        self.metrics = Metrics()
        self.batcher = Batcher(self.settings, self.metrics)
        self.metrics.watch(
            "requests_in_work", "Requests that wait for their answer.", lambda: self.in_work
        )
        self.metrics.watch(
            "waiting_sentences",
            "Sentences that wait to be encoded.",
            lambda: self.batcher.waiting,
        )
        # FAISS keeps the number of threads for each thread that calls it
        prepare = None
        if threads is not None:
            prepare = functools.partial(set_search_threads, threads)
        self._thread = Worker(prepare)
        #: one encoder for each role, so that requests share batches
        self.in_role = functools.cache(_encoder_in_role)

    def model(self, name: str | None) -> Encoder:
        """Return the encoder of that name; None: the default."""
        return _look_up("model", name, self.models)

    def index(self, name: str | None) -> SentenceIndex:
        """Return the index of that name; None: the first."""
        if not self.indexes:
            raise RequestError(
                404, "no index is served; start the server with one", code="index_not_found"
            )
        return _look_up("index", name, self.indexes)

    def hold(self, request: Request, size: int) -> None:
        """Count bytes that a request holds until it is answered.

        It is refused if it and the other requests together hold too many.
        """
        before = request.scope.get(HELD_BYTES, 0)
        is_alone = before == self.held_bytes
        request.scope[HELD_BYTES] = before + size
        self.held_bytes += size
        if self.held_bytes > _MOST_HELD_BYTES and not is_alone:
            message = (
                f"the server is busy: bodies and answers of {self.held_bytes >> 20} MiB are in"
                " memory; try again"
            )
            raise RequestError(429, message, code="too_many_bytes")

    def check_answer_size(self, size: int, param: str, cure: str) -> None:
        """Refuse an answer larger than the limit."""
        if size > self.settings.max_answer_mib << 20:
            message = f"the answer is larger than {self.settings.max_answer_mib} MiB; {cure}"
            raise RequestError(400, message, param=param, code="answer_too_large")

    async def read(self, request: Request, kind: type[Body]) -> Body:
        content_type = request.headers.get("content-type", "")
        if content_type.partition(";")[0].strip().lower() != "application/json":
            # a page of another site could send any other type without asking first
            raise RequestError(415, "send JSON, with the header Content-Type: application/json")
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    self.hold(request, len(chunk))
                    if len(body) > self.settings.max_body_mib << 20:
                        message = (
                            f"the body is larger than {self.settings.max_body_mib} MiB; send fewer"
                            " texts"
                        )
                        raise RequestError(413, message, code="body_too_large")
        except TimeoutError:
            raise RequestError(
                408, f"the body did not arrive within {_BODY_SECONDS:.0f} seconds"
            ) from None
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            fields = ", ".join(kind.__struct_fields__)
            wrong = errors.one_line(error, _MESSAGE).replace("`", '"')
            message = f"{wrong}; {request.url.path} takes {fields}"
            raise RequestError(400, message) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"the body is not JSON of UTF-8 text: {errors.one_line(error, _MESSAGE)}"
            raise RequestError(400, message, code="no_json") from None

    def texts(self, value: Any, param: str) -> list[str]:
        """Return a text or a list of texts as a list, each within the limits."""
        texts = value if isinstance(value, list) else [value]
        refused = functools.partial(RequestError, 400, param=param)
        most, longest = self.settings.max_texts, self.settings.max_characters
        if not texts:
            raise refused(f"{param} is empty; give a text or a list of texts")
        if len(texts) > most:
            raise refused(
                f"{param} has {len(texts):,} texts; give at most {most:,}", code="too_many_texts"
            )
        for number, text in enumerate(texts):
            if type(text) in (int, list):
                raise refused(
                    f"{param} holds token ids of another vocabulary; send text (LangChain:"
                    " check_embedding_ctx_length=False)",
                    code="tokens_refused",
                )
            if not isinstance(text, str) or not text:
                raise refused(
                    f"{param}[{number}] is empty or not a text; give a text or a list of texts"
                )
            if len(text) > longest:
                raise refused(
                    f"{param}[{number}] has {len(text):,} characters; give at most {longest:,}",
                    code="text_too_long",
                )
        return texts

    async def encode(self, request: Request, encoder: Encoder, texts: Sequence[str]) -> Embeddings:
        return await _while_connected(request, self.batcher.encode(encoder, texts))

    async def compute(
        self, request: Request, function: Callable[[Callable[[], None]], Result]
    ) -> Result:
        """Return a function's result, computed on the thread of searches.

        The function gets a callback that raises once the result is of no use: the client has gone,
        or the server has stopped.
        """
        abandoned = threading.Event()

        def check_cancelled() -> None:
            if abandoned.is_set():
                raise ClientDisconnect

        try:
            loop = asyncio.get_running_loop()
            return await _while_connected(
                request, loop.run_in_executor(self._thread, function, check_cancelled)
            )
        finally:
            abandoned.set()


def _look_up(kind: str, name: str | None, served: Mapping[str, Result]) -> Result:
    """Return the model or index of a name; None: the first."""
    if name is None:
        name = next(iter(served))
    if name not in served:
        message = f"{kind} {name!r} is not served; valid: {', '.join(served)}"
        raise RequestError(404, message, param=kind, code=f"{kind}_not_found")
    return served[name]


def _encoder_in_role(encoder: Encoder, role: str) -> Encoder:
    known = encoder.roles()
    if role not in known:
        raise RequestError(
            400,
            f"input_type {role!r} is not allowed; valid: {', '.join(known)}",
            param="input_type",
        )
    return encoder.in_role(role)


async def _while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """Return the result of work, which is cancelled if the client disconnects."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    watching = asyncio.create_task(disconnected())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        watching.cancel()
        working.cancel()
