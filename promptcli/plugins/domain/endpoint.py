"""Embeddings from an OpenAI-compatible endpoint: ``POST URL/embeddings``."""

import asyncio
import itertools
import math
import re
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus

import httpx2
import msgspec
import numpy as np
from numpy.typing import NDArray

from promptcli.errors import PromptcliError, UsageError, join_lines, with_count
from promptcli.notes import is_offline, note, warn
from promptcli.threads import Worker

PREFIX = "openai:"  #: of the name of a model behind an endpoint
#: Groups: the URL, its host with the port, and the name of the model.
_TYPED = re.compile(
    r"openai:(https?://((?:\[[0-9a-f:.]+\]|[\w.-]+)(?::\d+)?)(?:/[^?#@\s]*)?)#(.+)", re.IGNORECASE
)
_TEXTS_PER_REQUEST = 64
_MAX_TEXT_CHARACTERS = 8000  # the models accept up to 8,192 tokens
_MAX_TRIES = 4
_ANSWER_TIMEOUT_S = 60.0  # for a complete answer
_MAX_ANSWER_BYTES = 16 << 20  # 64 vectors of 4,096 numbers take a third
_BUSY_STATUSES = (408, 409, 429, 500, 502, 503, 504)
_REASON_CHARACTERS = 150  # of a reason in a message


class _Embedding(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Embedding]


class Endpoint:
    """A model behind an endpoint: ``openai:URL#NAME``.

    No message quotes an answer of the endpoint, because the answer may repeat the key.
    """

    def __init__(self, typed: str, key: str | None) -> None:
        parts = _TYPED.fullmatch(typed)
        if parts is None:  # the message does not quote what was typed, which may hold a key
            raise UsageError(
                "the model of an endpoint is named openai:URL#NAME, with no key and no query in the"
                " URL, e.g. openai:https://api.openai.com/v1#text-embedding-3-small"
            )
        if key and not re.fullmatch("[!-~]+", key.strip()):
            raise UsageError("the endpoint's key must be ASCII characters without spaces")
        url, self.host, self.name = parts.groups()
        self.typed = typed
        self._url = f"{url.rstrip('/')}/embeddings"
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key:
            self._headers["Authorization"] = f"Bearer {key.strip()}"
        self._thread = Worker()  # has its own event loop: that of a notebook is running already

    def check(self) -> None:
        """Warn that texts leave this machine, and request one vector.

        Raises:
            UsageError: The network is forbidden.
            PromptcliError: The endpoint returns no vector.
        """
        if is_offline():
            raise UsageError(f"forbids {self.typed}; leave out one of the two", parameter="offline")
        warn(f"sending passages and queries of your texts to {self.host}")
        self._request(["one"])

    def encode(
        self, texts: Sequence[str], progress: Callable[[float], None]
    ) -> NDArray[np.float32]:
        """Return the vectors of n texts, (n, d)."""
        cut = sum(len(text) > _MAX_TEXT_CHARACTERS for text in texts)
        if cut:
            note(
                f"{self.name}: {with_count(cut, 'text')} cut to {_MAX_TEXT_CHARACTERS:,} characters"
            )
        vectors = list[NDArray[np.float32]]()
        for start in range(0, len(texts), _TEXTS_PER_REQUEST):
            batch = [
                text[:_MAX_TEXT_CHARACTERS] for text in texts[start : start + _TEXTS_PER_REQUEST]
            ]
            vectors.append(self._request(batch))
            if vectors[-1].shape[1] != vectors[0].shape[1]:
                raise self._error("vectors of several widths")
            progress(len(batch))
        return np.concatenate(vectors)

    def _request(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of one request, which is repeated while the endpoint is busy."""
        content = {"model": self.name, "input": texts, "encoding_format": "float"}
        body = msgspec.json.encode(content)
        for tries in itertools.count(1):
            try:
                posting = self._thread.submit(asyncio.run, self._post(body))
                status, retry_after, answer = posting.result()
            except TimeoutError:
                raise self._error(
                    f"no complete answer within {_ANSWER_TIMEOUT_S:.0f} seconds"
                ) from None
            except httpx2.ProtocolError:
                raise self._error("an answer that is not HTTP") from None
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
                raise self._error(str(error) or type(error).__name__) from None
            if status not in _BUSY_STATUSES or tries == _MAX_TRIES:
                break
            time.sleep(_pause(retry_after, tries))
        if status != HTTPStatus.OK:
            raise self._error(f"{status} {httpx2.codes.get_reason_phrase(status)}")
        return self._vectors(answer, len(texts))

    async def _post(self, body: bytes) -> tuple[int, str, bytes]:
        """Return the status, the Retry-After header and the body of an answer; raise an error if
        the answer takes too long or is too large.
        """
        async with (
            asyncio.timeout(_ANSWER_TIMEOUT_S),
            httpx2.AsyncClient(timeout=_ANSWER_TIMEOUT_S) as client,
            client.stream("POST", self._url, content=body, headers=self._headers) as response,
        ):
            answer = bytearray()
            if response.status_code == HTTPStatus.OK:
                async for chunk in response.aiter_raw():
                    answer += chunk
                    if len(answer) > _MAX_ANSWER_BYTES:
                        raise self._error(f"an answer of more than {_MAX_ANSWER_BYTES >> 20} MiB")
            return response.status_code, response.headers.get("Retry-After", ""), bytes(answer)

    def _vectors(self, answer: bytes, count: int) -> NDArray[np.float32]:
        try:
            rows = msgspec.json.decode(answer, type=_Answer).data
            vector_of = {row.index: row.embedding for row in rows}
            with np.errstate(over="ignore"):
                vectors = np.array([vector_of[row] for row in range(count)], np.float32)
        except (msgspec.MsgspecError, LookupError, RecursionError, ValueError):
            raise self._error("an answer that does not have OpenAI's form") from None
        if vectors.ndim != 2 or not vectors.size or not np.isfinite(vectors).all():
            raise self._error("vectors that are empty, or whose numbers are not finite")
        return vectors

    def _error(self, reason: str) -> PromptcliError:
        shown = join_lines(reason, _REASON_CHARACTERS)
        return PromptcliError(
            f"{self.host}, {self.name}: {shown}; check the URL, the name and the key"
        )


def _pause(retry_after: str, tries: int) -> float:
    """Return the seconds to wait before the next try: those of the header, or 2, 4, 8."""
    try:
        seconds = float(retry_after)
    except ValueError:
        seconds = math.nan
    return min(seconds, _ANSWER_TIMEOUT_S) if seconds >= 0 else 2.0**tries
