"""The ASGI application: OpenAI's embeddings and models, search, similarity, a page, and the checks
of every request.
"""

import asyncio
import base64
import functools
import hashlib
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from promptcli import errors, notes
from promptcli.data.vectors.precision import unit
from promptcli.encoder.embeddings import Embeddings
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import NotFoundError, UsageError
from promptcli.plugins.serve.service import HELD_BYTES, RequestError, Service
from promptcli.retrieval.sentence_index import SentenceIndex

Handler = Callable[[Service, Request], Awaitable[Response]]

#: Queries ranked at a time; then another request has its turn, or a client's departure is noticed.
_QUERIES_PER_TURN = 64
#: Bytes of an answer sent at a time; the rest waits until the client has read them.
_SEND_BYTES = 1 << 16
#: Maximum number of characters of a vector's number in JSON.
_JSON_FLOAT_CHARS = 22
#: Number of characters of a vector's number in base64.
_BASE64_FLOAT_CHARS = 16 / 3
#: Maximum number of characters around a vector.
_VECTOR_OVERHEAD_CHARS = 60
_MAX_HITS = 1000
#: Headers of every answer.
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Content-Security-Policy of every answer; the page adds its own style and script.
_POLICY = "default-src 'none'; frame-ancestors 'none'"
#: Paths that need no key: they show at most the names of models and indexes.
_PUBLIC_PATHS = ("/", "/health")
#: Paths that a busy server answers, too.
_ALWAYS_ANSWERED_PATHS = (*_PUBLIC_PATHS, "/metrics")
#: The status of an unanswered request: the client has gone, or the server has stopped.
_UNANSWERED_STATUS = 499
PAGE = Path(__file__).with_name("page.html")


