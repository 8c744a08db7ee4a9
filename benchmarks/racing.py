"""What a race among templates saves against scoring every one on every pair, and what it loses.

In one run.

    python benchmarks/racing.py [--data-dir SENTEVAL] [--on STS-B:dev] [--backbone NAME]
    [--candidates 512] [--orders 5]

Every candidate of the packaged grammar's draw is scored on all pairs (exhaustive), without any
cache. Then one race per order of the candidates, each with its own seed for the order of the pairs,
also without cache. Printed for each: its cost as a share of the exhaustive search's, in sentences
encoded and in seconds, and the loss: the exhaustive search's best figure minus that of the race's
winner, in points (Spearman x 100). The last lines are the largest of each.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import torch

from promptcli.backbones.by_name import load_backbone
from promptcli.data.senteval import tasks_from
from promptcli.data.training_data import development_task
from promptcli.evaluation import statistics
from promptcli.select.template_search import (
    PROTOCOL,
    TemplateScorer,
    draw,
    grammar_templates,
    published_templates,
    race,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--on")
    parser.add_argument("--backbone", default="mini-bert")
    parser.add_argument("--candidates", type=int, default=512)
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    with tasks_from(options.data_dir):
        task = development_task(options.on or ("STS-B:dev" if options.data_dir else "demo:dev"))
    backbone = load_backbone(options.backbone)
    templates = draw(grammar_templates(), options.candidates, 0, published_templates())

    scorer = TemplateScorer(backbone, task, PROTOCOL)
    start = time.perf_counter()
    values = {}
    for number, template in enumerate(templates, 1):
        values[template] = 100 * statistics.spearman(scorer.cosines(template), scorer.gold)
        if number % 32 == 0:
            print(f"exhaustive: {number} of {len(templates)}", file=sys.stderr)
    seconds, encoded = time.perf_counter() - start, scorer.encoded
    best = max(values, key=values.__getitem__)
    ranked = sorted(values.values(), reverse=True)
    print(f"{options.backbone} on {task.label}, {scorer.size} pairs, {len(templates)} candidates")
    print(f"exhaustive: {values[best]:.2f} {best}   {seconds:.1f} s, {encoded:,} sentences")
    print(
        f"figures: best {ranked[0]:.2f}, tenth {ranked[9]:.2f}, median"
        f" {ranked[len(ranked) // 2]:.2f}"
    )

    rows = []
    for order in range(options.orders):
        shuffled = random.Random(order).sample(templates, len(templates))
        racer = TemplateScorer(backbone, task, PROTOCOL)
        start = time.perf_counter()
        finalists, _ = race(shuffled, racer, seed=order)
        spent = time.perf_counter() - start
        winner = finalists[0]
        row = {
            "order": order,
            "cost_sentences": racer.encoded / encoded,
            "cost_seconds": spent / seconds,
            "loss": values[best] - values[winner.choice],
        }
        rows.append(row)
        print(
            f"order {order}: {winner.value:.2f} {winner.choice}   cost {row['cost_sentences']:.1%}"
            f" of sentences, {row['cost_seconds']:.1%} of seconds; loss {row['loss']:.2f}"
        )
    worst = {
        key: max(row[key] for row in rows) for key in ("cost_sentences", "cost_seconds", "loss")
    }
    print(
        f"largest: cost {worst['cost_sentences']:.1%} of sentences, {worst['cost_seconds']:.1%} of"
        f" seconds; loss {worst['loss']:.2f}"
    )
    print(
        json.dumps(
            {
                "candidates": len(templates),
                "pairs": scorer.size,
                "exhaustive_seconds": seconds,
                "races": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
