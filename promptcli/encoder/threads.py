"""Batches computed several at a time on a CPU, a few threads each: less waiting of threads
for each other.
"""

import contextvars
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from promptcli.errors import PromptcliError

#: batches computed at a time, at most: Python hands out the operations of one after the other
PARALLEL_BATCHES = 8
PARALLEL_TOKENS = 1024  #: padded tokens of such a batch: its states stay in a core's own cache

Item = TypeVar("Item")
Result = TypeVar("Result")


#: Processes that have computed in several threads; a forked one finds its parent here.
_THREADED: set[int] = set()


def check_not_forked() -> None:
    """Refuse to compute after a fork from a process of several threads: the child would wait for
    OpenMP's for ever.
    """
    process = os.getpid()
    if _THREADED and process not in _THREADED:
        raise PromptcliError(
            "this process was forked from one that had encoded in several threads, which OpenMP"
            " does not survive: start it by multiprocessing.get_context('spawn'), or call"
            " torch.set_num_threads(1) before the first encode"
        )
    if torch.get_num_threads() > 1:
        _THREADED.add(process)


def batches_at_a_time(threads: int, most: int = PARALLEL_BATCHES) -> int:
    """Return the number of batches computed at a time, so that each has the same number of
    threads.
    """
    return max((count for count in range(1, most + 1) if threads % count == 0), default=1)


def map_in_threads(
    work: Callable[[Item], Result], batches: Sequence[Item], *, most: int = PARALLEL_BATCHES
) -> Iterator[tuple[Item, Result]]:
    """Yield every batch with its result, in order, from up to ``most`` threads (1: this one),
    without gradients.
    """
    threads = torch.get_num_threads()
    parallel = batches_at_a_time(threads, min(most, len(batches)))
    if parallel < 2:
        for batch in batches:
            yield batch, work(batch)
        return
    without_gradients = torch.inference_mode()(work)
    contexts = (contextvars.copy_context() for _ in batches)  # of the messages that it raises
    with ThreadPoolExecutor(
        parallel, initializer=lambda: torch.set_num_threads(threads // parallel)
    ) as pool:
        try:
            done = pool.map(
                lambda context, batch: context.run(without_gradients, batch), contexts, batches
            )
            yield from zip(batches, done, strict=True)
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)  # a thread's own setting is inherited by later threads
