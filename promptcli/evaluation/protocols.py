"""SentEval's three ways from features and labels to one accuracy: nested folds, folds and a test set, official splits.

Source: SentEval, tools/validation.py. Accuracies are x 100, rounded to 2 decimals where SentEval rounds them; of
equally good weight decays the first is taken.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptcli.errors import UsageError
from promptcli.evaluation.classifier import (
    ClassifierFit,
    ClassifierTraining,
    FittedClassifiers,
    Rows,
    accuracy,
    train,
    with_bias,
)

#: SentEval's seed of folds, first weights and order of examples.
SEED = 1111
#: The weight decays that are tried.
DECAYS = (1e-5, 1e-4, 1e-3, 1e-2)
#: Share of the training examples that the last training holds out, to know when to end.
HELD_OUT = 0.05

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
#: Called with the number of trained classifiers, as a share of all of the task; adds up to 1.
Progress = Callable[[float], None]


def pair_features(first: Floats, second: Floats) -> Floats:
    """Return (n, 2d): |u - v| next to u * v, for vectors u and v (n, d).

    Source: SentEval, mrpc.py.
    """
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def stratified_folds(labels: NDArray[np.int64], folds: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Return the rows of every fold, those to train on and those to test on; each class is spread evenly.

    Equals scikit-learn's ``StratifiedKFold(folds, shuffle=True, random_state=seed)`` since its version 0.22: classes in
    the order of their first appearance; how many of each go to a fold is read off the sorted labels, dealt out like
    cards; a class's places are then shuffled.

    Args:
        labels: (n,) class numbers.
        folds: How many.
        seed: Of the shuffling.
    """
    _, first, encoded = np.unique(labels, return_index=True, return_inverse=True)
    by_appearance = np.argsort(np.argsort(first))
    encoded = by_appearance[encoded]
    dealt = np.sort(encoded)
    counts = np.stack([np.bincount(dealt[fold::folds], minlength=len(first)) for fold in range(folds)])
    generator = np.random.RandomState(seed)
    fold_of = np.empty(len(labels), dtype=np.int64)
    for number in range(len(first)):
        places = np.arange(folds).repeat(counts[:, number])
        generator.shuffle(places)
        fold_of[encoded == number] = places
    return [(np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)) for fold in range(folds)]


@dataclass(frozen=True)
class Outcome:
    """What a classifier reached on one task."""

    test: float  #: accuracy x 100 on test examples
    dev: float  #: accuracy x 100 on the examples that chose the weight decay
    decays: list[float]  #: the weight decay chosen, in each outer fold where there are some


@dataclass(frozen=True)
class ClassifierSetting:
    """What all classifiers of a task share."""

    training: ClassifierTraining  #: how they are trained, and the number of folds
    classes: int  #: number of classes
    seed: int = SEED  #: of folds, first weights and order of examples
    device: str = "cpu"  #: a torch device

    def fit(self, rows: Rows, held_out: Rows | None, decays: Sequence[float]) -> ClassifierFit:
        """Return a training run on ``rows``; without ``held_out`` a share of them, drawn first, is held out."""
        generator = np.random.RandomState(self.seed)
        if held_out is None:
            drawn, count = generator.permutation(len(rows)), int(HELD_OUT * len(rows))
            rows, held_out = rows[drawn[count:]], rows[drawn[:count]]
        return ClassifierFit(rows, held_out, decays, generator)


