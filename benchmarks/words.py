"""Engines of words beside promptcli's BM25: answers on collections, and speed in many rows.

    python benchmarks/words.py --collection cacm --collection npl --texts FILE --rows 1000000

Engines: promptcli's counts in files; SQLite's FTS5 (``porter unicode61``); tantivy (``en_stem``)
and bm25s (lower-cased words without stems) if they are installed. A query is the disjunction of its
words. Lines of the text are repeated, each with a number, until there are enough rows. One thread;
seconds to build, to add 100 rows and find one of them, and the median milliseconds of 100 queries
of the first ten words of a row, for ten answers.
"""

import argparse
import itertools
import json
import re
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from promptcli.retrieval.bm25 import Bm25, WordCounts

QUERIES, ADDED, WORDS, FOUND = 100, 100, 10, 10
#: Builds an index of texts; returns what adds texts and what answers a query by row numbers.
Engine = Callable[
    [Sequence[str], Path], tuple[Callable[[Sequence[str]], Any], Callable[[str], Sequence[int]]]
]


def ours(texts: Sequence[str], folder: Path) -> tuple[Any, Any]:
    all_texts = list(texts)
    WordCounts.of_texts([texts]).write(folder / "words.counts")
    counts = WordCounts.read(folder / "words.counts")
    parts = [counts]

    def opened() -> Bm25:
        return Bm25(parts, lambda keys: [all_texts[key] for key in keys.tolist()])

    bm25 = [opened()]

    def add(more: Sequence[str]) -> None:
        all_texts.extend(more)
        parts.append(WordCounts.of_texts([more], counts.language))
        bm25[0] = opened()

    return add, lambda query: bm25[0].ask(query).rank(FOUND)[0].tolist()


def fts5(texts: Sequence[str], folder: Path) -> tuple[Any, Any]:
    database = sqlite3.connect(folder / "words.sqlite")
    database.execute(
        "create virtual table words using fts5(text, content='', tokenize='porter unicode61')"
    )

    def add(more: Sequence[str]) -> None:
        with database:
            database.executemany("insert into words(text) values (?)", ((text,) for text in more))

    def ask(query: str) -> list[int]:
        asked = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        sql = "select rowid - 1 from words where words match ? order by rank limit ?"
        return [row for (row,) in database.execute(sql, (asked, FOUND))]

    add(texts)
    return add, ask


def tantivy(texts: Sequence[str], folder: Path) -> tuple[Any, Any]:
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", stored=False, tokenizer_name="en_stem")
    builder.add_integer_field("row", stored=True, fast=True)
    index = tantivy.Index(builder.build(), path=str(folder))
    count = itertools.count()

    def add(more: Sequence[str]) -> None:
        writer = index.writer(256_000_000, 1)
        for text in more:
            writer.add_document(tantivy.Document(text=[text], row=next(count)))
        writer.commit()
        writer.wait_merging_threads()
        index.reload()

    def ask(query: str) -> list[int]:
        searcher = index.searcher()
        asked, _ = index.parse_query_lenient(" ".join(re.findall(r"\w+", query)).lower(), ["text"])
        return [searcher.doc(at)["row"][0] for _, at in searcher.search(asked, FOUND).hits]

    add(texts)
    return add, ask


def bm25s(texts: Sequence[str], folder: Path) -> tuple[Any, Any]:
    import bm25s

    def parted(texts: Sequence[str]) -> Any:
        return bm25s.tokenize(list(texts), stopwords=None, show_progress=False)

    retriever = [bm25s.BM25()]
    all_texts = list(texts)

    def add(more: Sequence[str]) -> None:
        all_texts.extend(more)
        retriever[0] = bm25s.BM25()
        retriever[0].index(parted(all_texts), show_progress=False)

    def ask(query: str) -> list[int]:
        rows, _ = retriever[0].retrieve(parted([query]), k=FOUND, show_progress=False)
        return list(rows[0].tolist())

    add([])
    return add, ask


ENGINES: dict[str, Engine] = {"ours": ours, "fts5": fts5, "tantivy": tantivy, "bm25s": bm25s}


def quality(folder: Path, engine: Engine) -> float:
    """Return nDCG@10 x 100 on a collection in BEIR's layout."""

    def texts(name: str) -> dict[str, str]:
        rows = map(json.loads, (folder / name).read_text(encoding="utf-8").splitlines())
        return {row["_id"]: f"{row.get('title', '')} {row['text']}".strip() for row in rows}

    documents, queries = texts("corpus.jsonl"), texts("queries.jsonl")
    grades: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, grade = line.split("\t")
        grades.setdefault(query, {})[document] = int(grade)
    ids = list(documents)
    values = []
    with tempfile.TemporaryDirectory() as place:
        _, ask = engine(list(documents.values()), Path(place))
        for query, judged in grades.items():
            found = [judged.get(ids[row], 0) for row in ask(queries[query])]
            best = sorted(judged.values(), reverse=True)[:FOUND]
            weights = 1 / np.log2(np.arange(2, FOUND + 2))
            values.append(found @ weights[: len(found)] / (best @ weights[: len(best)]))
    return 100 * statistics.fmean(values)


def speed(texts: Sequence[str], engine: Engine) -> str:
    with tempfile.TemporaryDirectory() as place:
        start = time.perf_counter()
        add, ask = engine(texts, Path(place))
        built = time.perf_counter()
        add([f"Row {number} is a zyxomma of the evening." for number in range(ADDED)])
        assert len(texts) + 7 in ask("7 zyxomma"), "the new row is not found"
        added = time.perf_counter()
        times = []
        for row in range(0, len(texts), len(texts) // QUERIES):
            query = " ".join(texts[row].split()[:WORDS])
            asked = time.perf_counter()
            ask(query)
            times.append(time.perf_counter() - asked)
        size = sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())
    return (
        f"build {built - start:.1f} s, add {ADDED} {added - built:.2f} s,"
        f" query {1000 * statistics.median(times):.1f} ms, disk {size / 1e6:.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--collection", type=Path, action="append", default=[])
    parser.add_argument("--texts", type=Path, help="a text a line")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--engine", action="append", choices=ENGINES)
    options = parser.parse_args()
    texts: list[str] = []
    if options.texts:
        lines = options.texts.read_text(encoding="utf-8").splitlines()
        repeated = itertools.cycle(lines)
        texts = [f"{next(repeated)} {row}" for row in range(options.rows)]
    for name in options.engine or ENGINES:
        for folder in options.collection:
            print(name, folder.name, f"{quality(folder, ENGINES[name]):.1f}", flush=True)
        if texts:
            print(name, f"{len(texts):,} rows:", speed(texts, ENGINES[name]), flush=True)


if __name__ == "__main__":
    main()
