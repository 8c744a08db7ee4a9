"""What is answered: JSON, errors in OpenAI's shape, vectors written without a long pause."""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from starlette.responses import Response

from promptcli.errors import short_line

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
