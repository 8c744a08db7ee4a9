"""A worker thread whose work does not delay the end of the process."""

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

Result = TypeVar("Result")
_Task = tuple["Future[Any]", Callable[[], Any]]

#: Name of the thread of a ``Worker`` while it works.
COMPUTING = "promptcli-computing"


def computing() -> bool:
    """Return whether a ``Worker`` is at work."""
    return any(thread.name == COMPUTING for thread in threading.enumerate())


class Worker(Executor):
    """Runs functions in one thread; unlike a ThreadPoolExecutor, it does not delay the end of the
    process.

    Every error is raised as an ``Exception``, even a Rust panic, which callers would not catch.
    """

    def __init__(self, prepare: Callable[[], None] | None = None) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        threading.Thread(target=_run, args=(self._tasks, prepare), daemon=True).start()
        weakref.finalize(self, self._tasks.put, None)

    def submit(
        self, function: Callable[..., Result], /, *args: Any, **options: Any
    ) -> "Future[Result]":
        future: Future[Result] = Future()
        self._tasks.put((future, lambda: function(*args, **options)))
        return future


def _run(tasks: "queue.SimpleQueue[_Task | None]", prepare: Callable[[], None] | None) -> None:
    thread = threading.current_thread()
    idle_name = thread.name
    if prepare is not None:
        prepare()
    while (task := tasks.get()) is not None:
        future, function = task
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
        thread.name = idle_name
        del task, future, function  # otherwise the result stays in memory until the next task
