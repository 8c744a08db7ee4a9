"""Seconds of ``ditto-search``'s one pass next to one plain encoding and next to one pass per head,
in the same run.

    python benchmarks/ditto_search.py [--data-dir FOLDER] [--on TASK] [--rounds 3] [--backbones
    mini-bert]

All encode the same distinct sentences of the same development set in float32 on the processor.
``plain`` is one encoding with first-last/avg. ``one pass`` makes the cosines of all L*h heads on
static, last and first-last states; ``search`` ranks them, too: intervals, cross-validation, TF-IDF
correlation. ``pass per head`` encodes and scores ``first-last/ditto:l-h`` for one head after
another, on first-last states alone; with ``--naive-heads K`` only K heads are run and the time is
scaled to L*h. Rounds are interleaved; medians are printed, and how far the cosines are apart.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch

from promptcli.data.senteval import tasks_from
from promptcli.data.tasks import STSTask
from promptcli.data.training_data import development_task, fitting_sentences
from promptcli.encoder.encoder import build_encoder
from promptcli.evaluation.evaluator import distinct_sentences
from promptcli.evaluation.statistics import cosine
from promptcli.recipe import Recipe
from promptcli.select.head_search import SEARCHED_STATES, head_cosines, search_heads


def contestants(
    backbone: str, task: STSTask, naive_heads: int | None
) -> tuple[dict[str, Callable[[], Any]], float]:
    """Return the runs by name, plain encoding first, and by what to multiply the naive one's
    seconds.
    """
    plain = build_encoder(Recipe(backbone=backbone), device="cpu", dtype="float32")
    loaded = plain.backbone
    pairs, sentences, corpus = task.pairs(), distinct_sentences([task]), fitting_sentences("demo")
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    sides = [
        np.array([row_of[sentence] for sentence in side]) for side in (pairs.first, pairs.second)
    ]
    names = [
        f"{layer + 1}-{head + 1}"
        for layer in range(loaded.n_layers)
        for head in range(loaded.n_heads)
    ]
    tried = names[:: max(1, len(names) // naive_heads)][:naive_heads] if naive_heads else names

    def per_head() -> dict[str, np.ndarray]:
        found = {}
        for name in tried:
            recipe = Recipe(backbone=backbone, pooling=f"first-last/ditto:{name}")
            vectors = build_encoder(recipe, backbone=loaded).encode(sentences)
            found[name] = cosine(vectors[sides[0]], vectors[sides[1]])
        return found

    def one_pass() -> dict[str, np.ndarray]:
        found = head_cosines(plain, pairs.first, pairs.second, SEARCHED_STATES)
        rows = dict(zip(names, found.heads[SEARCHED_STATES.index("first-last")], strict=True))
        return {name: rows[name] for name in tried}

    runs = {
        "plain": lambda: plain.encode(sentences),
        "one pass": one_pass,
        "search": lambda: search_heads(plain, task, corpus),
        "pass per head": per_head,
    }
    return runs, len(names) / len(tried)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--on", help="default: STS-B:dev with --data-dir, else demo:dev")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--backbones", default="mini-bert", help="names or folders, separated by commas"
    )
    parser.add_argument("--naive-heads", type=int)
    arguments = parser.parse_args()
    with tasks_from(arguments.data_dir):
        task = development_task(arguments.on or ("STS-B:dev" if arguments.data_dir else "demo:dev"))
    for backbone in arguments.backbones.split(","):
        runs, scale = contestants(backbone, task, arguments.naive_heads)
        seconds: dict[str, list[float]] = {run: [] for run in runs}
        results: dict[str, Any] = {}
        runs["plain"]()
        for number in range(arguments.rounds):
            for run, work in runs.items():
                start = time.perf_counter()
                results[run] = work()
                seconds[run].append(
                    (time.perf_counter() - start) * (scale if run == "pass per head" else 1)
                )
                print(
                    f"{backbone} round {number + 1} {run}: {seconds[run][-1]:.2f} s",
                    file=sys.stderr,
                )
        apart = max(
            np.abs(results["one pass"][name] - row).max()
            for name, row in results["pass per head"].items()
        )
        plain = statistics.median(seconds["plain"])
        for run in runs:
            median = statistics.median(seconds[run])
            print(
                json.dumps(
                    {
                        "backbone": backbone,
                        "run": run,
                        "seconds": round(median, 3),
                        "times_plain": round(median / plain, 2),
                        "scaled_by": round(scale, 2) if run == "pass per head" else 1,
                        "largest_cosine_difference": float(f"{apart:.1e}"),
                        "task": task.label,
                        "pairs": len(task.pairs()),
                        "sentences": len(distinct_sentences([task])),
                        "rounds": arguments.rounds,
                        "threads": torch.get_num_threads(),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