def check_labels(name: str, splits: Mapping[str, Labels], training: ClassifierTraining) -> None:
    """Refuse labels that cannot be put into folds, or that teach a classifier nothing.

    Args:
        name: The task.
        splits: Labels of each split, the split to train on first.
        training: With the number of folds.

    Raises:
        UsageError: One class only, or too few examples of one.
    """
    labels = next(iter(splits.values()))
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise UsageError(f"{name}: all {len(labels)} training labels are {classes[0]}; a classifier takes two classes")
    if "dev" in splits:
        return
    folds, few = training.folds, int(counts.min())
    within = "all" in splits
    if few - (-(-few // folds) if within else 0) < folds:
        raise UsageError(
            f"{name}: {few} examples of class {classes[counts.argmin()]} are too few for {folds} folds"
            f"{' within folds' if within else ''}; give at least {folds + 2 if within else folds}"
        )
    left = len(labels) - (-(-len(labels) // folds) if within else 0)
    if int(HELD_OUT * left) == 0:
        raise UsageError(
            f"{name}: of {left} training examples {HELD_OUT:.0%} cannot be held out; give at least"
            f" {round(1 / HELD_OUT)} to train on"
        )


def nested(
    splits: Mapping[str, tuple[NDArray[np.float32], Labels]], setting: ClassifierSetting, progress: Progress
) -> Outcome:
    """Test on each fold of ``all`` a classifier whose weight decay folds of the other examples chose.

    Outer and inner folds are always drawn by 1111, as in SentEval's InnerKFoldClassifier; the seed decides first
    weights and order alone.
    """
    features, labels = _tensors(splits["all"], setting)
    numbers = splits["all"][1]
    outer = stratified_folds(numbers, setting.training.folds, SEED)
    chosen, dev = [], []
    for rows, _ in outer:
        decay, score = _by_folds(features, labels, rows, numbers, setting, SEED)
        chosen.append(decay)
        dev.append(score)
        progress(1 / (len(outer) + 1))
    fits = [setting.fit(rows, None, [decay]) for (rows, _), decay in zip(outer, chosen, strict=True)]
    weights = _train(features, labels, fits, setting).weights[:, 0]
    progress(1 / (len(outer) + 1))
    test = [
        _tested((splits["all"][0][rows], numbers[rows]), own, setting)
        for (_, rows), own in zip(outer, weights, strict=True)
    ]
    return Outcome(test=round(float(np.mean(test)), 2), dev=round(float(np.mean(dev)), 2), decays=chosen)


def cross_validated(
    splits: Mapping[str, tuple[NDArray[np.float32], Labels]], setting: ClassifierSetting, progress: Progress
) -> Outcome:
    """Test on ``test`` a classifier whose weight decay folds of ``train`` chose."""
    features, labels = _tensors(splits["train"], setting)
    numbers = splits["train"][1]
    rows = np.arange(len(numbers))
    decay, dev = _by_folds(features, labels, rows, numbers, setting, setting.seed)
    progress(0.9)
    weights = _train(features, labels, [setting.fit(rows, None, [decay])], setting).weights[0, 0]
    progress(0.1)
    return Outcome(test=_tested(splits["test"], weights, setting), dev=dev, decays=[decay])


def official(
    splits: Mapping[str, tuple[NDArray[np.float32], Labels]], setting: ClassifierSetting, progress: Progress
) -> Outcome:
    """Test on ``test`` a classifier trained on ``train`` whose weight decay and end ``dev`` chose."""
    (train_features, train_labels), (dev_features, dev_labels) = splits["train"], splits["dev"]
    together = np.concatenate([train_features, dev_features]), np.concatenate([train_labels, dev_labels])
    features, labels = _tensors(together, setting)
    rows = np.arange(len(together[1]))
    fit = setting.fit(rows[: len(train_labels)], rows[len(train_labels) :], DECAYS)
    found = _train(features, labels, [fit], setting)
    progress(1.0)
    best, dev = _best(found)
    return Outcome(test=_tested(splits["test"], found.weights[0, best], setting), dev=dev, decays=[DECAYS[best]])


def _by_folds(
    features: Tensor, labels: Tensor, rows: Rows, numbers: Labels, setting: ClassifierSetting, seed: int
) -> tuple[float, float]:
    """Return the weight decay that is best over folds of some rows, drawn by a seed; its mean accuracy x 100."""
    folds = stratified_folds(numbers[rows], setting.training.folds, seed)
    fits = [setting.fit(rows[left], rows[out], DECAYS) for left, out in folds]
    best, score = _best(_train(features, labels, fits, setting))
    return DECAYS[best], score


def _best(found: FittedClassifiers) -> tuple[int, float]:
    scores = [round(100 * float(value), 2) for value in found.accuracy.mean(0)]
    return int(np.argmax(scores)), max(scores)


def _train(
    features: Tensor, labels: Tensor, fits: Sequence[ClassifierFit], setting: ClassifierSetting
) -> FittedClassifiers:
    return train(features, labels, fits, setting.training, classes=setting.classes, seed=setting.seed)


def _tested(examples: tuple[NDArray[np.float32], Labels], weights: Tensor, setting: ClassifierSetting) -> float:
    features, labels = _tensors(examples, setting)
    return round(100 * accuracy(features, labels, weights.to(features.device)), 2)


def _tensors(examples: tuple[NDArray[np.float32], Labels], setting: ClassifierSetting) -> tuple[Tensor, Tensor]:
    features, labels = examples
    return with_bias(features, setting.device), torch.from_numpy(labels).to(setting.device)
