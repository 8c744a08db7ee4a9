"""A process that dies at any step of its writing, as by a kill, and work that Ctrl-C interrupts."""

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

STEPS = ("rename", "replace", "fsync", "unlink", "rmdir", "open", "mkdir")


def in_a_process_that_dies(calls: int, work: Callable[[], Any]) -> int:
    """Return the exit code of a forked process that does ``work``.

    The process dies with code 9 after ``calls`` calls of the functions in ``STEPS``.
    """
    child = os.fork()
    if child == 0:
        code = 1
        gc.freeze()  # otherwise a collection copies the memory of the whole suite
        try:
            if threads := sys.modules.get("promptcli.encoder.batching"):
                # this process computes in one thread, whatever an earlier test did
                threads._THREADED.clear()
            left = iter(range(calls))
            for name in STEPS:
                setattr(os, name, _counting(getattr(os, name), left, lambda: os._exit(9)))
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at_every_step(
    folder: Path,
    begin: Callable[[Path], Any],
    work: Callable[[Path], Any],
    look: Callable[[Path], Any],
    finish: Callable[[Path], Any],
    *,
    least: int = 3,
) -> list[Any]:
    """Kill ``work`` one step later each time, until it ends, and return what ``look`` finds.

    Each time has an empty folder. ``begin`` is called in it before, ``finish`` afterwards. More
    than ``least`` processes must die.
    """
    codes, found = [], []
    for step in range(200):
        own = folder / str(step)
        own.mkdir(parents=True)
        begin(own)
        codes.append(in_a_process_that_dies(step, lambda: work(own)))  # noqa: B023
        found.append(look(own))
        finish(own)
        if codes[-1] == 0:
            break
    assert codes[-1] == 0 and len(codes) > least and set(codes[:-1]) == {9}
    return found


def interrupted(calls: int, work: Callable[[], Any]) -> bool:
    """Do ``work``, press Ctrl-C after ``calls`` calls of ``STEPS``, and return whether it came."""
    left, coming = iter(range(calls)), iter([KeyboardInterrupt])

    def interrupt() -> None:
        for error in coming:
            raise error

    with pytest.MonkeyPatch.context() as patch, without_collections():
        for name in STEPS:
            patch.setattr(os, name, _counting(getattr(os, name), left, interrupt))
        try:
            work()
        except KeyboardInterrupt:
            return True
    return False


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Run the block without garbage collections.

    Finalisers of objects of earlier tests would swallow an exception that comes while they run.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _counting(
    function: Callable[..., Any], left: Any, end: Callable[[], None]
) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        if next(left, None) is None:
            end()
        return function(*given, **named)

    return call
