"""What each row of `promptcli adapt` gains on real queries, beside those that it makes.

    python benchmarks/adaptation.py FOLDER... --steps 32 --tokens 100000 --seed 0 --threads 1

FOLDER is a collection in the format of BEIR with judgements. Its documents are adapted to as by the
command: the same split and trainings, but with so many steps, whatever the machine does beside,
and every row is scored on all real queries, too, among all documents. The queries are not learned
from; the documents are, but for those held out. Minutes are of the processor. Figures are x 100:
nDCG@10, of the demo pairs Spearman. Differences are paired, against `mini`.
"""

import argparse
import dataclasses
import os
import tempfile
import time
from pathlib import Path

import torch

from promptcli.data.tasks import RetrievalTask, STSTask
from promptcli.models import loading
from promptcli.plugins.domain.adapt_collection import MIN_QUERIES, CollectionSplit, tasks_elsewhere
from promptcli.plugins.domain.adapt_runs import ATTEMPTS, Schedule, Trainings
from promptcli.plugins.domain.adapting import compare, score_model
from promptcli.plugins.domain.synthetic_queries import judged_queries, synthetic_queries
from promptcli.recipe import ModelChoice

MAX_PASSAGES = 20_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=100_000, help="Of pre-training.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    for folder in arguments.folders:
        with tempfile.TemporaryDirectory() as home:
            os.environ["PROMPTCLI_HOME"] = home
            report(folder, arguments.steps, arguments.tokens, arguments.seed)


def report(folder: Path, steps: int, tokens: int, seed: int) -> None:
    began = time.process_time()
    real = dataclasses.replace(judged_queries(folder).task(), name=folder.name)
    documents = next(folder.glob("corpus.jsonl*"))
    collection = synthetic_queries(
        [documents], min_queries=MIN_QUERIES, max_passages=MAX_PASSAGES, seed=seed
    )
    split = CollectionSplit.of(collection, seed)
    start = loading.resolve_entry("mini")
    trainings = Trainings("adapted", start, ModelChoice("mini"), split, seed, ATTEMPTS)
    schedule = Schedule(dict.fromkeys(ATTEMPTS, steps), dict.fromkeys(ATTEMPTS, 0.0), tokens)
    tasks: list[RetrievalTask | STSTask] = [split.test_task, real, *tasks_elsewhere()]
    opened = loading.open_torch_encoder(start, dtype="float32")
    before = score_model(opened, start.name, tasks)
    print(
        f"{folder.name}, seed {seed}, {tokens:,} tokens of pre-training; queries to learn from, to"
        f" choose by, to measure by: {list(split.sizes.values())}; {len(real.queries)} real"
    )
    print("row", "step", "development", *(task.label for task in tasks), "minutes", sep=" | ")
    print("mini", "", "", *(f"{score.value:.1f}" for score in before), sep=" | ", flush=True)
    for name, run in trainings.run_all(schedule):
        [row] = compare({name: run}, before, tasks)
        development = run.curve[0].value, run.development_score
        cells = [name, f"{run.facts['best_step']} of {run.facts['steps']}"]
        cells.append("{:.1f} to {:.1f}".format(*development))
        for change in row.changes:
            low, high = change.ci95
            cells.append(
                f"{change.difference:+.1f} ({low:.1f} to {high:.1f}) p {change.p_value:.2g}"
            )
        cells.append(f"{(time.process_time() - began) / 60:.1f}")
        began = time.process_time()
        print(*cells, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
