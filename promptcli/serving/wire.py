"""What goes over the wire: bodies read and checked, errors in OpenAI's shape, vectors written without a long pause."""

import asyncio
import base64
import functools
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from promptcli.errors import one_line, short_line
from promptcli.serving.settings import ServeSettings

Body = TypeVar("Body", bound=msgspec.Struct)

#: Seconds until a body must be there.
_BODY_SECONDS = 60.0
#: Characters of a library's message in one of ours.
_MESSAGE = 200
#: A body too large is read to its end all the same, up to so many times the limit: else many clients see no answer.
_READ_ON = 8
#: Rows of vectors written at a stretch; other requests are looked after in between.
_ROWS = 64


class RequestError(Exception):
    """An answer other than 200: its status, and the fields of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, dict(headers or {})

    def response(self) -> Response:
        """Return it as the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": short_line(str(self)),
            "type": "rate_limit_error" if self.status == 429 else kind,
            "param": self.param,
            "code": self.code,
        }
        return answer({"error": error}, status=self.status, headers=self.headers)


def answer(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


async def read(request: Request, kind: type[Body], settings: ServeSettings) -> Body:
    """Return the request's JSON body.

    Raises:
        RequestError: 413 too large, 408 too slow, 400 no JSON or not of that kind.
    """
    most, closes = settings.max_body_mib << 20, {"Connection": "close"}
    too_large = RequestError(
        413,
        f"the body is larger than {settings.max_body_mib} MiB; send fewer texts in a request",
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
        raise RequestError(408, f"the body did not come within {_BODY_SECONDS:.0f} seconds", headers=closes) from None
    if size > most:
        raise too_large
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(400, f"the body is not what {request.url.path} takes: {one_line(error, _MESSAGE)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, f"the body is no JSON: {one_line(error, _MESSAGE)}", code="no_json") from None


def texts_of(given: Any, param: str, settings: ServeSettings) -> list[str]:
    """Return a text or a list of texts as a list.

    Raises:
        RequestError: 400, neither; too many, or one too long.
    """
    texts = given if isinstance(given, list) else [given]
    refused = functools.partial(RequestError, 400, param=param)
    if not texts:
        raise refused(f"{param} is empty; give a text or a list of texts")
    if len(texts) > settings.max_texts:
        most = f"{param} has {len(texts):,} texts; a request takes at most {settings.max_texts:,}"
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
        if len(text) > settings.max_characters:
            most = f"a text takes at most {settings.max_characters:,}"
            raise refused(f"{param}[{number}] has {len(text):,} characters; {most}", code="text_too_long")
    return texts


async def embedding_list(vectors: np.ndarray, *, as_base64: bool) -> bytes:
    """Return vectors (n, d) as JSON, the list of OpenAI's embedding objects; base64 is of little-endian float32."""
    parts: list[bytes] = []
    for start in range(0, len(vectors), _ROWS):
        rows = vectors[start : start + _ROWS]
        written: list[Any]
        if as_base64:
            written = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
        else:
            written = rows.tolist()
        objects = [
            {"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(written, start)
        ]
        parts.append(msgspec.json.encode(objects)[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(parts) + b"]"
