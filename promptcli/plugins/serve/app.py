"""The ASGI application: OpenAI's embeddings and models, search, similarity, the page, and rules for
every request.
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

#: Queries ranked at a time: requests take turns, and end when their clients have gone.
_QUERIES_AT_ONCE = 64
#: Bytes of an answer that are sent at a time; the rest waits until the client has taken them.
_SEND_BYTES = 1 << 16
#: Most characters of a number of a vector in JSON.
_JSON_FLOAT_CHARS = 22
#: Characters of a number of a vector in base64.
_BASE64_FLOAT_CHARS = 16 / 3
#: Most characters around a vector.
_ROW_OVERHEAD_CHARS = 60
#: Most hits of a query.
_MOST_HITS = 1000
#: On every answer.
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: On every answer except the page.
_POLICY = "default-src 'none'; frame-ancestors 'none'"
#: Paths without a key: they show at most the names of models and indexes.
_OPEN = ("/", "/health")
#: Paths that are always answered, even if the server is busy.
_ALWAYS = (*_OPEN, "/metrics")
#: The status of an unanswered request: its client has gone, or the server has stopped.
_LEFT = 499
PAGE = Path(__file__).with_name("page.html")


def answer(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


class EmbeddingsRequest(msgspec.Struct):
    """Body of ``/v1/embeddings``, as in OpenAI's API; other fields are ignored."""

    input: Any
    model: str
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    #: query, document or another prompt of the model; None: its default
    input_type: str | None = None


class SearchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``/search``."""

    query: Any  #: a text or a list of texts
    index: str | None = None  #: None: the first
    k: int = 10
    min_score: float | None = None
    where: str | None = None  #: a condition on columns, as of ``index search``
    by: Literal["both", "meaning", "words"] | None = None  #: None: both, if words were counted


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
    size = round(
        len(texts)
        * (width * (_BASE64_FLOAT_CHARS if in_base64 else _JSON_FLOAT_CHARS) + _ROW_OVERHEAD_CHARS)
    )
    service.check_answer_size(size, "input", "give fewer texts, or the encoding_format base64")
    service.hold(request, size)
    if body.input_type is not None:
        encoder = service.in_role(encoder, body.input_type)
    encoded = await service.encode(request, encoder, texts)
    vectors = encoded.vectors[:, :width]
    if service.normalize:
        vectors = unit(vectors)
    data = []
    for index, row in enumerate(vectors):
        embedding: Any
        if in_base64:
            embedding = base64.b64encode(row.astype("<f4").tobytes()).decode()
        else:  # as text directly: Python numbers take many times the memory
            embedding = msgspec.Raw(msgspec.json.encode(row.tolist()))
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    tokens = int(encoded.tokens.sum())
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    document = {"object": "list", "data": data, "model": body.model, "usage": usage}
    return answer(document, headers=_headers(encoder, encoded))


def _width(encoder: Encoder, dimensions: int | None) -> int:
    """Return the number of columns to send.

    Fewer than all are allowed only if they are ordered, or the model was trained for it.
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


def _headers(encoder: Encoder, encoded: Embeddings | None) -> dict[str, str]:
    headers = {"X-Encoder-Fingerprint": encoder.fingerprint}
    if encoded is not None and encoded.truncated.any():
        headers["X-Truncated-Texts"] = str(np.count_nonzero(encoded.truncated))
    return headers


async def models(service: Service, request: Request) -> Response:
    """Answer ``GET /v1/models``."""
    rows = [
        {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "promptcli",
        }
        for name in service.models
    ]
    return answer({"object": "list", "data": rows})


async def search(service: Service, request: Request) -> Response:
    """Answer ``POST /search``: for each query the nearest rows of an index."""
    body = await service.read(request, SearchRequest)
    queries = service.texts(body.query, "query")
    if not 1 <= body.k <= _MOST_HITS:
        raise RequestError(400, f"k {body.k} is not allowed; give 1 to {_MOST_HITS:,}", param="k")
    index = service.index(body.index)

    def find_encoder(check_cancelled: Callable[[], None]) -> tuple[Encoder, bool]:
        return index.open_encoder().in_role("query"), index.resolve_by(body.by) != "words"

    # on the thread of searches: another search may hold the lock of the index
    encoder, is_by_meaning = await service.compute(request, find_encoder)
    encoded = await service.encode(request, encoder, queries) if is_by_meaning else None
    results = list[msgspec.Raw]()
    size = 0
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        rows = slice(start, start + _QUERIES_AT_ONCE)
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
    return answer({"results": results}, headers=_headers(encoder, encoded))


def _rank_queries(
    index: SentenceIndex,
    body: SearchRequest,
    queries: Sequence[str],
    vectors: NDArray[np.float32] | None,
    room: int,
    check_cancelled: Callable[[], None],
) -> list[bytes]:
    """Return the hits of queries as JSON; stop once they have more than ``room`` bytes."""
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
    for query, nearest in zip(queries, answers, strict=True):
        hits = list[bytes]()
        for hit in nearest:
            shown = hit.document()
            if hit.columns is not None:
                shown["columns"] = hit.columns
            if hit.stale is not None:
                shown["stale"] = hit.stale
            hits.append(msgspec.json.encode(shown))
            room -= len(hits[-1])
            if room < 0:  # the caller refuses as many bytes
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
            f"a has {len(left)} texts, b {len(right)}: not pairs; give lists of the same length",
        )
    encoder = service.model(body.model)
    encoded = await service.encode(request, encoder, [*left, *right])
    vectors = unit(encoded.vectors)
    cosines = np.sum(vectors[: len(left)] * vectors[len(left) :], axis=1).clip(-1, 1).tolist()
    is_pair = not isinstance(body.a, list) and not isinstance(body.b, list)
    return answer(
        {"similarity": cosines[0] if is_pair else cosines}, headers=_headers(encoder, encoded)
    )


