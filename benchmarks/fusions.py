"""Ways to join the rankings by cosines and by BM25, on retrieval sets with judgements.

    python benchmarks/fusions.py FOLDER... --model mini --model mini-static --vectors CACHE

FOLDER is a collection in the format of BEIR. For each query the 100 best rows by cosine and the 100
best by BM25 are joined in each way; figures are nDCG@10 x 100, the difference to what `search` does
and its 95% interval by a paired bootstrap over queries. ``--vectors`` keeps vectors between runs.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from promptcli.evaluation.lexical import DEPTH, Lexical, Match, stand_out, weight_of_words

from promptcli.data.retrieval import read_retrieval_folder
from promptcli.data.tasks import RetrievalTask
from promptcli.data.vectors.precision import unit
from promptcli.evaluation.statistics import ndcg
from promptcli.models.loading import open_model

SAMPLES = 2_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--vectors", type=Path)
    arguments = parser.parse_args()
    for folder in arguments.folders:
        task = RetrievalTask.of(folder.name, read_retrieval_folder(folder))
        for model in arguments.model or ["mini"]:
            gains = measure(task, *vectors_of(task, model, arguments.vectors))
            print(f"{folder.name}, {model}, {len(task.queries)} queries")
            base = gains["search"]
            for name, each in gains.items():
                low, high = interval(each - base)
                difference = 100 * float((each - base).mean())
                print(
                    f"  {name:32} {100 * each.mean():5.1f}  {difference:+5.1f}"
                    f" ({low:+.1f} to {high:+.1f})",
                    flush=True,
                )


def vectors_of(task: RetrievalTask, model: str, cache: Path | None) -> tuple[Any, Any]:
    """Return unit vectors of queries and documents."""
    kept = None if cache is None else cache / f"{task.name}-{model}.npz"
    if kept is not None and kept.exists():
        stored = np.load(kept)
        return unit(stored["queries"]), unit(stored["rows"])
    encoder = open_model(model)
    queries = encoder.in_role("query").encode(task.queries)
    rows = encoder.in_role("document").encode(task.documents)
    if kept is not None:
        np.savez(kept, queries=queries, rows=rows)
    return unit(queries), unit(rows)


def measure(task: RetrievalTask, queries: Any, rows: Any) -> dict[str, Any]:
    """Return for each way the nDCG@10 of each query."""
    words = Lexical.build(task.documents, np.arange(len(task.documents)))
    ranked: dict[str, list[Any]] = {name: [] for name in ("meaning", "words", *FUSIONS)}
    for text, query in zip(task.queries, queries, strict=True):
        cosines = rows @ query
        asked_words = words.ask(text)
        nearest = np.argsort(-cosines, kind="stable")[:DEPTH]
        found_words = asked_words.rank(DEPTH)
        worded = found_words[0]
        both = np.union1d(nearest, worded)
        ranked["meaning"].append(nearest[:10])
        ranked["words"].append(worded[:10])
        match = asked_words.match(found_words)
        asked = Asked(cosines, asked_words.scores_of(both), nearest, worded, both, match)
        for name, fusion in FUSIONS.items():
            ranked[name].append(both[np.argsort(-fusion(asked), kind="stable")][:10])
    figures = {}
    for name, found in ranked.items():
        padded = np.full((len(found), 10), -1)
        for place, each in enumerate(found):
            padded[place, : len(each)] = each
        figures[name] = ndcg(padded, task.grades)
    return figures


class Asked:
    """What is known of a query: scores of all rows, and the rows that each ranking found."""

    def __init__(
        self, cosines: Any, bm25: Any, nearest: Any, worded: Any, both: Any, match: Match
    ) -> None:
        self.cosines = cosines[both]
        self.share = bm25 / (bm25.max() or 1)
        self.bm25 = bm25
        self.nearest = cosines[nearest]
        self.floored = np.maximum(self.cosines, cosines[nearest].min())
        self.found_share = np.where(np.isin(both, worded), self.share, 0)
        self.match = match
        self.covered = match.covered
        self.ranks = [
            np.array([places.get(row, np.inf) for row in both.tolist()])
            for places in (
                {row: place for place, row in enumerate(found.tolist(), 1)}
                for found in (nearest, worded)
            )
        ]


def scaled(scores: Any) -> Any:
    return (scores - scores.min()) / ((scores.max() - scores.min()) or 1)


def standard(scores: Any) -> Any:
    return (scores - scores.mean()) / (scores.std() or 1)


def mean(weight: float, left: Any, right: Any) -> Any:
    """Return a mean in which the right side has this weight."""
    return (1 - weight) * left + weight * right


def doubt(asked: Asked) -> float:
    """Return what words lose for rows that stand out."""
    return min(0.4, 3 * max(0.0, stand_out(asked.nearest) - 0.5))


#: Way -> the joined scores of the rows that one of the rankings found.
FUSIONS: dict[str, Callable[[Asked], Any]] = {
    "search": lambda asked: mean(
        weight_of_words(asked.nearest, asked.match), scaled(asked.cosines), asked.share
    ),
    "words 0.2 + 0.6 x coverage": lambda asked: mean(
        0.2 + 0.6 * asked.covered, scaled(asked.cosines), asked.share
    ),
    "words 0.4 + 0.4 x coverage": lambda asked: mean(
        0.4 + 0.4 * asked.covered, scaled(asked.cosines), asked.share
    ),
    "the same, less doubt": lambda asked: mean(
        0.8 * asked.covered + (1 - asked.covered) * (0.4 - doubt(asked)),
        scaled(asked.cosines),
        asked.share,
    ),
    "the same, 0.4 x strength": lambda asked: mean(
        0.8 * asked.covered + (1 - asked.covered) * (0.4 * asked.match.strength - doubt(asked)),
        scaled(asked.cosines),
        asked.share,
    ),
    "0.6 cosine + 0.4 share": lambda asked: mean(0.4, asked.floored, asked.found_share),
    "the same, exact cosines": lambda asked: mean(0.4, asked.cosines, asked.share),
    "exact, half and half": lambda asked: mean(0.5, asked.cosines, asked.share),
    "scaled cosines, words 0.5": lambda asked: mean(0.5, scaled(asked.cosines), asked.share),
    "scaled cosines, words 0.6": lambda asked: mean(0.6, scaled(asked.cosines), asked.share),
    "scaled cosines, words 0.7": lambda asked: mean(0.7, scaled(asked.cosines), asked.share),
    "z-scores, words 0.5": lambda asked: standard(asked.cosines) + standard(asked.bm25),
    "z-scores, words 0.6": lambda asked: mean(0.6, standard(asked.cosines), standard(asked.bm25)),
    "reciprocal ranks, words 0.5": lambda asked: sum(1 / (60 + ranks) for ranks in asked.ranks),
    "reciprocal ranks, words 0.7": lambda asked: mean(
        0.7, *(1 / (60 + ranks) for ranks in asked.ranks)
    ),
}


def interval(differences: Any) -> tuple[float, float]:
    drawn = np.random.default_rng(0).integers(0, len(differences), (SAMPLES, len(differences)))
    low, high = np.quantile(differences[drawn].mean(axis=1), [0.025, 0.975])
    return 100 * float(low), 100 * float(high)


if __name__ == "__main__":
    main()
