"""Batches of model inputs, in this order: planned by length under a token budget, split if memory
runs out, copied to the device, and computed in several threads.

On a CPU several batches are computed at a time, with a few threads each, because few threads wait
less for each other.
"""

import contextvars
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

from promptcli.backbones.devices import to_device
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import Batch
from promptcli.errors import OutOfMemoryError, PromptcliError, is_out_of_memory
from promptcli.notes import note

TOKEN_BUDGET = 4096  #: padded tokens of a batch on a CPU: more do not fit its caches
#: Padded tokens of a batch on a GPU with enough memory: with fewer it waits for the next batch.
_GPU_TOKENS = 65536
#: float32 numbers that a layer needs for each token and column: its inner states, and a reserve
_NUMBERS_A_COLUMN = 64
#: Longer inputs are padded to a multiple of 8, since long sentences are few.
_EXACT_LENGTHS = 48
_MANY_BATCHES = 16  #: with at least this many batches, the last batch is also filled up

IN_FLIGHT = 2  #: batches that a GPU computes or copies while the host continues

#: Largest number of batches that a CPU computes at a time: only one thread runs Python at a time.
PARALLEL_BATCHES = 8
PARALLEL_TOKENS = 1024  #: padded tokens of such a batch: its states stay in a core's own cache

Item = TypeVar("Item")
Result = TypeVar("Result")


