"""The models and indexes of a server: it reads and checks requests, and encodes their texts in
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
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from promptcli import errors
from promptcli.encoder.embeddings import Embeddings
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import PromptcliError
from promptcli.plugins.serve.settings import ServeSettings
from promptcli.retrieval.sentence_index import SentenceIndex
from promptcli.retrieval.vectors import set_search_threads
from promptcli.threads import Worker

#: Key in a request's scope: bytes that the request holds, see ``Service.hold``.
HELD_BYTES = "promptcli.held_bytes"

Result = TypeVar("Result")
Body = TypeVar("Body", bound=msgspec.Struct)

#: Time that an idle server waits for further requests to encode together.
_GATHER_S = 0.002
#: A request's body must arrive in this time.
_BODY_TIMEOUT_S = 60.0
#: If the bodies and answers of all requests in progress have more bytes, new requests are refused.
_MAX_HELD_BYTES = 512 << 20
#: Maximum number of characters of a library's message in an answer.
_MAX_MESSAGE_CHARACTERS = 200
#: Budget of a round in characters. A text costs its length, but at most the second number, because
#: models cut longer texts, and the third number in addition.
CHARACTERS_PER_ROUND = 1 << 17
_MAX_COUNTED_CHARACTERS = 4096
_CHARACTERS_PER_TEXT = 16
#: Upper bounds in the histogram of seconds: from one short text to thousands of texts.
_HISTOGRAM_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RequestError(HTTPException):
    """A refusal with the fields of OpenAI's error object."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}
        super().__init__(status, message, headers.get(status))
        self.param = param
        self.code = code


class Metrics:
    """Metrics for Prometheus; each server of a process has its own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "promptcli_requests",
            "Requests that have ended; the status of one without an answer is 499.",
            ("path", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "promptcli_request_seconds",
            "Seconds from the head of a request to the end of its answer.",
            ("path",),
            buckets=_HISTOGRAM_BOUNDS_S,
            registry=self.registry,
        )
        self.sentences = Counter(
            "promptcli_sentences", "Sentences that were encoded.", registry=self.registry
        )
        self.truncated = Counter(
            "promptcli_truncated_sentences",
            "Encoded sentences that were longer than the model's input.",
            registry=self.registry,
        )

    def watch(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a number that is read whenever the metrics are read."""
        Gauge(f"promptcli_{name}", description, registry=self.registry).set_function(value)


@dataclass(eq=False)
class _Job:
    """The texts of one request."""

    encoder: Encoder
    texts: Sequence[str]
    result: "asyncio.Future[Embeddings]"
    taken_texts: int = 0  #: number of texts that rounds have taken
    embeddings: list[Embeddings] = field(default_factory=list)

    def add(self, embeddings: Embeddings) -> None:
        """Add the embeddings of a round; after the last round, the result is set."""
        self.embeddings.append(embeddings)
        if self.taken_texts < len(self.texts) or self.result.done():
            return
        joined = Embeddings.join(self.embeddings)
        if np.isfinite(joined.vectors).all():
            self.result.set_result(joined)
        else:
            self.fail(PromptcliError("a vector is not finite; try dtype float32"))

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


#: By encoder: the texts of a round, and the job of each text.
_Round = dict[Encoder, tuple[list[_Job], list[str]]]


