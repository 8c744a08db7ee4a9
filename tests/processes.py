"""Runs the command line, or a function, in a new process within milliseconds.

A new interpreter takes seconds to import torch and transformers. These processes are forked from a
server that has imported them; each worker of pytest-xdist has one. A process has its own id,
folder, environment, descriptors, signals and exit code. Only tests of an interpreter's start
(imports, closed streams) need ``subprocess``.

The server is forked from the worker before the first test, and keeps the libraries that the
collection has imported.
"""

import contextlib
import faulthandler
import functools
import itertools
import logging
import multiprocessing
import os
import select
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver, reduction, resource_tracker, util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PIPE = "pipe"
_LOADED = [
    *(
        "torch",
        "transformers.modeling_utils",
        "transformers.models.bert.modeling_bert",
        "transformers.models.auto",
    ),
    *("scipy.stats", "pyarrow.parquet", "accelerate", "typer._adapters", "rich.progress"),
    # no console: it looks at its terminal when it is made
    *("promptcli.models.loading", "promptcli.embedding.writing", "promptcli.training.methods"),
    *("promptcli.select.template_search", "promptcli.evaluation.evaluator"),
    *("promptcli.backbones.by_name", "promptcli.encoder.encoder"),
    "promptcli.retrieval.sentence_index",
    *("hypothesis", "tests.processes", "tests.unsynced", "tests.frozen_imports"),
]


@functools.cache
def context() -> Any:
    """Return the context of multiprocessing whose processes are forked from the server.

    First called before any test has changed this process, which the server is a copy of.
    """
    resource_tracker.ensure_running()  # it is not a copy
    forkserver.set_forkserver_preload(_LOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(util, "spawnv_passfds", _fork)
        forkserver.ensure_running()
    return multiprocessing.get_context("forkserver")


def _fork(_: str, interpreter: list[str], passed: list[int]) -> int:
    """Run an interpreter's command in a fork of this process, and return its id.

    Until a process is asked for, or the tests have ended, it waits.
    """
    if pid := os.fork():
        return pid
    status = 1
    try:
        faulthandler.disable()  # it has its own descriptor
        for kept, other in itertools.pairwise([2, *sorted(passed), util.MAXFD]):
            os.closerange(kept + 1, other)  # all others are the worker's
        listener, alive, *_ = passed
        if listener in select.select([listener, alive], [], [])[0]:
            _become_fresh()
            exec(interpreter[-1], {})
    except SystemExit:
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _become_fresh() -> None:
    """Forget all modules but the libraries: the program's modules look at their place on import."""
    os.chdir(ROOT)  # not the folder of a test, which packages may be installed in
    # read at import; so does promptcli where it opens folders
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    if "transformers" in sys.modules:
        sys.modules["transformers"].logging.set_verbosity_error()
    logging.root.handlers.clear()  # pytest's, which leave nothing to print for
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)  # as a new interpreter has it
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("promptcli", "tests"):
            del sys.modules[name]


def at_once(path: Path, *works: tuple[Callable[[Path, str, int], Any], int]) -> None:
    """Run processes ``a`` and ``b`` at once.

    Each calls its function as many times as given, with path, letter and number from 0.
    """
    barrier = context().Barrier(len(works))
    running = [
        context().Process(target=_repeat, args=(barrier, path, letter, *work))
        for letter, work in zip("ab", works, strict=True)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join(300)
    assert [process.exitcode for process in running] == [0] * len(works)


def _repeat(
    barrier: Any, path: Path, letter: str, work: Callable[[Path, str, int], Any], times: int
) -> None:
    barrier.wait()
    for number in range(times):
        work(path, letter, number)


class Program:
    """A run of the command line, used as ``subprocess.Popen`` is.

    ``main`` is run in place of promptcli, ``before`` first of all; ``environment`` is added to the
    test's. ``streams`` are ``stdin`` (nothing), ``stdout`` and ``stderr`` (pipes): else a file, a
    descriptor or ``PIPE``.
    """

    def __init__(
        self,
        *arguments: object,
        main: Callable[[], object] | None = None,
        environment: dict[str, str] | None = None,
        before: Callable[[], object] | None = None,
        **streams: Any,
    ) -> None:
        given = {"stdin": os.devnull, "stdout": PIPE, "stderr": PIPE} | streams
        with contextlib.ExitStack() as opened:  # the process's ends are its own once it is there
            ends = {name: self._open(name, stream, opened) for name, stream in given.items()}
            self._process = context().Process(
                target=_run,
                args=(
                    main or program,
                    [str(argument) for argument in arguments],
                    {**os.environ, **(environment or {})},
                    [_Descriptor(ends[name]) for name in ("stdin", "stdout", "stderr")],
                    before,
                ),
            )
            self._process.start()
        self.pid = self._process.pid

    def _open(self, name: str, stream: Any, opened: contextlib.ExitStack) -> int:
        """Return the descriptor that the process gets.

        The other end of a pipe becomes an attribute.
        """
        if stream is not PIPE:
            setattr(self, name, None)
            if isinstance(stream, str):
                stream = opened.enter_context(open(stream, "rb"))
            return stream if isinstance(stream, int) else stream.fileno()
        read, written = os.pipe()
        theirs, ours = (
            (read, open(written, "wb")) if name == "stdin" else (written, open(read, "rb"))
        )
        opened.callback(os.close, theirs)
        setattr(self, name, ours)
        return theirs

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = 300) -> int:
        """Return the exit code, minus the number of a signal that ended it.

        Killed when the time is over.
        """
        self._process.join(timeout)
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
            self._process.join()
        return self.returncode

    def communicate(self, timeout: float = 300) -> tuple[bytes, bytes]:
        """Return all that is written to stdout and stderr until the end."""
        with contextlib.suppress(AttributeError, BrokenPipeError):
            self.stdin.close()
        with ThreadPoolExecutor() as readers:
            written = [
                readers.submit(stream.read) if stream else None
                for stream in (self.stdout, self.stderr)
            ]
            self.wait(timeout)
        return tuple(reader and reader.result() for reader in written)


def ranks_of_two() -> list[dict[str, str]]:
    """Return the environment of each of two processes of one run, as torchrun makes it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return [{**shared, **sizes, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]


class _Descriptor:
    """A descriptor that is sent to a process and arrives as a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _arrived, (reduction.DupFd(self.number),)


def _arrived(descriptor: Any) -> int:
    return descriptor.detach()


def program() -> None:
    """Run the program as ``python -m promptcli`` does."""
    from promptcli.__main__ import main

    main()


def _run(
    main: Callable[[], object], words: list[str], environment: Any, streams: list[int], before: Any
) -> None:
    """Become the program: set what an interpreter sets at its start."""
    # which a shell's background jobs ignore
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["promptcli", *words]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    sys.stdin = open(0, encoding=encoding, closefd=False)
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)
    sys.stderr = open(
        2, "w", encoding=encoding, errors="backslashreplace", closefd=False, buffering=1
    )
    from promptcli.backbones import kernels

    bfloat16 = os.environ.get("PROMPTCLI_TEST_BFLOAT16") == "1"  # see answer_of_the_processor
    kernels.cpu_computes_bfloat16 = lambda: bfloat16
    if before:
        before()
    main()
