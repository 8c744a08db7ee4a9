"""What each row of `promptcli adapt` gains on real queries, beside those that it makes.

    python benchmarks/adaptation.py FOLDER... --hours 0.3 --seed 0 --threads 1

FOLDER is a collection in the format of BEIR with judgements. Its documents are adapted to as by the
command: the same split, schedule and trainings, but every row is scored on all real queries, too,
among all documents. The queries are not learned from; the documents are, but for those held out.
Figures are x 100: nDCG@10, of the demo pairs Spearman. Differences are paired, against `mini`.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch

from promptcli.data.retrieval import read_retrieval_folder
from promptcli.data.tasks import RetrievalTask
from promptcli.models import loading
from promptcli.plugins.domain import adaptation
from promptcli.plugins.domain.adapt_collection import FEWEST, Collection, tasks_elsewhere
from promptcli.plugins.domain.adapt_runs import Trainings
from promptcli.plugins.domain.synthetic_queries import synthetic_queries
from promptcli.recipe import Choice

MOST_PASSAGES = 20_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--hours", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    for folder in given.folders:
        with tempfile.TemporaryDirectory() as home:
            os.environ["PROMPTCLI_HOME"] = home
            report(folder, given.hours, given.seed)


def report(folder: Path, hours: float, seed: int) -> None:
    began = time.perf_counter()
    real = RetrievalTask.of(folder.name, read_retrieval_folder(folder))
    documents = next(folder.glob("corpus.jsonl*"))
    made = synthetic_queries([documents], fewest=FEWEST, most_passages=MOST_PASSAGES, seed=seed)
    collection = Collection.of(made, seed)
    start = loading.entry_of("mini")
    trainings = Trainings("adapted", start, Choice("mini"), collection, seed)
    schedule = trainings.schedule(hours)
    planned = time.perf_counter()
    trained = dict(adaptation._train(trainings, schedule))
    tasks = [collection.test_task, real, *tasks_elsewhere()]
    before = adaptation._score(loading.open_model(start, dtype="float32"), tasks, "mini")
    rows = adaptation._rows(trained, tasks, before)
    ended = time.perf_counter()
    parts = (collection.training, collection.development, collection.test)
    print(
        f"{folder.name}, seed {seed}: queries {[len(part) for part in parts]}, pre-training"
        f" {schedule.tokens:,} tokens; planned {schedule.total / 60:.1f} minutes, took"
        f" {(ended - planned) / 60:.1f}, and {(planned - began) / 60:.1f} to read and time steps"
    )
    print("row steps best", *(task.label for task in tasks), sep=" | ")
    print("mini", *(f"{score.value:.1f}" for score in before), sep=" | ")
    for row in rows:
        facts = row.trained.facts
        cells = [f"{row.name} {facts['steps']} {facts['best_step']} {facts['seconds']:.0f}s"]
        for score, change in zip(row.scores, row.changes, strict=True):
            low, high = change.ci95
            cells.append(
                f"{score.value:.1f} {change.difference:+.1f} ({low:.1f} to {high:.1f}),"
                f" p {change.p_value:.2g}"
            )
        print(*cells, f"Holm {row.changes[0].p_holm:.2g}", row.verdict(2.0), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
