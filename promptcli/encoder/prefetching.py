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
    pending: list[tuple[Item, Future[Result]]] = []
    with ThreadPoolExecutor(1) as pool:
        try:
            for item in itertools.chain(few, remaining):
                context = contextvars.copy_context()  # of the messages that it raises
                pending.append((item, pool.submit(context.run, work, item)))
                if len(pending) > 1:
                    yield pending[0][0], pending.pop(0)[1].result()
            for item, result in pending:
                yield item, result.result()
        finally:
            pool.shutdown(cancel_futures=True)


def one_late(items: Iterable[Item]) -> Iterator[Item]:
    """Yield every item when the next one has been made."""
    waiting: list[Item] = []
    for item in items:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.pop(0)
    yield from waiting