class Batcher:
    """Encodes on one thread; requests that wait at the same time share batches.

    A round takes one text of each waiting request in turn: a long request does not delay a short
    one.
    """

    def __init__(self, settings: ServeSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._queue: asyncio.Queue[_Job] = asyncio.Queue()
        self._thread = Worker()
        self._rounds_task: asyncio.Task[None] | None = None  # runs while texts wait
        self.waiting_texts = 0  #: number of texts that wait for a round
        self.rounds = 0  #: number of rounds so far

    async def encode(self, encoder: Encoder, texts: Sequence[str]) -> Embeddings:
        """Return n texts encoded; if cancelled, texts still waiting are dropped."""
        if self.waiting_texts and self.waiting_texts + len(texts) > self._settings.max_waiting:
            message = f"the server is busy: {self.waiting_texts:,} texts are waiting; try again"
            raise RequestError(429, message, code="queue_full")
        job = _Job(encoder, texts, asyncio.get_running_loop().create_future())
        self.waiting_texts += len(texts)
        self._queue.put_nowait(job)
        if self._rounds_task is None or self._rounds_task.done():
            self._rounds_task = asyncio.create_task(self._run_rounds())
        try:
            return await job.result
        finally:
            self.waiting_texts -= len(texts) - job.taken_texts

    async def _run_rounds(self) -> None:
        await asyncio.sleep(_GATHER_S)
        while texts_by_encoder := self._take_round():
            self.rounds += 1
            for encoder, (jobs, texts) in texts_by_encoder.items():
                await self._encode(encoder, jobs, texts)

    def _take_round(self) -> _Round:
        """Take texts from the queue, one of each request in turn, and remove cancelled requests."""
        texts_by_encoder: _Round = defaultdict(lambda: ([], []))
        budget = CHARACTERS_PER_ROUND
        while budget > 0 and not self._queue.empty():
            job = self._queue.get_nowait()
            if job.result.done():
                continue
            text = job.texts[job.taken_texts]
            jobs, texts = texts_by_encoder[job.encoder]
            jobs.append(job)
            texts.append(text)
            budget -= min(len(text), _MAX_COUNTED_CHARACTERS) + _CHARACTERS_PER_TEXT
            job.taken_texts += 1
            self.waiting_texts -= 1
            if job.taken_texts < len(job.texts):
                self._queue.put_nowait(job)
        return texts_by_encoder

    async def _encode(self, encoder: Encoder, jobs: Sequence[_Job], texts: Sequence[str]) -> None:
        """Encode texts, and give each job its embeddings; text i belongs to ``jobs[i]``."""
        rows_of_job = defaultdict[_Job, list[int]](list)
        for row, job in enumerate(jobs):
            rows_of_job[job].append(row)
        try:
            loop = asyncio.get_running_loop()
            embeddings = await loop.run_in_executor(self._thread, encoder.encode_report, texts)
        except Exception as error:
            if len(rows_of_job) == 1:
                jobs[0].fail(error)
                return
            # the texts of one job may be at fault; the other jobs are answered
            for job, rows in rows_of_job.items():
                await self._encode(encoder, [job] * len(rows), [texts[row] for row in rows])
            return
        self._metrics.sentences.inc(len(texts))
        self._metrics.truncated.inc(int(embeddings.truncated.sum()))
        for job, rows in rows_of_job.items():
            job.add(embeddings.take(np.array(rows)))


class Service:
    """The state that all handlers share: the models and indexes that requests name. The first model
    and the first index are the defaults.
    """

    def __init__(
        self,
        models: Mapping[str, Encoder],
        indexes: Mapping[str, SentenceIndex] | None = None,
        settings: ServeSettings | None = None,
        *,
        normalize: bool = True,
        key: str | None = None,  # required by every request except the page and ``/health``
        threads: int | None = None,  # number of threads of a search
    ) -> None:
        self.models = dict(models)
        self.indexes = dict(indexes or {})
        self.settings = settings or ServeSettings()
        self.normalize = normalize
        self.authorization = f"Bearer {key}".encode() if key else None  #: the required header
        encoders = [*self.models.values()]
        encoders += [index.open_encoder() for index in self.indexes.values()]
        for encoder in encoders:  # both are computed now, so that the first request need not wait
            assert encoder.fingerprint and encoder.width
        self.stopping = False  #: whether connections are closed after their answer
        self.in_work = 0  #: number of requests in progress
        #: maximum of ``in_work``; the server lowers it if it has few descriptors
        self.max_requests = self.settings.max_requests
        self.dropped = 0  #: number of requests that were not answered when the server stopped
        self.held_bytes = 0  #: number of bytes of bodies and answers in memory
        self.metrics = Metrics()
        self.batcher = Batcher(self.settings, self.metrics)
        self.metrics.watch(
            "requests_in_work", "Requests that wait for their answer.", lambda: self.in_work
        )
        self.metrics.watch(
            "waiting_sentences",
            "Sentences that wait to be encoded.",
            lambda: self.batcher.waiting_texts,
        )
        # FAISS's number of threads is a setting of the calling thread
        set_threads = None
        if threads is not None:
            set_threads = functools.partial(set_search_threads, threads)
        self._thread = Worker(set_threads)
        #: requests share batches only if they share the encoder of a role
        self.in_role = functools.cache(_encoder_in_role)

    def model(self, name: str | None) -> Encoder:
        """Return the encoder of a name; None: the default."""
        return _look_up("model", name, self.models)

    def index(self, name: str | None) -> SentenceIndex:
        """Return the index of a name; None: the default."""
        if not self.indexes:
            raise RequestError(
                404,
                "no index is served; start one with `promptcli serve --index DIR`",
                code="index_not_found",
            )
        return _look_up("index", name, self.indexes)

    def hold(self, request: Request, size: int) -> None:
        """Count bytes that a request holds until it is answered.

        The request is refused if it and other requests together hold too many bytes.
        """
        held_before = request.scope.get(HELD_BYTES, 0)
        is_only_request = held_before == self.held_bytes
        request.scope[HELD_BYTES] = held_before + size
        self.held_bytes += size
        if self.held_bytes > _MAX_HELD_BYTES and not is_only_request:
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

    async def read(self, request: Request, body_type: type[Body]) -> Body:
        """Return the body of a request; refuse one that is too large, slow or wrong."""
        content_type = request.headers.get("content-type", "")
        if content_type.partition(";")[0].strip().lower() != "application/json":
            # a browser lets a page of another site send other types without asking the server
            raise RequestError(415, "send JSON, with the header Content-Type: application/json")
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
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
                408, f"the body did not arrive within {_BODY_TIMEOUT_S:.0f} seconds"
            ) from None
        try:
            return msgspec.json.decode(body, type=body_type)
        except msgspec.ValidationError as error:
            fields = ", ".join(body_type.__struct_fields__)
            reason = errors.join_lines(error, _MAX_MESSAGE_CHARACTERS).replace("`", '"')
            message = f"{reason}; {request.url.path} takes {fields}"
            raise RequestError(400, message) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason = errors.join_lines(error, _MAX_MESSAGE_CHARACTERS)
            message = f"the body is not JSON of UTF-8 text: {reason}"
            raise RequestError(400, message, code="no_json") from None

    def texts(self, value: Any, param: str) -> list[str]:
        """Return a text or a list of texts as a list; refuse too many or too long texts."""
        texts = value if isinstance(value, list) else [value]
        refusal = functools.partial(RequestError, 400, param=param)
        max_texts, max_characters = self.settings.max_texts, self.settings.max_characters
        if not texts:
            raise refusal(f"{param} is empty; give a text or a list of texts")
        if len(texts) > max_texts:
            message = f"{param} has {len(texts):,} texts; give at most {max_texts:,}"
            raise refusal(message, code="too_many_texts")
        for number, text in enumerate(texts):
            if type(text) in (int, list):
                raise refusal(
                    f"{param} holds token ids of another vocabulary; send text (LangChain:"
                    " check_embedding_ctx_length=False)",
                    code="tokens_refused",
                )
            name = f"{param}[{number}]"
            if not isinstance(text, str) or not text:
                raise refusal(f"{name} is empty or not a text; give a text or a list of texts")
            if len(text) > max_characters:
                message = f"{name} has {len(text):,} characters; give at most {max_characters:,}"
                raise refusal(message, code="text_too_long")
        return texts

    async def encode(self, request: Request, encoder: Encoder, texts: Sequence[str]) -> Embeddings:
        """Return texts encoded, unless the client leaves."""
        return await _while_connected(request, self.batcher.encode(encoder, texts))

    async def compute(
        self, request: Request, function: Callable[[Callable[[], None]], Result]
    ) -> Result:
        """Return a function's result, computed on the thread of searches.

        The function gets a callback that raises once nobody waits for the result: the client has
        gone, or the server has stopped.
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
    """Return the model or index of a name; None: the first one."""
    if name is None:
        name = next(iter(served))
    if name not in served:
        message = f"{kind} {name!r} is not served; valid: {', '.join(served)}"
        raise RequestError(404, message, param=kind, code=f"{kind}_not_found")
    return served[name]


def _encoder_in_role(encoder: Encoder, role: str) -> Encoder:
    roles = encoder.roles()
    if role not in roles:
        message = f"input_type {role!r} is not allowed; valid: {', '.join(roles)}"
        raise RequestError(400, message, param="input_type")
    return encoder.in_role(role)


async def _while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """Return the result of work; cancel the work if the client disconnects."""

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
