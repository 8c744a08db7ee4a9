"""A thread whose work does not delay the end of the process."""

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

Result = TypeVar("Result")
_Work = tuple["Future[Any]", Callable[[], Any]]

#: Name of a thread while it does work that the process does not wait for at its end.
COMPUTING = "promptcli-computing"


def computing() -> bool:
    """Return whether a ``Worker`` is at work."""
    return any(thread.name == COMPUTING for thread in threading.enumerate())


class Worker(Executor):
    """One thread; unlike a ThreadPoolExecutor's, the end of the process does not wait for its work.

    Every error of the work is raised as an ``Exception``, even a Rust panic, which callers would
    not catch otherwise.
    """

    def __init__(self, prepare: Callable[[], None] | None = None) -> None:
        self._waiting: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        threading.Thread(target=_run, args=(self._waiting, prepare), daemon=True).start()
        weakref.finalize(self, self._waiting.put, None)

    def submit(
        self, function: Callable[..., Result], /, *args: Any, **options: Any
    ) -> "Future[Result]":
        future: Future[Result] = Future()
        self._waiting.put((future, lambda: function(*args, **options)))
        return future


def _run(waiting: "queue.SimpleQueue[_Work | None]", prepare: Callable[[], None] | None) -> None:
    thread = threading.current_thread()
    idle = thread.name
    if prepare is not None:
        prepare()
    while (work := waiting.get()) is not None:
        future, function = work
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
        del work, future, function  # else an answer stays in memory until the next request