def plan_batches(
    lengths: np.ndarray, token_budget: int = TOKEN_BUDGET, *, batch_size: int | None = None
) -> Iterator[np.ndarray]:
    """Yield the indices of the inputs of each batch, for n inputs of these lengths (n,).

    The longest inputs come first, so that memory is allocated only once. Every batch has at most
    ``batch_size`` inputs and is filled to the budget, so that inputs of a length always have the
    same shape: the matrix library keeps compiled code and scratch memory for each shape. The last
    of many batches is filled by repeating its inputs.
    """
    order = np.argsort(-lengths, kind="stable")
    sorted_lengths = lengths[order]
    start = batches = 0
    while start < len(order):
        longest = int(sorted_lengths[start])
        size = max(1, token_budget // padded_length(longest))
        size = min(size, batch_size or size)
        batch = order[start : start + size]
        if batches >= _MANY_BATCHES:
            batch = np.resize(batch, size)
        yield batch
        start += size
        batches += 1


def token_budget(device: torch.device, width: int) -> int:
    """Return the padded tokens of a batch; on a GPU, a power of two that fits its free memory for
    states of this width.
    """
    if device.type != "cuda":
        return TOKEN_BUDGET
    tokens = torch.cuda.mem_get_info(device)[0] // (4 * _NUMBERS_A_COLUMN * width)
    return int(min(_GPU_TOKENS, max(TOKEN_BUDGET, 1 << max(0, tokens.bit_length() - 1))))


class BatchSplitter:
    """Splits a batch that does not fit into memory, and all later batches with as many tokens."""

    def __init__(self, lengths: np.ndarray, device: torch.device) -> None:
        self._lengths = lengths
        self._device = device
        self._tokens: int | None = None  # tokens of a batch that fits; None: all fitted so far

    def run(
        self, compute: Callable[[np.ndarray], Result], batch: np.ndarray
    ) -> list[tuple[np.ndarray, Result]]:
        """Return the results of a batch (indices of inputs), split into batches that fit."""
        tokens = len(batch) * int(self._lengths[batch].max())
        if self._tokens is None or tokens <= self._tokens or len(batch) == 1:
            try:
                return [(batch, compute(batch))]
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if len(batch) == 1:
                    remedy = "a smaller max_length, the dtype bfloat16 or another device"
                    raise OutOfMemoryError(
                        f"out of memory with a single sentence of {tokens:,} tokens; give {remedy}"
                    ) from None
            # outside of the handler, whose traceback keeps the tensors that filled the memory
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            self._tokens = min(self._tokens or tokens, tokens) // 2
            note(
                f"memory ran out on {self._device}; going on with batches of {self._tokens:,}"
                " tokens (same vectors)"
            )
        first, second = np.array_split(batch, 2)
        return [*self.run(compute, first), *self.run(compute, second)]


def padded_length(longest: int) -> int:
    """Return the length that a batch with this longest input is padded to."""
    if longest <= _EXACT_LENGTHS:
        return longest
    return math.ceil(longest / 8) * 8


def make_batch(
    inputs: Iterable[Sequence[int]],
    mask_positions: np.ndarray | None,
    pad: int,
    device: torch.device,
    limit: int,
) -> Batch:
    """Return the padded batch of the token ids of n inputs, at most ``limit`` tokens long.

    ``mask_positions`` are the positions (n, k) of the templates' masks.
    """
    ragged = RaggedIds.of(inputs)
    longest = min(padded_length(int(ragged.lengths.max())), limit)
    ids = ragged.to_matrix(longest, pad)
    arrays = [ids, ragged.lengths]
    if mask_positions is not None and mask_positions.size:
        arrays.append(mask_positions)
    # all arrays are sent by one copy
    flat = to_device(np.concatenate([array.ravel() for array in arrays]), device)
    sections = torch.split_with_sizes(flat, [array.size for array in arrays])
    sent = [section.view(array.shape) for section, array in zip(sections, arrays, strict=True)]
    masks = sent[2] if len(sent) > 2 else None
    return Batch(sent[0], sent[1], masks, lengths_on_host=ragged.lengths, ids_on_host=ids)


#: Ids of the processes that have computed in several threads. A forked process inherits the set,
#: which then has its parent's id, not its own.
_THREADED: set[int] = set()
#: Held while ``_set_threads`` has changed the number of threads that torch gives to new threads.
_SETTING_THREADS = threading.Lock()


def check_not_forked() -> None:
    """Refuse to compute in a fork of a process that used several threads: the fork would wait
    forever for OpenMP threads.
    """
    process = os.getpid()
    if _THREADED and process not in _THREADED:
        raise PromptcliError(
            "this process was forked from one that had encoded in several threads, which OpenMP"
            " does not survive: start it by multiprocessing.get_context('spawn'), or call"
            " torch.set_num_threads(1) before the first encode"
        )
    with _SETTING_THREADS:  # torch fixes a thread's thread count at its first call
        threads = torch.get_num_threads()
    if threads > 1:
        _THREADED.add(process)


def _set_threads(own: int, of_new_threads: int) -> None:
    """Set the number of torch's threads for the calling thread only.

    torch gives a new thread the number that was set last, in any thread. So a short-lived thread
    sets that number again.
    """
    with _SETTING_THREADS:
        torch.get_num_threads()  # otherwise its first operation would reset the thread count
        torch.set_num_threads(own)
        setting = threading.Thread(target=torch.set_num_threads, args=[of_new_threads])
        setting.start()
        setting.join()


def batches_at_a_time(threads: int, max_batches: int = PARALLEL_BATCHES) -> int:
    """Return the number of batches computed at a time: the largest divisor of ``threads`` up to
    ``max_batches``, so that each batch has the same number of threads.
    """
    return max((count for count in range(1, max_batches + 1) if threads % count == 0), default=1)


def map_in_threads(
    work: Callable[[Item], Result], batches: Sequence[Item], *, max_threads: int = PARALLEL_BATCHES
) -> Iterator[Result]:
    """Yield the result of every batch, in order, computed without gradients by up to
    ``max_threads`` threads; by the calling thread if that is 1.
    """
    threads = torch.get_num_threads()
    parallel = batches_at_a_time(threads, min(max_threads, len(batches)))
    if parallel < 2:
        yield from map(work, batches)
        return
    without_gradients = torch.inference_mode()(work)
    # copies of the context, so that notes of the work reach the same reader
    contexts = (contextvars.copy_context() for _ in batches)
    with ThreadPoolExecutor(
        parallel, initializer=_set_threads, initargs=(threads // parallel, threads)
    ) as pool:
        try:
            yield from pool.map(
                lambda context, batch: context.run(without_gradients, batch), contexts, batches
            )
        finally:
            pool.shutdown(cancel_futures=True)
