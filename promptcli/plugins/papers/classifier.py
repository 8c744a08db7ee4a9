"""SentEval's linear classifier on frozen vectors, and SentEval's three protocols.

Source: SentEval, tools/classifier.py with nhid 0: one linear layer, softmax, mean cross-entropy,
weight decay added to the gradient (also to the bias's), early stopping on held-out examples. The
best weights are returned. Many fits are trained side by side: each equals SentEval's fit, but a
step of all fits is one batched matrix product.

The protocols are those of tools/validation.py. Accuracies are x 100 and rounded to 2 decimals, as
SentEval's; of equally good weight decays the first is chosen.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from promptcli.errors import UsageError
from promptcli.notes import Advance, no_progress, stage

SENTEVAL_SEED = 1111  #: SentEval's seed of folds, first weights and order of examples
DECAYS = (1e-5, 1e-4, 1e-3, 1e-2)  #: the weight decays that are tried
#: share of the training examples that the last training holds out for early stopping
HELD_OUT_SHARE = 0.05
_PADDING_LABEL = -100  #: of padding in a batch

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
RowNumbers = NDArray[np.int64]  #: of examples
Examples = tuple[Floats, Labels]  #: features (n, d) and labels (n,) of a split


@dataclass(frozen=True)
class ClassifierTraining:
    """The training settings of classifiers."""

    folds: int  #: number of folds of every cross-validation
    optimizer: str  #: a name in ``OPTIMIZERS``
    learning_rate: float
    batch: int  #: number of examples in a step
    epoch_size: int  #: number of passes over the training examples between two evaluations
    #: training ends after more evaluations without improvement than this; as in SentEval, an
    #: improvement does not reset their count
    tenacity: int
    max_passes: int = 200  #: training ends at the first evaluation after more passes than this
    seed: int = SENTEVAL_SEED  #: of folds, first weights and the order of examples

    def facts(self) -> dict[str, Any]:
        """Return everything that determines an accuracy, except the data; JSON-ready."""
        return {**asdict(self), "weight_decays": list(DECAYS), "held_out": HELD_OUT_SHARE}

    def caption(self) -> str:
        """Return the description of the classifiers below a table."""
        return (
            f"SentEval's linear classifier, {self.folds} folds, {self.optimizer},"
            f" seed {self.seed}; accuracy x 100"
        )


#: SentEval's recommended settings, used for the papers' scores.
FULL = ClassifierTraining(
    folds=10, optimizer="adam", learning_rate=1e-3, batch=64, epoch_size=4, tenacity=5
)
#: SentEval's fast settings, for development.
FAST = ClassifierTraining(
    folds=5, optimizer="rmsprop", learning_rate=1e-2, batch=128, epoch_size=2, tenacity=3
)


#: PyTorch's optimisers, with their defaults and their fastest way to update many parameters.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": partial(torch.optim.Adam, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, foreach=True),
}


@dataclass(frozen=True)
class ClassifierFit:
    """The examples and weight decays of classifiers that are trained on the same batches."""

    train: RowNumbers  #: of the training examples
    held_out: RowNumbers  #: of the examples for early stopping
    decays: Sequence[float]  #: of each classifier; as many in every fit of a call
    generator: np.random.RandomState  #: draws the order of the examples


class Classifiers:
    """Trains classifiers on the examples of a task."""

    def __init__(
        self, splits: Iterable[Examples], training: ClassifierTraining, device: str = "cpu"
    ) -> None:
        features, labels = map(np.concatenate, zip(*splits, strict=True))
        with_ones = np.pad(features, ((0, 0), (0, 1)), constant_values=1)
        self.features = torch.from_numpy(with_ones).to(device)  # (n, d + 1), ones last
        self.labels = torch.from_numpy(labels).to(device)  # (n,)
        self.training = training

    def fit(
        self, rows: RowNumbers, decays: Sequence[float], held_out: RowNumbers | None = None
    ) -> ClassifierFit:
        """Return a fit on ``rows``.

        Without ``held_out``, a share of the rows is drawn and held out.
        """
        generator = np.random.RandomState(self.training.seed)
        if held_out is None:
            shuffled = rows[generator.permutation(len(rows))]
            held_out, rows = np.split(shuffled, [int(HELD_OUT_SHARE * len(rows))])
        return ClassifierFit(rows, held_out, decays, generator)

    def train(
        self, fits: Sequence[ClassifierFit], advance: Advance = no_progress
    ) -> tuple[Tensor, Tensor]:
        """Train the classifiers of f fits of similar length with r weight decays each, side by
        side.

        ``advance`` takes the number of fits that have ended.

        Returns:
            The weights (f, r, c, d + 1), the bias last, and the accuracies (f, r) on the held-out
            examples, 0 to 1.
        """
        training = self.training
        decays = torch.tensor([list(fit.decays) for fit in fits], device=self.features.device)
        initial = self._initial_weights().repeat(decays.shape[1], 1, 1)
        # one parameter per fit: an optimiser skips parameters without gradient
        parameters = [initial.clone().requires_grad_() for _ in fits]
        optimizer = OPTIMIZERS[training.optimizer](parameters, lr=training.learning_rate)
        best = torch.stack(parameters).detach()
        accuracy = torch.full(decays.shape, -1.0, dtype=torch.float64)
        failures = torch.zeros(decays.shape, dtype=torch.int64)  # evaluations without improvement
        # the numbers of the fits that are still trained, the longest first
        active = sorted(range(len(fits)), key=lambda number: -len(fits[number].train))
        passes = 0
        while active and passes <= training.max_passes:
            for _ in range(training.epoch_size):
                for rows in self._batches([fits[number] for number in active]):
                    numbers = active[: len(rows)]
                    weights = torch.stack([parameters[number] for number in numbers])
                    optimizer.zero_grad()
                    loss = self._loss(rows, weights, decays[numbers])
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            passes += training.epoch_size
            for number in active:
                weights = parameters[number].detach()
                new_accuracy = self.hits(weights, fits[number].held_out).double().mean(0)
                is_trained = failures[number] <= training.tenacity
                is_better = is_trained & (new_accuracy > accuracy[number])
                accuracy[number, is_better] = new_accuracy[is_better]
                best[number, is_better] = weights[is_better]
                failures[number] += is_trained & ~is_better
            still_active = (failures <= training.tenacity).any(1)
            ended = len(active)
            active = [number for number in active if still_active[number]]
            advance(ended - len(active))
        advance(len(active))
        return best, accuracy

    def _initial_weights(self) -> Tensor:
        """Return the weights (c, d + 1) with which PyTorch initialises a linear layer."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.training.seed)
            layer = torch.nn.Linear(self.features.shape[1] - 1, int(self.labels.max()) + 1)
        weights = torch.cat([layer.weight, layer.bias[:, None]], dim=1)
        return weights.detach().to(self.features.device)

    def hits(self, weights: Tensor, rows: RowNumbers) -> Tensor:
        """Return whether each of r classifiers (r, c, d + 1) is right on each of n rows, (n, r)."""
        scores = torch.einsum("nd,rcd->nrc", self.features[rows], weights)
        return (scores.argmax(-1) == self.labels[rows][:, None]).cpu()

    def _batches(self, fits: Sequence[ClassifierFit]) -> Iterator[Tensor]:
        """Yield the rows (f, b) of each step of a pass over the examples of f fits, in a new order.

        The fits are sorted, the longest first; the last steps have only the longest. -1 is padding.
        """
        batch = self.training.batch
        steps = [math.ceil(len(fit.train) / batch) for fit in fits]
        rows = np.full((len(fits), steps[0] * batch), -1)
        for row, fit in zip(rows, fits, strict=True):
            row[: len(fit.train)] = fit.generator.permutation(fit.train)
        on_device = torch.from_numpy(rows).to(self.features.device)  # copied once in a pass
        for step in range(steps[0]):
            fit_count = sum(step_count > step for step_count in steps)
            yield on_device[:fit_count, step * batch : (step + 1) * batch]

    def _loss(self, rows: Tensor, weights: Tensor, decays: Tensor) -> Tensor:
        """Return the sum of the losses of classifiers with weights (f, r, c, d + 1).

        A loss is the mean cross-entropy on the fit's rows (f, b), plus decay / 2 |W|^2 with the
        weight decays (f, r).
        """
        fits, decay_count, classes, width = weights.shape
        scores = torch.bmm(self.features[rows], weights.view(fits, -1, width).transpose(1, 2))
        labels = self.labels[rows].where(rows >= 0, _PADDING_LABEL).repeat_interleave(decay_count)
        losses = functional.cross_entropy(
            scores.view(-1, classes), labels, ignore_index=_PADDING_LABEL, reduction="none"
        )
        means = losses.view(fits, -1).sum(1) / (rows >= 0).sum(1)
        return means.sum() + (decays * weights.square().sum((2, 3))).sum() / 2

    def choose_decay(
        self, fits: Sequence[ClassifierFit], advance: Advance
    ) -> tuple[float, float, Tensor]:
        """Train fits with all ``DECAYS``; return the best weight decay, its mean accuracy x 100,
        and its weights (f, c, d + 1).
        """
        weights, accuracy = self.train(fits, advance)
        scores = [round(100 * float(value), 2) for value in accuracy.mean(0)]
        best = int(np.argmax(scores))
        return DECAYS[best], scores[best], weights[:, best]


