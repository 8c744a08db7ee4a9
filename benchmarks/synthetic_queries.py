"""How far queries made from texts are from a person's: the order of ways by both.

    python benchmarks/synthetic_queries.py FOLDER... --model all-MiniLM-L6-v2

FOLDER is a collection in the format of BEIR with judgements. Ways are words alone, and vectors and
both of mini, mini-static, mini-multi and each --model. Each is scored (nDCG@10 x 100) on the
queries of the collection, and on those that `promptcli choose` makes from its documents. Kendall's
tau says how alike the two orders are: 1 if they are the same, 0 if they have nothing in common. Its
interval is of a bootstrap over both sets of queries. The mean tau of two halves of the real
queries, drawn at random, says how sure their own order is.
"""

import argparse
import dataclasses
import itertools
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from promptcli.data.tasks import RetrievalTask
from promptcli.evaluation.evaluator import TaskVectors, row_of_sentences, score_vectors
from promptcli.evaluation.scores import Label
from promptcli.models.loading import open_encoder
from promptcli.plugins.domain.choosing import MAX_PASSAGES
from promptcli.plugins.domain.synthetic_queries import judged_queries, synthetic_queries

SHIPPED = ("mini", "mini-static", "mini-multi")
SAMPLES = 1_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--queries", type=int, default=500)
    arguments = parser.parse_args()
    for folder in arguments.folders:
        report(folder, [*SHIPPED, *arguments.model], arguments.queries)


def report(folder: Path, models: list[str], most: int) -> None:
    real = dataclasses.replace(judged_queries(folder).task(), name=folder.name)
    documents = next(folder.glob("corpus.jsonl*"))
    made = synthetic_queries([documents], max_queries=most, max_passages=MAX_PASSAGES)
    gains = {"real": {}, "made": {}}
    for name, task in (("real", real), ("made", made.task())):
        gains[name]["words"] = score(task, None, "lexical")
    for model in models:
        tasks = {"real": real, "made": made.task()}
        vectors = encode(model, list(tasks.values()))
        for (name, task), ranking in itertools.product(tasks.items(), ("retrieval", "hybrid")):
            by = {"retrieval": "meaning", "hybrid": "both"}[ranking]
            gains[name][f"{Path(model).name}, {by}"] = score(task, vectors, ranking)
    print(
        f"{folder.name}: {len(real.queries)} real queries, {len(made.queries)} made: {made.kinds}"
    )
    for way in sorted(gains["real"], key=lambda way: -gains["real"][way].mean()):
        figures = [100 * gains[name][way].mean() for name in ("real", "made")]
        print(f"  {way:28} {figures[0]:5.1f} {figures[1]:5.1f}")
    print_tau(*(np.stack(list(gains[name].values())) for name in ("real", "made")))


def encode(model: str, tasks: list[RetrievalTask]) -> dict[str, np.ndarray]:
    """Return the vector of each text of tasks."""
    texts = list(row_of_sentences(tasks))
    encoder = open_encoder(model, dtype="auto")
    queries = {text for task in tasks for text in task.queries}
    vectors = {}
    for role, chosen in (
        ("document", [text for text in texts if text not in queries]),
        ("query", [text for text in texts if text in queries]),
    ):
        encoded = encoder.in_role(role).encode(chosen)
        vectors.update(zip(chosen, encoded, strict=True))
    return vectors


def score(task: RetrievalTask, vectors: dict[str, np.ndarray] | None, ranking: str) -> np.ndarray:
    """Return nDCG@10 of each query."""
    ranked = RetrievalTask(task.name, task.queries, task.documents, task.grades, ranking)
    row_of = row_of_sentences([ranked])
    matrix = np.zeros((0, 0), np.float32)
    if vectors is not None:
        matrix = np.stack([vectors[text] for text in row_of])
    [scored] = score_vectors([TaskVectors(Label("", ""), {}, "", matrix, row_of)], [ranked])
    return scored.by_example


def print_tau(real: np.ndarray, made: np.ndarray) -> None:
    """Print Kendall's tau of two sets of gains, (ways, queries)."""
    draw = np.random.default_rng(0)
    taus, halves = [], []
    for _ in range(SAMPLES):
        chosen = [draw.integers(0, each.shape[1], each.shape[1]) for each in (real, made)]
        taus.append(tau(real[:, chosen[0]], made[:, chosen[1]]))
        shuffled = draw.permutation(real.shape[1])
        first, second = np.array_split(shuffled, 2)
        halves.append(tau(real[:, first], real[:, second]))
    low, high = np.percentile(taus, [2.5, 97.5])
    print(
        f"  Kendall's tau {tau(real, made):.2f} ({low:.2f} to {high:.2f}); two halves of the real"
        f" queries {np.mean(halves):.2f}; correlation of the figures"
        f" {np.corrcoef(real.mean(1), made.mean(1))[0, 1]:.2f}"
    )


def tau(first: np.ndarray, second: np.ndarray) -> float:
    return float(kendalltau(first.mean(1), second.mean(1)).statistic)


if __name__ == "__main__":
    main()
