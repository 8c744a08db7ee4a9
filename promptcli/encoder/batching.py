"""Batches of spliced inputs: sorted by length, under a token budget, so that little or nothing is padding.

Knows nothing of models or recipes.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from promptcli.backbones.states import Batch

#: Padded tokens a batch may hold.
TOKEN_BUDGET = 4096
#: Above this length every eighth one is a shape, below it each: long sentences are few, and few of a length.
_EXACT_LENGTHS = 48
#: From so many batches on, the last one is filled up too.
_MANY_BATCHES = 16


def plan_batches(
    lengths: np.ndarray, token_budget: int = TOKEN_BUDGET, *, most: int | None = None
) -> Iterator[np.ndarray]:
    """Yield the row numbers of each batch, longest inputs first (so that memory is asked for once).

    Every batch is filled to the budget, so that a length has one shape: the matrix library keeps compiled code and
    scratch memory per shape, and with batches of any size the peak memory grows with the number of lines. Of many
    batches the last one is filled by repeating its rows.

    Args:
        lengths: (n,) tokens of each input.
        token_budget: Rows times longest row of a batch stay within it, unless one row alone is longer.
        most: Rows of a batch; without it only the budget counts.
    """
    order = np.argsort(-lengths, kind="stable")
    sorted_lengths = lengths[order]
    start = batches = 0
    while start < len(order):
        longest = int(sorted_lengths[start])
        rows = max(1, token_budget // padded_length(longest))
        rows = min(rows, most or rows)
        chosen = order[start : start + rows]
        yield np.resize(chosen, rows) if batches >= _MANY_BATCHES else chosen
        start += rows
        batches += 1


def padded_length(longest: int) -> int:
    """Return the length that a batch is padded to: the longest input's, a multiple of 8 for long ones."""
    return longest if longest <= _EXACT_LENGTHS else -(-longest // 8) * 8


def make_batch(
    rows: Sequence[Sequence[int]], mask_slots: Sequence[list[int]] | None, pad: int, device: torch.device, limit: int
) -> Batch:
    """Return the padded batch of some rows of ids, at most ``limit`` tokens long.

    Where the rows' templates differ in their number of masks, a row's last one stands for those it lacks.
    """
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    longest = min(padded_length(int(lengths.max())), limit)
    if (lengths == longest).all():
        ids = np.array(rows, dtype=np.int64)
    else:
        ids = np.full((len(rows), longest), pad, dtype=np.int64)
        for line, row in zip(ids, rows, strict=True):
            line[: len(row)] = row
    masks = None
    if mask_slots and (most := max(map(len, mask_slots))):
        masks = torch.tensor([row + row[-1:] * (most - len(row)) for row in mask_slots], device=device)
    return Batch(torch.from_numpy(ids).to(device), torch.from_numpy(lengths).to(device), masks)


def average_rows(bags: Sequence[Sequence[int]], matrix: torch.Tensor) -> torch.Tensor:
    """Return the mean of some rows of a matrix for each of n bags of row numbers, (n, d) float32; of none, zeros.

    Args:
        bags: n lists of row numbers.
        matrix: (v, d) of any precision; sums are made in float32.
    """
    lengths = np.fromiter((len(bag) for bag in bags), np.int64, len(bags))
    flat = np.fromiter(itertools.chain.from_iterable(bags), np.int64, int(lengths.sum()))
    used = np.flatnonzero(np.bincount(flat, minlength=len(matrix)))  # few of the rows, so that these are made float32
    place = np.empty(len(matrix), dtype=np.int64)
    place[used] = np.arange(len(used))
    ends = lengths.cumsum()
    numbers, starts, kept = (torch.from_numpy(of).to(matrix.device) for of in (place[flat], ends - lengths, used))
    return torch.nn.functional.embedding_bag(numbers, matrix[kept].float(), starts, mode="mean")