def stratified_folds(labels: Labels, folds: int, seed: int) -> list[tuple[RowNumbers, RowNumbers]]:
    """Return the training and test rows of every fold; each class is spread evenly."""
    from sklearn.model_selection import StratifiedKFold

    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return list(splitter.split(labels, labels))


@dataclass(frozen=True)
class Outcome:
    """The result of the classifiers of a task."""

    test: float  #: accuracy x 100 on the test examples
    right: NDArray[np.float64]  #: (examples,) 1 for each correctly classified test example, else 0
    dev: float  #: accuracy x 100 on the examples that chose the weight decay
    decays: list[float]  #: the chosen weight decays, one for each outer fold


def check_labels(name: str, splits: Mapping[str, Labels], training: ClassifierTraining) -> None:
    """Refuse labels of a single class, and too few examples for the folds.

    The training split is the first of ``splits``.
    """
    labels = next(iter(splits.values()))
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise UsageError(
            f"{name}: all {len(labels)} training labels are {classes[0]}; a classifier takes two"
            " classes"
        )
    if "dev" in splits:
        return
    folds = needed = training.folds
    example_count = len(labels)
    if "all" in splits:  # an outer fold is the test set; the other examples are folded again
        needed += 2
        example_count -= math.ceil(example_count / folds)
    if counts.min() < needed:
        raise UsageError(
            f"{name}: {counts.min()} examples of class {classes[counts.argmin()]} are too few for"
            f" {folds} folds; give at least {needed}"
        )
    if int(HELD_OUT_SHARE * example_count) == 0:
        raise UsageError(
            f"{name}: of {example_count} training examples {HELD_OUT_SHARE:.0%} cannot be held out;"
            f" give {round(1 / HELD_OUT_SHARE)}"
        )