async def health(service: Service, request: Request) -> Response:
    """Answer ``GET /health``."""
    names = {"models": list(service.models), "indexes": list(service.indexes)}
    return answer({"status": "ok", **names})


async def metrics(service: Service, request: Request) -> Response:
    """Answer ``GET /metrics``; the requests in progress include this one."""
    text = generate_latest(service.metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def page(service: Service, request: Request) -> Response:
    """Answer ``GET /``."""
    text, policy = _page_and_policy()
    return Response(text, headers={"Content-Security-Policy": policy}, media_type="text/html")


@functools.cache
def _page_and_policy() -> tuple[str, str]:
    text = PAGE.read_text(encoding="utf-8")
    # allows only its own style and script, by their hashes
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
#: Statuses of errors that are not an ``HTTPException``.
_STATUSES: dict[type[Exception], int] = {
    NotFoundError: 404,
    UsageError: 400,
    ClientDisconnect: _LEFT,  # no client receives it
    Exception: 500,
}


def make_app(service: Service) -> ASGIApp:
    """Return the ASGI application of a service."""
    routes = [
        Route(path, functools.partial(handler, service), methods=[method])
        for (method, path), handler in ROUTES.items()
    ]
    # a browser reaches a server on its own machine by these names; another name is a web site's
    # that points here
    hosts = service.settings.loopback_names() or ("*",)
    allowed = [f"[{host}]" if ":" in host else host for host in hosts]
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=allowed, www_redirect=False)
    handlers = dict.fromkeys((HTTPException, *_STATUSES), _error)
    return _Guard(
        Starlette(routes=routes, middleware=[trusted], exception_handlers=handlers), service
    )


async def _error(request: Request, error: Exception) -> Response:
    headers = None
    if isinstance(error, HTTPException):
        status = error.status_code
        headers = error.headers
        message = error.detail
        if not isinstance(error, RequestError):  # Starlette's: no such path or method
            served = ", ".join(f"{method} {path}" for method, path in ROUTES)
            asked = f"{request.method} {request.url.path[:80]}"
            message = f"{asked} is not served; served: {served}"
    else:
        status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
        message = "the server failed; its log has the error" if status == 500 else str(error)
    kind = {429: "rate_limit_error", 500: "server_error"}.get(status, "invalid_request_error")
    fields = {name: getattr(error, name, None) for name in ("param", "code")}
    document = {"message": errors.short_line(message), "type": kind, **fields}
    return answer({"error": document}, status=status, headers=headers)


class _Guard:
    """Checks the key and the number of requests, adds headers, sends answers in pieces, counts, and
    logs failures.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        service = self._service
        status = _LEFT
        began = time.perf_counter()

        async def sending(message: Message) -> None:
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
            # each piece is sent once the client has taken most of the last
            while len(body) - start > _SEND_BYTES:
                await send(
                    {**message, "body": body[start : start + _SEND_BYTES], "more_body": True}
                )
                start += _SEND_BYTES
            await send({**message, "body": body[start:]} if start else message)

        service.in_work += 1
        try:
            refusal = self._refusal(scope)
            if refusal is None:
                await self._app(scope, receive, sending)
            else:
                await (await _error(Request(scope), refusal))(scope, receive, sending)
        except asyncio.CancelledError:
            service.dropped += 1
            raise
        except Exception as error:  # ``_error`` has answered it
            notes.warn(f"{scope['path']} failed: {type(error).__name__}: {error}")
        finally:
            service.in_work -= 1
            service.held_bytes -= scope.pop(HELD_BYTES, 0)
            # all unknown paths count as one: a scanner would create thousands
            is_served = any(path == scope["path"] for _, path in ROUTES)
            path = scope["path"] if is_served else "other"
            service.metrics.requests.labels(path, str(status)).inc()
            service.metrics.seconds.labels(path).observe(time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> RequestError | None:
        headers = Headers(scope=scope)
        if scope["method"] != "GET" and _is_of_another_site(headers):
            return RequestError(403, "a page of another site may not use this server")
        if scope["path"] in _OPEN:
            return None
        wanted = self._service.authorization
        authorization = headers.get("authorization", "")
        if wanted is not None and not hmac.compare_digest(authorization.encode(), wanted):
            message = "wrong or missing API key; send Authorization: Bearer KEY"
            return RequestError(401, message)
        busy = self._service.in_work > self._service.most_requests
        if busy and scope["path"] not in _ALWAYS:
            return RequestError(429, "the server is busy; try again", code="too_many_requests")
        return None


def _is_of_another_site(headers: Headers) -> bool:
    """Return whether a browser reports that a page of another site sends a request.

    Programs send neither header. A proxy may change ``Host``; current browsers send
    ``Sec-Fetch-Site``, which needs no comparison.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")
