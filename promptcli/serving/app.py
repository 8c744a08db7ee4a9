"""The ASGI application: routes, and around them what holds for every request."""

import asyncio
import base64
import contextlib
import functools
import hashlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from promptcli.serving import api, exploring
from promptcli.serving.service import Service
from promptcli.serving.wire import RequestError

Handler = Callable[[Service, Request], Awaitable[Response]]

PAGE = Path(__file__).with_name("page.html")

#: Hosts by which a browser reaches a server of its own machine; other names may be another site's, pointed here.
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: On every answer.
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Of answers that are no page.
_NOTHING = "default-src 'none'; frame-ancestors 'none'"
#: Clients that left are counted under this status.
_LEFT = 499


async def page(service: Service, request: Request) -> Response:
    """Answer ``GET /``: the page, whose own style and script are the only ones that may run."""
    text, policy = _page()
    return Response(text, headers={"Content-Security-Policy": policy}, media_type="text/html")


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", "/"): page,
    ("GET", "/health"): api.health,
    ("GET", "/metrics"): api.metrics,
    ("GET", "/v1/models"): api.models,
    ("POST", "/v1/embeddings"): api.embeddings,
    ("POST", "/search"): api.search,
    ("POST", "/similarity"): api.similarity,
    ("GET", "/about"): exploring.about,
    ("POST", "/compare"): exploring.compare,
    ("POST", "/tokens"): exploring.tokens,
    ("POST", "/mask-tokens"): exploring.mask_tokens,
    ("GET", "/map"): exploring.index_map,
}
#: What is open to everybody where a key is asked for: neither holds anything of the models or indexes but names.
_OPEN = ("/", "/health")


def make_app(service: Service) -> ASGIApp:
    """Return the ASGI application of a service; its lifespan ends with the encoding thread's work done."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.batcher.close)

    routes = [
        Route(path, functools.partial(handler, service), methods=[method]) for (method, path), handler in ROUTES.items()
    ]
    handlers = {RequestError: _refused, HTTPException: _no_route, ClientDisconnect: _left, Exception: _failed}
    return _Guard(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers), service)


class _Guard:
    """Counts requests, turns the wrong ones away, adds headers, and makes every failure an answer in one shape."""

    def __init__(self, app: Starlette, service: Service) -> None:
        self._app, self._service = app, service
        self._paths = {path for _, path in ROUTES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        service, start, status = self._service, time.perf_counter(), _LEFT

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Content-Security-Policy", _NOTHING)
                if service.stopping:
                    headers["Connection"] = "close"
            await send(message)

        service.metrics.requests += 1
        try:
            refused = self._refusal(scope)
            if refused is None:
                await self._app(scope, receive, sending)
            else:
                await refused.response()(scope, receive, sending)
        except Exception as error:  # answered by ``_failed`` already
            service.log(f"{scope['path']} failed: {type(error).__name__}: {error}")
        finally:
            service.metrics.requests -= 1
            path = scope["path"] if scope["path"] in self._paths else "other"
            service.metrics.observe(path, status, time.perf_counter() - start)

    def _refusal(self, scope: Scope) -> RequestError | None:
        """Return why a request is not even looked at, or None."""
        service, headers = self._service, Headers(scope=scope)
        host = re.sub(r":\d+$", "", headers.get("host", "")).strip("[]")
        if service.settings.host in _LOOPBACK and host not in _LOOPBACK:
            return RequestError(421, f"host {host!r} is not this server; use {service.settings.host}", code="host")
        if scope["path"] not in _OPEN and not service.admits(headers.get("authorization", "")):
            wants = {"WWW-Authenticate": "Bearer"}
            return RequestError(401, "no or wrong API key; send it as Authorization: Bearer KEY", headers=wants)
        if scope["path"] not in _OPEN and service.metrics.requests > service.settings.max_requests:
            busy = {"Retry-After": "1"}
            return RequestError(429, "the server is busy; try again", code="too_many_requests", headers=busy)
        return None


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error.response()


async def _failed(request: Request, error: Exception) -> Response:
    return RequestError(500, "the server failed; its log says why", code="failed").response()


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=_LEFT)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    paths = ", ".join(path for _, path in ROUTES)
    about = f"there are: {paths}" if error.status_code == 404 else str(error.detail)
    message = f"{request.method} {request.url.path[:80]} is not served; {about}"
    return RequestError(error.status_code, message, code="no_route", headers=error.headers).response()


@functools.cache
def _page() -> tuple[str, str]:
    """Return the page, and the policy that allows its own style and script by their hashes and nothing else."""
    text = PAGE.read_text(encoding="utf-8")

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        digests = (hashlib.sha256(one.encode()).digest() for one in found)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    return text, (
        f"default-src 'none'; style-src {hashes('style')}; script-src {hashes('script')}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