def json_response(
    value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer in JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


class EmbeddingsRequest(msgspec.Struct):
    """Body of ``/v1/embeddings``, as in OpenAI's API; other fields are ignored."""

    input: Any
    model: str
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    #: query, document or another prompt of the model; None: the model's default
    input_type: str | None = None


class SearchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``/search``."""

    query: Any  #: a text or a list of texts
    index: str | None = None  #: None: the first
    k: int = 10
    min_score: float | None = None
    where: str | None = None  #: a condition on columns, as of ``index search``
    by: Literal["both", "meaning", "words"] | None = None  #: None: both, if the index has words


class SimilarityRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``/similarity``: two texts, or two lists of the same length."""

    a: Any
    b: Any
    model: str | None = None


async def embeddings(service: Service, request: Request) -> Response:
    """Answer ``POST /v1/embeddings``; base64 holds little-endian float32."""
    body = await service.read(request, EmbeddingsRequest)
    encoder = service.model(body.model)
    texts = service.texts(body.input, "input")
    width = _width(encoder, body.dimensions)
    in_base64 = body.encoding_format == "base64"
    float_chars = _BASE64_FLOAT_CHARS if in_base64 else _JSON_FLOAT_CHARS
    size = round(len(texts) * (width * float_chars + _VECTOR_OVERHEAD_CHARS))
    service.check_answer_size(size, "input", "give fewer texts, or the encoding_format base64")
    service.hold(request, size)
    if body.input_type is not None:
        encoder = service.in_role(encoder, body.input_type)
    encoded = await service.encode(request, encoder, texts)
    vectors = encoded.vectors[:, :width]
    if service.normalize:
        vectors = unit(vectors)
    data = []
    for index, vector in enumerate(vectors):
        embedding: Any
        if in_base64:
            embedding = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        else:  # encoded vector by vector: Python's numbers take many times the memory of the text
            embedding = msgspec.Raw(msgspec.json.encode(vector.tolist()))
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    tokens = int(encoded.tokens.sum())
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    document = {"object": "list", "data": data, "model": body.model, "usage": usage}
    return json_response(document, headers=_encoder_headers(encoder, encoded))


def _width(encoder: Encoder, dimensions: int | None) -> int:
    """Return the number of columns to send.

    Fewer than all are allowed only if the columns are ordered by importance, or if the model was
    trained for the number.
    """
    if dimensions is None:
        return encoder.width
    widths: Sequence[int] = [*encoder.recipe.dims, encoder.width]
    allowed = ", ".join(map(str, widths))
    if encoder.is_prefix_truncatable:
        widths = range(1, encoder.width + 1)
        allowed = f"1 to {encoder.width}"
    if dimensions not in widths:
        raise RequestError(
            400,
            f"dimensions {dimensions} is not allowed for this model; give {allowed}, or serve a"
            " whitened one (`promptcli fit --model whitening`)",
            param="dimensions",
        )
    return dimensions


def _encoder_headers(encoder: Encoder, encoded: Embeddings | None) -> dict[str, str]:
    headers = {"X-Encoder-Fingerprint": encoder.fingerprint}
    if encoded is not None and encoded.truncated.any():
        headers["X-Truncated-Texts"] = str(np.count_nonzero(encoded.truncated))
    return headers


async def models(service: Service, request: Request) -> Response:
    """Answer ``GET /v1/models``."""
    about = {"object": "model", "created": 0, "owned_by": "promptcli"}
    data = [{"id": name, **about} for name in service.models]
    return json_response({"object": "list", "data": data})


async def search(service: Service, request: Request) -> Response:
    """Answer ``POST /search``: for each query the nearest rows of an index."""
    body = await service.read(request, SearchRequest)
    queries = service.texts(body.query, "query")
    if not 1 <= body.k <= _MAX_HITS:
        raise RequestError(400, f"k must be from 1 to {_MAX_HITS:,}, got {body.k}", param="k")
    index = service.index(body.index)

    def find_encoder(check_cancelled: Callable[[], None]) -> tuple[Encoder, bool]:
        return index.open_encoder().in_role("query"), index.resolve_by(body.by) != "words"

    # on the thread of searches, because a search holds the lock of its index
    encoder, is_by_meaning = await service.compute(request, find_encoder)
    encoded = await service.encode(request, encoder, queries) if is_by_meaning else None
    results = list[msgspec.Raw]()
    size = 0
    for start in range(0, len(queries), _QUERIES_PER_TURN):
        rows = slice(start, start + _QUERIES_PER_TURN)
        rank = functools.partial(
            _rank_queries,
            index,
            body,
            queries[rows],
            None if encoded is None else encoded.vectors[rows],
            (service.settings.max_answer_mib << 20) - size,
        )
        for result in await service.compute(request, rank):
            results.append(msgspec.Raw(result))
            size += len(result)
            service.hold(request, len(result))
        fewer = f"fewer than {len(results):,} queries, or " if len(results) > 1 else ""
        service.check_answer_size(size, "k", f"give {fewer}a lower k")
    return json_response({"results": results}, headers=_encoder_headers(encoder, encoded))


def _rank_queries(
    index: SentenceIndex,
    body: SearchRequest,
    queries: Sequence[str],
    vectors: NDArray[np.float32] | None,
    max_bytes: int,
    check_cancelled: Callable[[], None],
) -> list[bytes]:
    """Return the hits of queries as JSON; stop once they have more than ``max_bytes``."""
    answers = index.answer(
        queries,
        body.k,
        vectors=vectors,
        where=body.where,
        by=body.by,
        min_score=body.min_score,
        check_cancelled=check_cancelled,
    )
    results = list[bytes]()
    for query, query_hits in zip(queries, answers, strict=True):
        hits = list[bytes]()
        for hit in query_hits:
            document = hit.document()
            if hit.columns is not None:
                document["columns"] = hit.columns
            if hit.stale is not None:
                document["stale"] = hit.stale
            hits.append(msgspec.json.encode(document))
            max_bytes -= len(hits[-1])
            if max_bytes < 0:  # the caller refuses the answer
                return [*results, *hits]
        document = {"query": query, "hits": list(map(msgspec.Raw, hits))}
        results.append(msgspec.json.encode(document))
    return results


async def similarity(service: Service, request: Request) -> Response:
    """Answer ``POST /similarity``: the cosine of two texts, or of each pair of two lists."""
    body = await service.read(request, SimilarityRequest)
    left = service.texts(body.a, "a")
    right = service.texts(body.b, "b")
    if len(left) != len(right):
        raise RequestError(
            400,
            f"a has {len(left)} texts and b has {len(right)}; pairs need lists of the same length",
        )
    encoder = service.model(body.model)
    encoded = await service.encode(request, encoder, [*left, *right])
    vectors = unit(encoded.vectors)
    cosines = np.sum(vectors[: len(left)] * vectors[len(left) :], axis=1).clip(-1, 1).tolist()
    are_texts = not isinstance(body.a, list) and not isinstance(body.b, list)
    document = {"similarity": cosines[0] if are_texts else cosines}
    return json_response(document, headers=_encoder_headers(encoder, encoded))


async def health(service: Service, request: Request) -> Response:
    """Answer ``GET /health``."""
    names = {"models": list(service.models), "indexes": list(service.indexes)}
    return json_response({"status": "ok", **names})


async def metrics(service: Service, request: Request) -> Response:
    """Answer ``GET /metrics``; this request counts as one in progress."""
    text = generate_latest(service.metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def page(service: Service, request: Request) -> Response:
    """Answer ``GET /``."""
    text, policy = _page_and_policy()
    return Response(text, headers={"Content-Security-Policy": policy}, media_type="text/html")


@functools.cache
def _page_and_policy() -> tuple[str, str]:
    """Return the page, and a policy that allows only the page's own style and script."""
    text = PAGE.read_text(encoding="utf-8")
    sources = []
    for tag, content in re.findall(r"<(style|script)>(.*?)</\1>", text, flags=re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        sources.append(f"{tag}-src 'sha256-{digest}'")
    rest = "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
    return text, "; ".join([_POLICY, *sources, rest])


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", "/"): page,
    ("GET", "/health"): health,
    ("GET", "/metrics"): metrics,
    ("GET", "/v1/models"): models,
    ("POST", "/v1/embeddings"): embeddings,
    ("POST", "/search"): search,
    ("POST", "/similarity"): similarity,
}
#: Statuses of errors that are not an ``HTTPException``; the first class that fits counts.
_STATUSES: dict[type[Exception], int] = {
    NotFoundError: 404,
    UsageError: 400,
    ClientDisconnect: _UNANSWERED_STATUS,  # no client receives the answer
    Exception: 500,
}


def make_app(service: Service) -> ASGIApp:
    """Return the ASGI application of a service."""
    routes = [
        Route(path, functools.partial(handler, service), methods=[method])
        for (method, path), handler in ROUTES.items()
    ]
    # a request to this machine under another name comes from a web site whose name points here
    hosts = service.settings.loopback_names() or ("*",)
    allowed_hosts = [f"[{host}]" if ":" in host else host for host in hosts]
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts, www_redirect=False)
    handlers = dict.fromkeys((HTTPException, *_STATUSES), _answer_error)
    app = Starlette(routes=routes, middleware=[trusted], exception_handlers=handlers)
    return _Guard(app, service)


async def _answer_error(request: Request, error: Exception) -> Response:
    headers = None
    if isinstance(error, HTTPException):
        status = error.status_code
        headers = error.headers
        message = error.detail
        if not isinstance(error, RequestError):  # Starlette's error: no such path or method
            served = ", ".join(f"{method} {path}" for method, path in ROUTES)
            request_line = f"{request.method} {request.url.path[:80]}"
            message = f"{request_line} is not served; valid: {served}"
    else:
        status = next(
            status for error_type, status in _STATUSES.items() if isinstance(error, error_type)
        )
        message = "the server failed; its log has the error" if status == 500 else str(error)
    types = {429: "rate_limit_error", 500: "server_error"}
    document = {
        "message": errors.shorten_message(message),
        "type": types.get(status, "invalid_request_error"),
        "param": getattr(error, "param", None),
        "code": getattr(error, "code", None),
    }
    return json_response({"error": document}, status=status, headers=headers)


class _Guard:
    """Checks the key and the number of requests, adds headers, sends long answers piece by piece,
    counts requests, and logs failures.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        service = self._service
        status = _UNANSWERED_STATUS
        start_time = time.perf_counter()

        async def send_in_pieces(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Content-Security-Policy", _POLICY)
                if service.stopping:
                    headers["Connection"] = "close"
            body = message.get("body", b"")
            start = 0
            # ``send`` waits until the client has read most of the last piece
            while len(body) - start > _SEND_BYTES:
                piece = body[start : start + _SEND_BYTES]
                await send({**message, "body": piece, "more_body": True})
                start += _SEND_BYTES
            await send({**message, "body": body[start:]} if start else message)

        service.in_work += 1
        try:
            refusal = self._refusal(scope)
            app: ASGIApp = self._app
            if refusal is not None:
                app = await _answer_error(Request(scope), refusal)
            await app(scope, receive, send_in_pieces)
        except asyncio.CancelledError:
            service.dropped += 1
            raise
        except Exception as error:  # ``_answer_error`` has answered the client
            notes.warn(f"{scope['path']} failed: {type(error).__name__}: {error}")
        finally:
            service.in_work -= 1
            service.held_bytes -= scope.pop(HELD_BYTES, 0)
            # unknown paths count as one path: a scanner would create thousands of metrics
            is_served = any(path == scope["path"] for _, path in ROUTES)
            path = scope["path"] if is_served else "other"
            service.metrics.requests.labels(path, str(status)).inc()
            service.metrics.seconds.labels(path).observe(time.perf_counter() - start_time)

    def _refusal(self, scope: Scope) -> RequestError | None:
        """Return the error of a request that must not be answered; None for another request."""
        service = self._service
        headers = Headers(scope=scope)
        if scope["method"] != "GET" and _is_of_another_site(headers):
            return RequestError(403, "a page of another site may not use this server")
        if scope["path"] in _PUBLIC_PATHS:
            return None
        key = headers.get("authorization", "").encode()
        expected_key = service.authorization
        if expected_key is not None and not hmac.compare_digest(key, expected_key):
            message = "wrong or missing API key; send Authorization: Bearer KEY"
            return RequestError(401, message)
        is_busy = service.in_work > service.max_requests
        if is_busy and scope["path"] not in _ALWAYS_ANSWERED_PATHS:
            return RequestError(429, "the server is busy; try again", code="too_many_requests")
        return None


def _is_of_another_site(headers: Headers) -> bool:
    """Return whether a browser reports that a page of another site sends a request.

    Programs send neither header. Current browsers send ``Sec-Fetch-Site``; the comparison of
    ``Origin`` with ``Host``, which a proxy may change, is for older ones.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")
