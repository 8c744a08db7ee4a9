"""A stream read ahead: by another thread, or one item."""

import contextvars
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
            started = ((item, _start(pool, work, item)) for item in itertools.chain(few, remaining))
            for item, result in one_late(started):
                yield item, result.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _start(pool: ThreadPoolExecutor, work: Callable[[Item], Result], item: Item) -> Future[Result]:
    context = contextvars.copy_context()  # of the messages that it raises
    return pool.submit(context.run, work, item)


def one_late(items: Iterable[Item]) -> Iterator[Item]:
    """Yield every item when the next one has been made."""
    waiting: list[Item] = []
    for item in items:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.pop(0)
    yield from waiting
