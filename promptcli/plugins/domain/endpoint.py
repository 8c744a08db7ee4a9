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

from promptcli.errors import PromptcliError, UsageError, one_line, with_count
from promptcli.notes import is_offline, note, warn
from promptcli.threads import Worker

#: Prefix of an endpoint model's name.
PREFIX = "openai:"
#: The URL, its host with the port, and the name.
_TYPED = re.compile(
    r"openai:(https?://((?:\[[0-9a-f:.]+\]|[\w.-]+)(?::\d+)?)(?:/[^?#@\s]*)?)#(.+)", re.IGNORECASE
)
_TOGETHER = 64  #: texts per request
_LONGEST_TEXT = 8000  #: characters of a text: these models accept up to 8,192 tokens
_TRIES = 4
_SECONDS = 60.0  #: time limit in seconds for a complete answer
_MOST_BYTES = 16 << 20  #: bytes of an answer: 64 vectors of 4,096 numbers take a third
_BUSY = (408, 409, 429, 500, 502, 503, 504)
_CHARACTERS_SHOWN = 150  #: characters of a reason in a message


class _Embedding(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Embedding]


class Endpoint:
    """A model behind an endpoint: ``openai:URL#NAME``.

    Messages never quote the endpoint's words, which may repeat the key.
    """

    def __init__(self, typed: str, key: str | None) -> None:
        parts = _TYPED.fullmatch(typed)
        if parts is None:  # not shown: it may hold a key
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
        self._thread = Worker()  # with its own event loop, since a notebook's is running

    def check(self) -> None:
        """Warn that texts leave this machine, and request one vector.

        Raises:
            UsageError: The network is forbidden.
            PromptcliError: The endpoint gives no vector.
        """
        if is_offline():
            raise UsageError(f"forbids {self.typed}; leave out one of them", parameter="offline")
        warn(f"sending passages and queries of your texts to {self.host}")
        self._ask(["one"])

    def encode(
        self, texts: Sequence[str], progress: Callable[[float], None]
    ) -> NDArray[np.float32]:
        """Return the vectors of n texts, (n, d)."""
        cut = sum(len(text) > _LONGEST_TEXT for text in texts)
        if cut:
            note(f"{self.name}: {with_count(cut, 'text')} cut to {_LONGEST_TEXT:,} characters")
        vectors = list[NDArray[np.float32]]()
        for start in range(0, len(texts), _TOGETHER):
            batch = [text[:_LONGEST_TEXT] for text in texts[start : start + _TOGETHER]]
            vectors.append(self._ask(batch))
            if vectors[-1].shape[1] != vectors[0].shape[1]:
                raise self._error("vectors of several widths")
            progress(len(batch))
        return np.concatenate(vectors)

    def _ask(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of one request, which is repeated while the endpoint is busy."""
        content = {"model": self.name, "input": texts, "encoding_format": "float"}
        body = msgspec.json.encode(content)
        for tries in itertools.count(1):
            try:
                posting = self._thread.submit(asyncio.run, self._post(body))
                status, retry_after, answer = posting.result()
            except TimeoutError:
                raise self._error(f"no whole answer within {_SECONDS:.0f} seconds") from None
            except httpx2.ProtocolError:
                raise self._error("an answer that is not HTTP") from None
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
                raise self._error(str(error) or type(error).__name__) from None
            if status not in _BUSY or tries == _TRIES:
                break
            time.sleep(_pause(retry_after, tries))
        if status != HTTPStatus.OK:
            raise self._error(f"{status} {httpx2.codes.get_reason_phrase(status)}")
        return self._vectors(answer, len(texts))

    async def _post(self, body: bytes) -> tuple[int, str, bytes]:
        """Return status, Retry-After and body of an answer, within the limits of time and size."""
        async with (
            asyncio.timeout(_SECONDS),
            httpx2.AsyncClient(timeout=_SECONDS) as client,
            client.stream("POST", self._url, content=body, headers=self._headers) as response,
        ):
            answer = bytearray()
            if response.status_code == HTTPStatus.OK:
                async for part in response.aiter_raw():
                    answer += part
                    if len(answer) > _MOST_BYTES:
                        raise self._error(f"an answer of more than {_MOST_BYTES >> 20} MiB")
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
            raise self._error("vectors that are empty, or have numbers that are not finite")
        return vectors

    def _error(self, reason: str) -> PromptcliError:
        shown = one_line(reason, _CHARACTERS_SHOWN)
        return PromptcliError(
            f"{self.host}, {self.name}: {shown}; check the URL, the name and the key"
        )


def _pause(wanted: str, tries: int) -> float:
    """Return the seconds to wait before the next try."""
    try:
        seconds = float(wanted)
    except ValueError:
        seconds = math.nan
    return min(seconds, _SECONDS) if seconds >= 0 else 2.0**tries
