"""The batches of a run: the seed alone decides the order of the rows of its sources."""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from promptcli.errors import UsageError, counted
from promptcli.training.methods.method import TrainingSettings

_SORTED = 32  # batches within which rows are sorted by length
# seed an epoch's order, and the order of a source
_ORDER = 7
_DRAW = 8


def steps_of(settings: TrainingSettings, examples: int) -> int:
    """Return the steps of a run on a number of examples; refuse fewer examples than a batch."""
    size = settings.batch_size
    if examples < size:
        raise UsageError(
            f"{counted(examples, 'example')} are fewer than one batch of {size}; set {examples},"
            " or give more data",
            parameter="batch_size",
        )
    batches = examples // size if settings.drop_last else math.ceil(examples / size)
    return settings.steps or max(1, round(settings.epochs * batches))


def source_shares(sizes: Sequence[int], temperature: float) -> list[int]:
    """Return the number of rows of each source in an epoch, in proportion to n^(1/T).

    The largest remainders are rounded up.
    """
    total = sum(sizes)
    weights = np.asarray(sizes, np.float64) ** (1 / temperature)
    exact = total * weights / weights.sum()
    shares = np.floor(exact).astype(int)
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return [int(share) for share in shares]


def batches(
    settings: TrainingSettings, sizes: Sequence[int], lengths: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield the rows of each batch endlessly; the last batch of an epoch may be short.

    A source with fewer rows than its share starts over within the epoch; a source with more rows
    continues in the next epoch. Each pass over a source has a new order. With ``lengths`` (of all
    rows) a batch holds rows of similar lengths.
    """
    size = settings.batch_size
    shares = source_shares(sizes, settings.data_temperature)
    firsts = itertools.accumulate(sizes, initial=0)
    sources = [
        _again_and_again(settings.seed, number, range(first, first + rows))
        for number, (first, rows) in enumerate(zip(firsts, sizes, strict=False))
    ]
    for epoch in itertools.count():
        order = np.random.default_rng([settings.seed, _ORDER, epoch])
        rows = order.permutation(sum(sizes))
        if shares != list(sizes):
            drawn = map(itertools.islice, sources, shares)
            rows = np.array(list(itertools.chain.from_iterable(drawn)))[rows]
        if lengths is not None:
            windows = _cut(rows, _SORTED * size)
            by_length = [window[lengths[window].argsort(kind="stable")] for window in windows]
            rows = np.concatenate(by_length)
        cut = _cut(rows, size)
        if lengths is not None:
            cut = [cut[number] for number in order.permutation(len(cut))]
        yield from (batch for batch in cut if len(batch) == size or not settings.drop_last)


def _again_and_again(seed: int, source: int, rows: range) -> Iterator[int]:
    """Yield the rows of a source endlessly, each time in a new order."""
    for number in itertools.count():
        yield from np.random.default_rng([seed, _DRAW, source, number]).permutation(rows).tolist()


def _cut(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Split the rows into batches; the last batch may be short."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]
