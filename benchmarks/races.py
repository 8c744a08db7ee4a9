"""Readers next to writers, in real processes, and how many ever read a mixture of two writes.

    TMPDIR=/dev/shm python benchmarks/races.py [--kind entry|index] [--writes 10000] [--reads
    100000]
        [--readers 2] [--minutes 30]

One process replaces a registry entry or an index again and again; every number in a version is that
version's number. The others read all the time and check that what they read is of one version. It
ends when all writes and reads are done, or the minutes of a kind are over, and prints writes,
reads, versions seen and mixtures, which must be 0.
"""

import argparse
import multiprocessing
import multiprocessing.synchronize
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np


class EntryThing:
    """A registry entry: recipe, tensors and scores of one version."""

    def write(self, folder: Path, number: int) -> None:
        """Replace the entry."""
        import torch

        from promptcli.models.entries import Entry, Registry
        from promptcli.recipe import Recipe

        recipe = Recipe(max_length=8 + number)
        tensors = {
            "mean": torch.full((4,), float(number)),
            "matrix": torch.full((4, 2), float(number)),
        }
        Registry(folder).save(Entry("raced", recipe, tensors, {"number": number}), force=True)

    def read(self, folder: Path) -> set[int]:
        """Return the versions that are found in the entry."""
        from promptcli.models.entries import Registry

        entry = Registry(folder).load("raced")
        numbers = {
            int(value) for tensor in entry.tensors.values() for value in tensor.flatten().tolist()
        }
        return numbers | {(entry.recipe.max_length or 0) - 8, entry.provenance["number"]}


def rows_of(number: int) -> Any:
    """Return rows of one version; how many they are follows from it."""
    from promptcli.retrieval.new_rows import NewRows

    count = 3 + number % 5
    vectors = np.random.default_rng(number).normal(size=(count, 8)).astype(np.float32)
    ids = [f"id {number} {row}" for row in range(count)]
    return NewRows(ids, [f"text {number}"] * count, vectors=vectors)


class IndexThing:
    """An index: vectors, ids and texts of one version."""

    def write(self, folder: Path, number: int) -> None:
        """Put a new index in the place of the last one."""
        from promptcli.retrieval.store import creating

        with creating(folder / "index", force=True) as store:
            store.write_settings(created=str(number), width=8)
            store.append(rows_of(number))

    def read(self, folder: Path) -> set[int]:
        """Return the versions that are found in the index."""
        from promptcli.retrieval.store import Store

        store = Store.open(folder / "index")
        with store.reading():
            number = int(store.settings.created)
            rows = list(store.all_rows())
            vectors = store.vectors([row.key for row in rows])
        store.close()
        wanted = rows_of(number)
        if len(rows) != len(wanted) or not np.array_equal(vectors, wanted.vectors):
            return {number, -1}
        found = {int(str(value).split()[1]) for row in rows for value in (row.id, row.text)}
        return {number} | found


class ChangedThing(IndexThing):
    """The same index, changed in its place."""

    def write(self, folder: Path, number: int) -> None:
        """Change all rows of the index in one transaction."""
        from promptcli.retrieval.store import Store

        if number == 0:
            super().write(folder, number)
            return
        store = Store.open(folder / "index")
        with store.changing():
            store.remove([key for (key,) in store.sql.execute("SELECT key FROM rows")])
            store.append(rows_of(number))
            store.write_settings(created=str(number))
        store.close()


THINGS: dict[str, Any] = {"entry": EntryThing, "index": IndexThing, "change": ChangedThing}


def read_often(
    kind: str,
    folder: Path,
    wanted: int,
    until: float,
    done: multiprocessing.synchronize.Event,
    results: "multiprocessing.Queue[tuple[int, int, int]]",
) -> None:
    """Read until the writer is done, at least so often, or the time is over.

    Put reads, versions seen, mixtures.
    """
    thing = THINGS[kind]()
    reads = mixtures = 0
    seen: set[int] = set()
    while (reads < wanted or not done.is_set()) and time.time() < until:
        found = thing.read(folder)
        reads += 1
        seen |= found
        if len(found) != 1:
            mixtures += 1
            print(f"a mixture: {sorted(found)}", flush=True)
    results.put((reads, len(seen), mixtures))


def race(kind: str, writes: int, reads: int, readers: int, minutes: float) -> tuple[int, int, int]:
    """Return the reads, the most versions that one reader saw, and the mixtures."""
    thing = THINGS[kind]()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        thing.write(folder, 0)
        done, results = context.Event(), context.Queue()
        arguments = (kind, folder, -(-reads // readers), time.time() + 60 * minutes, done, results)
        processes = [context.Process(target=read_often, args=arguments) for _ in range(readers)]
        for process in processes:
            process.start()
        number = 0
        # the writer goes on while the readers are short of their reads, so that all reads are next
        # to writes
        while (number < writes and time.time() < arguments[3]) or results.qsize() < readers:
            number += 1
            thing.write(folder, number)
            if number == writes:
                done.set()
            if any(process.exitcode for process in processes):
                done.set()
                raise SystemExit("a reader ended with an error")
        found = [results.get() for _ in processes]
        for process in processes:
            process.join()
        print(f"{kind}: {number:,} writes", flush=True)
    return sum(one[0] for one in found), max(one[1] for one in found), sum(one[2] for one in found)


def main() -> None:
    """Run the races that the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kind", choices=THINGS, action="append")
    parser.add_argument("--writes", type=int, default=10_000)
    parser.add_argument("--reads", type=int, default=100_000)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=30, help="of each kind, at most")
    arguments = parser.parse_args()
    wrong = 0
    for kind in arguments.kind or THINGS:
        start = time.perf_counter()
        reads, versions, mixtures = race(
            kind, arguments.writes, arguments.reads, arguments.readers, arguments.minutes
        )
        wrong += mixtures
        print(
            f"{kind}: {reads:,} reads, {versions:,} versions seen by one reader, {mixtures}"
            f" mixtures, {time.perf_counter() - start:.0f} s"
        )
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
