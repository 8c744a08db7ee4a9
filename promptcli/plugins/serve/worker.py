"""A thread that computes for a server, and does not keep the process from ending."""

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from promptcli.extending import COMPUTING

Result = TypeVar("Result")

_Job = tuple["Future[Any]", Callable[[], Any]]


class Worker(Executor):
    """One thread; the end of the process does not wait for its work, as it does not for a
    ThreadPoolExecutor's.

    Whatever the work raises is an ``Exception``: a panic of Rust's, which is not one, would pass by
    those who handle them.
    """

    def __init__(self, prepare: Callable[[], None] | None = None) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._jobs, prepare), daemon=True).start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(
        self, function: Callable[..., Result], /, *args: Any, **options: Any
    ) -> "Future[Result]":
        future: Future[Result] = Future()
        self._jobs.put((future, lambda: function(*args, **options)))
        return future


def _work(jobs: "queue.SimpleQueue[_Job | None]", prepare: Callable[[], None] | None) -> None:
    thread = threading.current_thread()
    idle = thread.name
    if prepare is not None:
        prepare()
    while (job := jobs.get()) is not None:
        future, function = job
        if not future.set_running_or_notify_cancel():
            continue
        thread.name = COMPUTING
        try:
            result = function()
        except Exception as error:
            future.set_exception(error)
        except BaseException as error:
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            future.set_result(result)
        thread.name = idle
        del job, future, function  # else an answer stays in memory until the next request
