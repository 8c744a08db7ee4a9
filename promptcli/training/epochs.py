"""Which rows make which batch: epoch after epoch, from one source or several, all of it by settings and seed."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from promptcli.errors import UsageError
from promptcli.training.methods.training_settings import TrainingSettings

_ORDER, _DRAW = 7, 8  # what the generators of an epoch's order, and of a source's, get with the seed


def steps_of(settings: TrainingSettings, sizes: Sequence[int]) -> int:
    """Return how many steps a run takes on sources of so many examples.

    Raises:
        UsageError: Fewer examples than one batch.
    """
    lengths = batch_lengths(settings, sizes)
    if not lengths or sum(sizes) < settings.batch_size:
        raise UsageError(
            f"{sum(sizes)} examples are less than one batch of {settings.batch_size}; give more, or --batch-size"
        )
    return max(1, round(settings.epochs * len(lengths)))


def batch_lengths(settings: TrainingSettings, sizes: Sequence[int]) -> list[int]:
    """Return the number of examples of each batch of an epoch, before the batches are put in order."""
    shares = source_shares(sizes, settings.data_temperature)
    parts = shares if settings.batches == "one-source" else [sum(shares)]
    size = settings.batch_size
    lengths = [min(size, part - start) for part in parts for start in range(0, part, size)]
    return [length for length in lengths if length == size or not settings.drop_last]


def source_shares(sizes: Sequence[int], temperature: float) -> list[int]:
    """Return how many rows of each source an epoch has: n^(1/T) / sum n^(1/T) of all, which are as many as there are.

    Rounded so that they add up: the largest remainders up, the others down.
    """
    total = sum(sizes)
    weights = np.asarray(sizes, np.float64) ** (1 / temperature)
    exact = total * weights / weights.sum()
    shares = np.floor(exact).astype(int)
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return [int(share) for share in shares]


def batches(settings: TrainingSettings, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the rows of each batch without end; a batch that ends an epoch, or its source, may be short.

    With several sources one whose share is more than its rows begins again, one whose share is less goes on in the
    next epoch where it stopped, each time in a new order.
    """
    size = settings.batch_size
    shares = source_shares(sizes, settings.data_temperature)
    epoch = 0
    while True:
        order = np.random.default_rng([settings.seed, _ORDER, epoch])
        drawn = [
            first + _draw(settings.seed, source, rows, epoch * share, share)
            for source, (first, rows, share) in enumerate(zip(np.cumsum([0, *sizes]), sizes, shares, strict=False))
        ]
        if settings.batches == "one-source":
            parts = [part[start : start + size] for part in drawn for start in range(0, len(part), size)]
            parts = [parts[number] for number in order.permutation(len(parts))]
        else:
            chosen = order.permutation(sum(sizes))
            if shares != list(sizes):
                chosen = np.concatenate(drawn)[chosen]
            parts = [chosen[start : start + size] for start in range(0, len(chosen), size)]
        yield from (part for part in parts if len(part) == size or not settings.drop_last)
        epoch += 1


def _draw(seed: int, source: int, rows: int, start: int, count: int) -> np.ndarray:
    """Return rows ``start`` to ``start + count`` of a source that is gone through again and again, in new orders."""
    passes = range(start // rows, math.ceil((start + count) / rows))
    orders = [np.random.default_rng([seed, _DRAW, source, number]).permutation(rows) for number in passes]
    first = start - passes.start * rows
    return np.concatenate(orders)[first : first + count]
