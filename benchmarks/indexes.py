"""Measure indexes of 100,000 to 10 million vectors: building, opening, searching, next to raw FAISS
and usearch.

    python benchmarks/indexes.py make FOLDER --rows 1000000 --kind text --corpus lines.txt
    python benchmarks/indexes.py run FOLDER
    python benchmarks/indexes.py peer FOLDER --python /path/with/usearch/bin/python

``make`` writes Parquet parts of 256-wide vectors and 200 queries that are not among them:
``random`` ones, or ``text``: sentences of a corpus encoded by a model, two mixed for each vector,
with noise. ``run`` builds by the command line, opens and searches, each in a process of its own, so
that its peak memory is its own; exact neighbours come from comparing all rows. Everything is
printed as JSON lines.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, QUERIES, PART = 256, 200, 50_000


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def peak() -> int:
    """Return the most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def units(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def make(arguments: argparse.Namespace) -> None:
    """Write parts and queries."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder, random = arguments.folder / "parts", np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.kind == "text":
        import promptcli as pc

        lines = arguments.corpus.read_text(encoding="utf-8").splitlines()[: arguments.sentences]
        base = units(pc.load(arguments.model, dtype="auto").encode(lines))

    def some(count: int) -> np.ndarray:
        noise = units(random.normal(size=(count, WIDTH)))
        if arguments.kind == "random":
            return noise
        first, second = (base[random.integers(0, len(base), count)] for _ in range(2))
        return units(first + 0.5 * second + 0.2 * noise)

    np.save(arguments.folder / "queries.npy", some(QUERIES))
    parts = -(-arguments.rows // PART)
    for part in range(parts):
        rows = range(part * PART, min(arguments.rows, (part + 1) * PART))
        matrix = pa.FixedSizeListArray.from_arrays(pa.array(some(len(rows)).reshape(-1)), WIDTH)
        table = pa.table(
            {"id": [f"row-{row}" for row in rows], "text": [f"text {row}" for row in rows]}
        )
        path = folder / f"part-{part:05}-of-{parts:05}.parquet"
        pq.write_table(
            table.append_column("embedding", matrix), path, compression="none", row_group_size=8192
        )
    size = sum(path.stat().st_size for path in folder.iterdir())
    say(step="make", rows=arguments.rows, kind=arguments.kind, parts=parts, bytes=size)


def run(arguments: argparse.Namespace) -> None:
    """Build, open and search, each in a process of its own."""
    index = arguments.folder / "index"
    ours = [sys.executable, "-m", "promptcli", "index"]
    build = [*ours, "build", str(arguments.folder / "parts"), "-o", str(index), "--force"]
    build += ["--model", arguments.model, "--target-recall", str(arguments.target_recall)]
    if arguments.factory:
        build += ["--factory", arguments.factory]
    start = time.perf_counter()
    process = subprocess.Popen(build)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    assert status == 0
    manifest = json.loads(subprocess.check_output([*ours, "info", str(index), "--json"]))
    size = sum(path.stat().st_size for path in index.iterdir())
    known = {name: manifest[name] for name in ("rows", "factory", "recall")}
    say(
        step="build",
        seconds=round(seconds, 1),
        peak_mb=usage.ru_maxrss // 1024,
        bytes=size,
        **known,
    )
    for step in ("open", "search"):
        subprocess.run([sys.executable, __file__, step, str(arguments.folder)], check=True)


def open_once(arguments: argparse.Namespace) -> None:
    """Open an index and search once, from the start of the process."""
    start = time.perf_counter()
    from promptcli.retrieval.sentence_index import SentenceIndex

    imported = time.perf_counter()
    index = SentenceIndex.open(arguments.folder / "index")
    with index.store.reading():
        index.snapshot()
    opened = time.perf_counter()
    query = np.load(arguments.folder / "queries.npy")[:1]
    list(index.answer(["x"], 10, vectors=query, by="meaning"))
    done = time.perf_counter()
    seconds = {
        "importing": imported - start,
        "opening": opened - imported,
        "searching": done - opened,
    }
    say(step="open", peak_mb=peak(), **{name: round(value, 3) for name, value in seconds.items()})


def truth(arguments: argparse.Namespace, queries: np.ndarray) -> np.ndarray:
    """Return the exact 10 nearest rows (q, 10) and keep them for the next run."""
    kept = arguments.folder / "truth.npy"
    if not kept.exists():
        from promptcli.data.vectors.parquet import ParquetRows
        from promptcli.retrieval.vectors import faiss

        scores, rows, start = (
            np.empty((len(queries), 0), np.float32),
            np.empty((len(queries), 0), np.int64),
            0,
        )
        for block in ParquetRows(sorted((arguments.folder / "parts").iterdir())).blocks():
            more, found = faiss.knn(queries, block.vectors, 10, metric=faiss.METRIC_INNER_PRODUCT)
            scores, rows = np.hstack([scores, more]), np.hstack([rows, start + found])
            best = np.argsort(-scores, axis=1)[:, :10]
            scores, rows = (np.take_along_axis(part, best, axis=1) for part in (scores, rows))
            start += len(block.vectors)
        np.save(kept, rows)
    return np.load(kept)


def search(arguments: argparse.Namespace) -> None:
    """Search one by one and all at once, in turns with FAISS alone on the same files."""
    from promptcli.retrieval.sentence_index import SentenceIndex
    from promptcli.retrieval.vectors import faiss

    queries = np.load(arguments.folder / "queries.npy")
    exact = truth(arguments, queries)
    opened = SentenceIndex.open(arguments.folder / "index")
    with opened.store.reading():
        index = opened.snapshot().faiss_index

    def ours_of(some: np.ndarray) -> list[Any]:
        return list(opened.answer(["x"] * len(some), 10, vectors=some, by="meaning"))

    def alone(some: np.ndarray) -> None:
        index.candidates(some, 10, index.effort)

    ways = {"ours": ours_of, "alone": alone}
    took: dict[str, list[float]] = {name: [] for name in ways}
    answers = [ours_of(query[None])[0] for query in queries]
    # whoever comes second finds the rows in the processor's cache
    for number, query in enumerate(queries):
        for name in sorted(ways, reverse=number % 2 == 1):
            start = time.perf_counter()
            ways[name](query[None])
            took[name].append(time.perf_counter() - start)
    ours, theirs = took["ours"], took["alone"]
    batches = []
    for work in (lambda: ours_of(queries), lambda: alone(queries)) * 3:
        start = time.perf_counter()
        work()
        batches.append(len(queries) / (time.perf_counter() - start))
    found = [{int(str(hit.id).removeprefix("row-")) for hit in hits} for hits in answers]
    recall = np.mean(
        [len(one & set(rows.tolist())) / 10 for one, rows in zip(found, exact, strict=True)]
    )
    say(
        step="search",
        recall_at_10=round(float(recall), 4),
        ms=round(1e3 * statistics.median(ours), 3),
        raw_faiss_ms=round(1e3 * statistics.median(theirs), 3),
        overhead=round(statistics.median(ours) / statistics.median(theirs) - 1, 4),
        queries_a_second=round(max(batches[::2])),
        raw_faiss_queries_a_second=round(max(batches[1::2])),
        threads=faiss.omp_get_max_threads(),
        peak_mb=peak(),
    )


def peer(arguments: argparse.Namespace) -> None:
    """Do the same with usearch, with its defaults in half precision; in the Python that has it."""
    if arguments.python:
        truth(arguments, np.load(arguments.folder / "queries.npy"))
        subprocess.run([arguments.python, __file__, "peer", str(arguments.folder)], check=True)
        return
    import pyarrow.parquet as pq
    from usearch.index import Index  # type: ignore[import-not-found]

    index, start, row = Index(ndim=WIDTH, metric="ip", dtype="f16"), time.perf_counter(), 0
    for path in sorted((arguments.folder / "parts").iterdir()):
        column = pq.read_table(path, columns=["embedding"]).column("embedding").combine_chunks()
        matrix = column.flatten().to_numpy().reshape(-1, WIDTH)
        index.add(np.arange(row, row + len(matrix)), matrix, threads=arguments.threads)
        row += len(matrix)
    index.save(str(arguments.folder / "usearch.index"))
    say(
        step="usearch build",
        seconds=round(time.perf_counter() - start, 1),
        peak_mb=peak(),
        rows=row,
    )
    start = time.perf_counter()
    view = Index.restore(str(arguments.folder / "usearch.index"), view=True)
    opened, took, recall = time.perf_counter() - start, [], []
    for query, exact in zip(
        np.load(arguments.folder / "queries.npy"),
        np.load(arguments.folder / "truth.npy"),
        strict=True,
    ):
        start = time.perf_counter()
        found = view.search(query, 10).keys
        took.append(time.perf_counter() - start)
        recall.append(len(set(found.tolist()) & set(exact.tolist())) / 10)
    say(
        step="usearch search",
        opening=round(opened, 3),
        ms=round(1e3 * statistics.median(took), 3),
        recall_at_10=round(float(np.mean(recall)), 4),
    )


STEPS = {"make": make, "run": run, "open": open_once, "search": search, "peer": peer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--kind", choices=["random", "text"], default="random")
    parser.add_argument("--corpus", type=Path, help="Sentences, one a line, for --kind text.")
    parser.add_argument(
        "--sentences", type=int, default=100_000, help="Lines of the corpus that are encoded."
    )
    parser.add_argument("--model", default="mini-static")
    parser.add_argument("--factory")
    parser.add_argument("--target-recall", type=float, default=0.95)
    parser.add_argument("--python", help="Of an environment with usearch.")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    STEPS[arguments.step](arguments)


if __name__ == "__main__":
    main()
