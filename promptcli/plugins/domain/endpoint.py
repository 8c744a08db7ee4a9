"""Embeddings of an endpoint of OpenAI's form: ``POST URL/embeddings``."""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from promptcli import PromptcliError, UsageError
from promptcli.extending import errors, keyword, notes

#: What a model of an endpoint begins with.
PREFIX = "openai:"
_TOGETHER = 64  #: texts of a request
_LONGEST = 8000  #: characters of a text: models of this form take 8,192 tokens, or refuse it
_TRIES = 5
_SECONDS = 60  #: that an answer may take
_BUSY = (408, 409, 429, 500, 502, 503, 504)
_SHOWN = 150  #: characters of the endpoint's reason


class Key:
    """A key of an endpoint, which no message and no ``repr`` shows."""

    def __init__(self, text: str) -> None:
        self._text = text.strip()
        if not re.fullmatch("[!-~]*", self._text):
            raise UsageError("the endpoint's key holds a blank, a line feed or a letter with marks")

    def __repr__(self) -> str:
        return "Key(...)"

    def header(self) -> str:
        """Return the key as a header of a request."""
        return f"Bearer {self._text}"

    def hidden_in(self, message: str) -> str:
        """Return a message in which the key is not legible."""
        return message.replace(self._text, "...") if self._text else message


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it would send the key to another machine."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Endpoint:
    """A model behind an endpoint: ``openai:URL#NAME``."""

    def __init__(self, typed: str, key: Key | None) -> None:
        url, _, name = typed.removeprefix(PREFIX).partition("#")
        wanted = (
            "give openai:URL#NAME, e.g. openai:https://api.openai.com/v1#text-embedding-3-small"
        )
        try:
            parts = urlsplit(url)
        except ValueError:
            raise UsageError(f"the URL of {name!r} is malformed; {wanted}") from None
        if parts.username or parts.password or parts.query:
            raise UsageError(
                f"the URL of {name!r} holds a key or a query, which would be printed; {wanted}"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or not name:
            raise UsageError(f"{errors.shorten(typed)} is no model of an endpoint; {wanted}")
        self.typed = typed
        self.name = name
        self.host = parts.netloc
        self._url = f"{url.rstrip('/')}/embeddings"
        self._key = key
        self._opener = urllib.request.build_opener(_NoRedirect)

    def check(self) -> None:
        """Say that texts leave this machine, and ask for one vector.

        Raises:
            UsageError: The network is forbidden.
            PromptcliError: The endpoint gives no vector.
        """
        if notes.is_offline():
            raise UsageError(
                f"{self.typed} is on the network, which {keyword('offline')} forbids; leave out"
                " one of them"
            )
        notes.warn(f"sending passages and queries of your texts to {self.host}")
        self._vectors(self._ask(["one"]), 1)

    def encode(self, texts: Sequence[str], advance: Callable[[float], None]) -> NDArray[np.float32]:
        """Return the vectors of n texts, (n, d)."""
        cut = sum(len(text) > _LONGEST for text in texts)
        if cut:
            notes.note(f"{self.name}: {errors.counted(cut, 'text')} cut to {_LONGEST:,} characters")
        vectors = list[NDArray[np.float32]]()
        for start in range(0, len(texts), _TOGETHER):
            batch = [text[:_LONGEST] for text in texts[start : start + _TOGETHER]]
            vectors.append(self._vectors(self._ask(batch), len(batch)))
            advance(len(batch))
        if len({each.shape[1] for each in vectors}) > 1:
            raise self._error("vectors of several widths")
        return np.concatenate(vectors)

    def _ask(self, texts: Sequence[str]) -> Any:
        """Return the answer to one request, which is asked again while the endpoint is busy."""
        content = {"model": self.name, "input": list(texts), "encoding_format": "float"}
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = self._key.header()
        body = json.dumps(content).encode()
        for tries in range(1, _TRIES + 1):
            request = urllib.request.Request(self._url, body, headers)
            try:
                with self._opener.open(request, timeout=_SECONDS) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code not in _BUSY or tries == _TRIES:
                    raise self._error(f"{error.code}: {_reason(error)}") from None
                time.sleep(_pause(error.headers.get("Retry-After"), tries))
            except (OSError, HTTPException, ValueError) as error:
                raise self._error(str(getattr(error, "reason", error))) from None
        raise AssertionError("the last try returns or raises")

    def _vectors(self, answer: Any, count: int) -> NDArray[np.float32]:
        try:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            numbers = [row["index"] for row in rows]
            vectors = np.array([row["embedding"] for row in rows], np.float32)
        except (KeyError, TypeError, ValueError):
            raise self._error("an answer of another form than OpenAI's") from None
        if numbers != list(range(count)) or vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise self._error(f"no vector of finite numbers for each of {count} texts")
        return vectors

    def _error(self, reason: str) -> PromptcliError:
        if self._key is not None:
            reason = self._key.hidden_in(reason)
        shown = errors.one_line(reason, _SHOWN)
        return PromptcliError(
            f"{self.host}, {self.name}: {shown}; see that the URL, the name and the key are right"
        )


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the endpoint's own words, else those of the status."""
    try:
        document = json.loads(error.read(1 << 16))
        return str(document["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)


def _pause(wanted: str | None, tries: int) -> float:
    """Return the seconds to wait before the next try."""
    try:
        return min(float(wanted or ""), _SECONDS)
    except ValueError:
        return 2.0**tries
