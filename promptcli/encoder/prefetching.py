"""Streams read ahead, by another thread or by one item."""

import contextvars
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(
    work: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[tuple[Item, Result]]:
    """Yield every item with its result, computed by another thread while the previous one is in
    use.
    """
    remaining = iter(items)
    few = list(itertools.islice(remaining, 2))
    if len(few) < 2:  # nothing to overlap with
        yield from ((item, work(item)) for item in few)
        return
    with ThreadPoolExecutor(1) as pool:
        try:
            started = (
                # in the context of the messages that it raises
                (item, pool.submit(contextvars.copy_context().run, work, item))
                for item in itertools.chain(few, remaining)
            )
            for item, result in delay_by_one(started):
                yield item, result.result()
        finally:
            pool.shutdown(cancel_futures=True)


def delay_by_one(items: Iterable[Item]) -> Iterator[Item]:
    """Yield every item once the next one is made."""
    with_end = itertools.chain(items, [None])
    return (item for item, _ in itertools.pairwise(with_end))  # type: ignore[misc]
