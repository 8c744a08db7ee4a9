"""Classifiers of transfer tasks next to SentEval's own loop and to a logistic regression trained to
its optimum.

    python benchmarks/transfer_classifier.py DATA [--task TREC] [--recipe first-last-ditto]
    [--backbone NAME] [--plain]

One task with a training and a test set (TREC, MRPC), one encoder. ``side by side`` is what
`promptcli eval` does, ``alone`` (with --plain) the same fits one after another with PyTorch's
layer, loss and optimiser. ``optimum`` minimises the same loss, mean cross-entropy + decay/2 |W|^2,
by L-BFGS, the bias free: what scikit-learn's LogisticRegression(C=1/(n*decay)) finds; its test
accuracy is printed for every weight decay. Seconds: processor time.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from promptcli.data.task_table import TaskName
from promptcli.data.tasks import load_tasks
from promptcli.encoder.encoder import build_encoder
from promptcli.evaluation.evaluator import TaskVectors, row_of_sentences
from promptcli.evaluation.scores import Label
from promptcli.plugins.papers.classifier import (
    DECAYS,
    FULL,
    classify,
    stratified_folds,
)
from promptcli.plugins.papers.transfer import features, labels_of
from promptcli.recipe import RECIPES
from tests.reference.senteval_classifier import plain_cross_validated

SEED = 1111


def optimum(
    features: NDArray[np.float32], labels: NDArray[np.int64], decay: float, classes: int, most: int
) -> tuple[NDArray[Any], int]:
    """Return weights (d + 1, c) and the number of iterations."""
    inputs = np.hstack([features, np.ones((len(features), 1), np.float32)])
    wanted, rows = np.eye(classes, dtype=np.float32)[labels], np.arange(len(labels))

    def loss(flat: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        weights = flat.reshape(-1, classes).astype(np.float32)
        scores = inputs @ weights
        scores -= scores.max(1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        decayed = weights * decay
        decayed[-1] = 0
        gradient = inputs.T @ (np.exp(logs) - wanted) / len(labels) + decayed
        return float(
            -logs[rows, labels].mean() + (weights * decayed).sum() / 2
        ), gradient.ravel().astype(np.float64)

    start = np.zeros(inputs.shape[1] * classes)
    options = {"maxiter": most, "maxfun": 2 * most, "gtol": 1e-5, "ftol": 1e-10}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    return found.x.reshape(-1, classes), int(found.nit)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--task", default="TREC", choices=["TREC", "MRPC"])
    parser.add_argument("--model", default="first-last-ditto")
    parser.add_argument("--backbone", default="mini-bert")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--iterations", type=int, default=1000)
    arguments = parser.parse_args()
    (task,) = load_tasks(arguments.data, [TaskName(arguments.task)]).tasks
    recipe = RECIPES[arguments.model].replace(backbone=arguments.backbone)
    encoder = build_encoder(recipe, device="cpu", dtype="float32")
    row_of = row_of_sentences([task])
    vectors = encoder.encode(list(row_of))
    encoded = TaskVectors(Label("", ""), {}, "", vectors, row_of)
    splits = {
        split: (features(encoded, rows), labels_of(rows)) for split, rows in task.splits.items()
    }
    (train, labels), (test_features, test_labels) = splits["train"], splits["test"]
    classes = int(labels.max()) + 1

    def told(run: str, start: float, **figures: Any) -> None:
        seconds = round(time.process_time() - start, 1)
        print(
            json.dumps({"task": task.name, "run": run, **figures, "seconds": seconds}), flush=True
        )

    start = time.process_time()
    found = classify(splits, FULL)
    told("side by side", start, test=found.test, dev=found.dev, decay=found.decays[0])
    if arguments.plain:
        start = time.process_time()
        test, dev = plain_cross_validated(
            splits["train"],
            splits["test"],
            lambda some: stratified_folds(some, FULL.folds, SEED),
            FULL,
            classes,
            SEED,
        )
        told("alone", start, test=test, dev=dev)
    for decay in DECAYS[::-1]:
        start = time.process_time()
        weights, iterations = optimum(train, labels, decay, classes, arguments.iterations)
        right = (test_features @ weights[:-1] + weights[-1]).argmax(1) == test_labels
        told(
            "optimum",
            start,
            test=round(100 * float(right.mean()), 2),
            decay=decay,
            iterations=iterations,
        )


if __name__ == "__main__":
    main()
