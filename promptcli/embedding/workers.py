"""Worker processes of this machine: each opens the encoder once and makes one shard after another.

A shard whose worker dies is given to a new one, once. Workers end with the process that started them, even where
that is killed.
"""

import dataclasses
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from promptcli.embedding.part_job import PartJob, Pool, release_memory
from promptcli.errors import PromptcliError, is_out_of_memory
from promptcli.storage.files import remove_leftovers

#: Processes are spawned, since a forked one cannot use a GPU.
CONTEXT: Any = multiprocessing.get_context("spawn")


@dataclasses.dataclass
class _Worker:
    process: Any
    connection: Connection
    device: str
    shard: int
    rows: int = 0  #: of the shard, as far as it is


def run_workers(job: PartJob, shards: list[int], pool: Pool) -> None:
    """Make parts by worker processes.

    Raises:
        PromptcliError: What a worker met, or a shard whose worker died twice.
    """
    release_memory()
    devices = pool.devices()[: len(shards)]
    if job.threads is None and "cpu" in devices:
        job = dataclasses.replace(job, threads=max(1, torch.get_num_threads() // len(devices)))
    waiting, crew = deque(shards), _Crew(job, pool)
    try:
        for device in devices:
            crew.start(device, waiting.popleft())
        while crew.workers:
            for ready in wait(list(crew.workers)):
                assert isinstance(ready, Connection)
                crew.hear(crew.workers[ready], waiting)
    finally:
        crew.end()


class _Crew:
    """The workers of a run, by the connection to each."""

    def __init__(self, job: PartJob, pool: Pool) -> None:
        self._job, self._pool = job, pool
        self._died: Counter[int] = Counter()
        self.workers: dict[Connection, _Worker] = {}

    def start(self, device: str, shard: int) -> None:
        """Start a worker with its first shard."""
        ours, its = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_work, args=(its, self._job, device), daemon=True)
        process.start()
        its.close()
        self.workers[ours] = _Worker(process, ours, device, shard)
        ours.send(shard)

    def hear(self, worker: _Worker, waiting: deque[int]) -> None:
        """Take what a worker sent: rows newly done, an error, why it is no more, or None where its shard is whole."""
        message = _receive(worker)
        if isinstance(message, int):
            worker.rows += message
            self._pool.progress(message)
        elif isinstance(message, Exception):
            raise message
        elif message is not None:
            self._replace(worker, message)
        elif waiting:
            worker.shard, worker.rows = waiting.popleft(), 0
            worker.connection.send(worker.shard)
        else:
            del self.workers[worker.connection]
            worker.connection.close()  # it ends at that
            worker.process.join()

    def _replace(self, worker: _Worker, why: str) -> None:
        self._died[worker.shard] += 1
        if self._died[worker.shard] > 1:
            raise self._job.lost(worker.shard, f"its worker ended twice ({why})")
        self._pool.announce(f"shard {worker.shard}: its worker ended ({why}); a new one makes it again")
        self._pool.progress(-worker.rows)
        del self.workers[worker.connection]
        self.start(worker.device, worker.shard)

    def end(self) -> None:
        """Stop those that still work, and take away what they had not finished."""
        for worker in self.workers.values():
            worker.process.kill()
        for worker in self.workers.values():
            worker.process.join()
        if self.workers:
            remove_leftovers(self._job.folder)


def _receive(worker: _Worker) -> Any:
    try:
        return worker.connection.recv()
    except (EOFError, ConnectionError):
        worker.process.join()
    code = worker.process.exitcode
    memory = ", out of memory?" if code == -signal.SIGKILL else ""
    return f"killed by signal {-code}{memory}" if code < 0 else f"exit code {code}"


def _work(connection: Connection, job: PartJob, device: str) -> None:
    """Be a worker: take shards from the connection until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal all get it; the one who started this one ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    encoder = None
    while True:
        try:
            shard = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            encoder = encoder or job.open(device)
            job.make(encoder, shard, connection.send)
        except (PromptcliError, OSError) as error:
            connection.send(error)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            connection.send("out of memory")
            return
        else:
            connection.send(None)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