def classify(
    splits: Mapping[str, Examples],
    training: ClassifierTraining,
    *,
    device: str = "cpu",
    task: str = "",
) -> Outcome:
    """Train and test classifiers by SentEval's protocol for these splits.

    - ``all``: each fold is tested by a classifier whose weight decay was chosen on folds of the
      other examples. All folds are drawn with seed 1111; the seed of the training only determines
      first weights and the order of examples (InnerKFoldClassifier).
    - ``train`` and ``test``: folds of ``train`` choose the weight decay (KFoldClassifier).
    - ``train``, ``dev`` and ``test``: ``dev`` chooses the weight decay and ends the training
      (SplitClassifier).

    ``task`` is the name of the task in the progress.
    """
    classifiers = Classifiers(splits.values(), training, device)
    labels = classifiers.labels.cpu().numpy()
    ends = np.cumsum([len(split_labels) for _, split_labels in splits.values()])
    rows = dict(zip(splits, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
    folds, seed = training.folds, training.seed
    if "all" in splits:
        seed = SENTEVAL_SEED
        outer = stratified_folds(labels, folds, seed)
    else:
        outer = [(rows["train"], rows["test"])]
    count = 1 if "dev" in splits else (folds + 1) * len(outer)
    decays, dev_scores, final_fits = [], [], []
    with stage(f"classify {task}".strip(), count) as advance:
        for train, _ in outer:
            if "dev" in splits:
                fits = [classifiers.fit(train, DECAYS, rows["dev"])]
            else:
                inner = stratified_folds(labels[train], folds, seed)
                fits = [classifiers.fit(train[fold], DECAYS, train[out]) for fold, out in inner]
            decay, dev_score, trained = classifiers.choose_decay(fits, advance)
            decays.append(decay)
            dev_scores.append(dev_score)
            final_fits.append(classifiers.fit(train, [decay]))
        if "dev" not in splits:
            trained = classifiers.train(final_fits, advance)[0][:, 0]
    right = np.zeros(len(labels))
    for (_, test), weights in zip(outer, trained, strict=True):
        right[test] = classifiers.hits(weights[None], test)[:, 0].numpy()
    test_scores = [round(100 * float(right[test].mean()), 2) for _, test in outer]
    return Outcome(
        round(float(np.mean(test_scores)), 2),
        right[np.sort(np.concatenate([test for _, test in outer]))],
        round(float(np.mean(dev_scores)), 2),
        decays,
    )
