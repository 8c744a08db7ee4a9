"""One thread that encodes for all requests: what is asked for at the same time shares its batches.

Knows nothing of HTTP. The texts of a round are taken from the waiting requests in turn, one of each, so that a long
request does not keep a short one waiting; the encoder sorts a round by length.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from promptcli.encoder.encoded import Encoded, Progress
from promptcli.encoder.encoder import Encoder
from promptcli.errors import PromptcliError

Result = TypeVar("Result")

#: Characters of a round; a text counts ``_A_TEXT`` more, and as ``_LONGEST`` at most: models cut what is longer.
ROUND = 1 << 17
_A_TEXT, _LONGEST = 16, 4096
#: Other work (analyses, searches) that may wait.
_MOST_CALLS = 64


class BusyError(PromptcliError):
    """The queue is full."""

    def __init__(self, waiting: int, seconds: float) -> None:
        super().__init__(f"the server is busy: {waiting:,} texts are waiting; try again")
        self.seconds = max(1, math.ceil(seconds))  #: until there is likely to be room


class StoppedError(PromptcliError):
    """The server takes nothing more."""


class _LeftError(Exception):
    """Whoever wanted the result of a call is gone, or the server ends at once."""


@dataclass(eq=False)
class _Job:
    """The texts of one request."""

    encoder: Encoder
    texts: Sequence[str]
    future: "Future[Encoded]" = field(default_factory=Future)
    begun: int = 0  #: texts that are in a round already
    done: list[Encoded] = field(default_factory=list)


class Batcher:
    """Encodes, and does whatever else needs a model, on one thread.

    Args:
        gather: Seconds that an idle thread waits for more to encode after the first request.
        most_waiting: Texts that may wait.
        prepare: Called first, on the thread: for settings that belong to a thread.
    """

    def __init__(
        self, *, gather: float = 0.002, most_waiting: int = 8192, prepare: Callable[[], None] = lambda: None
    ) -> None:
        self._gather, self._most_waiting, self._prepare = gather, most_waiting, prepare
        self._jobs: list[_Job] = []
        self._calls: deque[tuple[Future[Any], Callable[[Progress], Any]]] = deque()
        self._held = 0  #: texts in no round yet, those that nobody waits for any more included
        self._changed = threading.Condition()
        self._closed = self._abandoned = False
        self.rounds = self.texts = self.tokens = 0  #: done so far
        self.seconds = 0.0  #: spent encoding
        self._thread: threading.Thread | None = None  #: begins with the first work

    @property
    def alive(self) -> bool:
        """Whether it takes work."""
        return not self._closed and (self._thread is None or self._thread.is_alive())

    @property
    def waiting(self) -> int:
        """Texts that are in no round yet."""
        return sum(len(job.texts) - job.begun for job in list(self._jobs) if not job.future.cancelled())

    def encode(self, encoder: Encoder, texts: Sequence[str]) -> "Future[Encoded]":
        """Have n texts encoded, at least one; cancelling the future takes those back that are in no round yet.

        Raises:
            BusyError: too many texts are waiting.
            StoppedError: after ``close``.
        """
        job = _Job(encoder, texts)
        with self._changed:
            self._open()
            if self._held + len(texts) > self._most_waiting and (waiting := self.waiting):
                if waiting + len(texts) > self._most_waiting:
                    raise BusyError(waiting, waiting * self.seconds / max(self.texts, 1))
            self._jobs.append(job)
            self._held += len(texts)
            self._changed.notify()
        return job.future

    def call(self, function: Callable[[Progress], Result]) -> "Future[Result]":
        """Have other work done between two rounds.

        Args:
            function: Given a progress callback, which it calls now and then: meanwhile rounds that wait are done, and
                the work ends there once its future is cancelled.

        Raises:
            BusyError, StoppedError: as for ``encode``.
        """
        future: Future[Result] = Future()
        with self._changed:
            self._open()
            if len(self._calls) >= _MOST_CALLS:
                raise BusyError(self.waiting, 1)
            self._calls.append((future, function))
            self._changed.notify()
        return future

    def close(self, *, abandon: bool = False) -> None:
        """Take nothing more, finish what was taken, or with ``abandon`` only the batch in work; wait for the end."""
        with self._changed:
            self._closed, self._abandoned = True, self._abandoned or abandon
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _open(self) -> None:
        if not self.alive:
            raise StoppedError("the server is stopping")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="promptcli-encoding")
            self._thread.start()

    def _run(self) -> None:
        self._prepare()
        while self._wait():
            self._round()
            self._call()
        with self._changed:
            left = [job.future for job in self._jobs] + [future for future, _ in self._calls]
        for future in left:
            future.cancel()

    def _wait(self) -> bool:
        """Return once there is something to do; False at the end."""
        with self._changed:
            if not (self._jobs or self._calls):
                self._changed.wait_for(lambda: self._jobs or self._calls or self._closed)
                if not (self._calls or self._closed):
                    self._changed.wait_for(lambda: self._calls or self._closed, self._gather)
            return not self._abandoned and bool(self._jobs or self._calls or not self._closed)

    def _round(self) -> None:
        """Encode one round of what waits."""
        chosen = self._choose()
        self.rounds += bool(chosen)
        for encoder in {id(job.encoder): job.encoder for job, _ in chosen}.values():
            own = [(job, text) for job, text in chosen if job.encoder is encoder]
            start = time.perf_counter()
            try:
                encoded = encoder.encode_report([text for _, text in own])
            except Exception as error:
                for job in {id(job): job for job, _ in own}.values():
                    _finish(job.future, error)
                continue
            self.tokens += int(encoded.tokens.sum())  # counted before anybody has the result and asks for the figures
            self.texts += len(own)
            self.seconds += time.perf_counter() - start
            self._share_out([job for job, _ in own], encoded)

    def _choose(self) -> list[tuple[_Job, str]]:
        """Return the texts of the next round, one of each request in turn; forget requests that nobody waits for."""
        chosen: list[tuple[_Job, str]] = []
        with self._changed:
            self._jobs = [job for job in self._jobs if not job.future.done()]
            turns, room = deque(self._jobs), ROUND
            while turns and room > 0:
                job = turns.popleft()
                text = job.texts[job.begun]
                chosen.append((job, text))
                room -= min(len(text), _LONGEST) + _A_TEXT
                job.begun += 1
                if job.begun < len(job.texts):
                    turns.append(job)
            self._jobs = [job for job in self._jobs if job.begun < len(job.texts)]
            self._held = sum(len(job.texts) - job.begun for job in self._jobs)
        return chosen

    def _share_out(self, owners: list[_Job], encoded: Encoded) -> None:
        """Give every request its rows, and its result where these were the last."""
        rows_of: dict[_Job, list[int]] = {}
        for row, job in enumerate(owners):
            rows_of.setdefault(job, []).append(row)
        for job, rows in rows_of.items():
            job.done.append(Encoded(encoded.vectors[rows], encoded.truncated[rows], encoded.tokens[rows]))
            if job.begun == len(job.texts):
                parts = ([getattr(part, name) for part in job.done] for name in ("vectors", "truncated", "tokens"))
                made = Encoded(*(np.concatenate(part) for part in parts))
                finite = np.isfinite(made.vectors).all()
                _finish(job.future, made if finite else PromptcliError("a vector is not finite; try `dtype` float32"))

    def _call(self) -> None:
        """Do one piece of other work."""
        with self._changed:
            if not self._calls:
                return
            future, function = self._calls.popleft()
        if future.cancelled():
            return

        def progress(done: float) -> None:
            if future.cancelled() or self._abandoned:
                raise _LeftError
            self._round()

        try:
            _finish(future, function(progress))
        except _LeftError:
            future.cancel()
        except Exception as error:
            _finish(future, error)


def _finish(future: "Future[Any]", result: Any) -> None:
    """Give a result or an error to whoever still waits for it."""
    if not future.done() and future.set_running_or_notify_cancel():
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
