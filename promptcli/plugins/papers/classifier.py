"""SentEval's linear classifier on frozen vectors, many trained side by side, and its three
protocols.

Source: SentEval, tools/classifier.py with nhid 0: one linear layer, softmax, mean cross-entropy,
weight decay added to the gradient (including the bias's), early stopping on held-out examples, and
the best weights kept. Every fit equals SentEval's separate fit, but each step of all fits is one
batched matrix product. Protocols: tools/validation.py; accuracies are x 100, rounded to 2 decimals
like SentEval's; on ties the first weight decay wins.
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
from promptcli.evaluation.evaluator import EvalSettings
from promptcli.notes import Advance, no_progress, stage

SENTEVAL_SEED = 1111  #: SentEval's seed of folds, first weights and order of examples
DECAYS = (1e-5, 1e-4, 1e-3, 1e-2)  #: candidate weight decays
#: share of the training examples that the last training holds out for early stopping
HELD_OUT = 0.05
_PADDING = -100  #: a label that no example has

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
RowNumbers = NDArray[np.int64]  #: row numbers of examples
Examples = tuple[Floats, Labels]  #: features (n, d) and labels (n,) of a split


@dataclass(frozen=True)
class ClassifierTraining:
    """Training settings of a classifier."""

    folds: int  #: of every cross-validation
    optimizer: str  #: a row of ``OPTIMIZERS``
    learning_rate: float
    batch: int  #: examples per step
    epoch_size: int  #: passes over the training examples between two evaluations
    #: stop after this many evaluations without improvement; the count is never reset (as SentEval
    #: does)
    tenacity: int
    max_passes: int = 200  #: training ends after the first evaluation beyond this many passes
    seed: int = SENTEVAL_SEED  #: of folds, first weights and order of examples

    def facts(self) -> dict[str, Any]:
        """Return everything but the data that determines an accuracy, JSON-ready."""
        return {**asdict(self), "weight_decays": list(DECAYS), "held_out": HELD_OUT}

    def caption(self) -> str:
        """Return the tables' line about the classifier and its seed."""
        return (
            f"SentEval's linear classifier, {self.folds} folds, {self.optimizer},"
            f" seed {self.seed}; accuracy x 100"
        )


#: SentEval's recommended setting, used for the papers' scores, and its fast one for development.
FULL = ClassifierTraining(
    folds=10, optimizer="adam", learning_rate=1e-3, batch=64, epoch_size=4, tenacity=5
)
FAST = ClassifierTraining(
    folds=5, optimizer="rmsprop", learning_rate=1e-2, batch=128, epoch_size=2, tenacity=3
)


def training_of(settings: EvalSettings) -> ClassifierTraining:
    """Return the training settings of classifiers."""
    return FAST if settings.fast else FULL


#: PyTorch's optimisers of these names, with their defaults; they take many parameters at once.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": partial(torch.optim.Adam, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, foreach=True),
}


@dataclass(frozen=True)
class ClassifierFit:
    """One training run."""

    train: RowNumbers  #: row numbers of the training examples
    held_out: RowNumbers  #: row numbers of the examples for early stopping
    #: weight decays, one classifier each; the same number in every fit of a call
    decays: Sequence[float]
    generator: np.random.RandomState  #: draws the order of the examples


class Classifiers:
    """The classifiers of one task, which share its examples."""

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
        """Return a training run on ``rows``.

        Without ``held_out``, a share of them is drawn and held out.
        """
        generator = np.random.RandomState(self.training.seed)
        if held_out is None:
            shuffled = rows[generator.permutation(len(rows))]
            held_out, rows = np.split(shuffled, [int(HELD_OUT * len(rows))])
        return ClassifierFit(rows, held_out, decays, generator)

    def train(
        self, fits: Sequence[ClassifierFit], advance: Advance = no_progress
    ) -> tuple[Tensor, Tensor]:
        """Train the classifiers of f fits of similar length with r weight decays each, side by
        side.

        ``advance`` takes the number of finished fits. Returned are the weights (f, r, c, d + 1),
        the bias last, and the accuracies (f, r) on the held-out examples, 0 to 1.
        """
        training = self.training
        decays = torch.tensor([list(fit.decays) for fit in fits], device=self.features.device)
        initial = self._initial_weights().repeat(decays.shape[1], 1, 1)
        # one parameter per fit: an optimiser skips parameters without gradient
        parameters = [initial.clone().requires_grad_() for _ in fits]
        optimizer = OPTIMIZERS[training.optimizer](parameters, lr=training.learning_rate)
        best = torch.stack(parameters).detach()
        accuracy = torch.full(decays.shape, -1.0, dtype=torch.float64)
        futile = torch.zeros(decays.shape, dtype=torch.int64)
        # the fits still in training, the longest first
        going = sorted(range(len(fits)), key=lambda number: -len(fits[number].train))
        passes = 0
        while going and passes <= training.max_passes:
            for _ in range(training.epoch_size):
                for rows in self._batches([fits[number] for number in going]):
                    active = going[: len(rows)]
                    weights = torch.stack([parameters[number] for number in active])
                    optimizer.zero_grad()
                    loss = self._loss(rows, weights, decays[active])
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            passes += training.epoch_size
            for number in going:
                weights = parameters[number].detach()
                reached = self.hits(weights, fits[number].held_out).double().mean(0)
                trains = futile[number] <= training.tenacity
                is_better = trains & (reached > accuracy[number])
                accuracy[number, is_better] = reached[is_better]
                best[number, is_better] = weights[is_better]
                futile[number] += trains & ~is_better
            left = [number for number in going if (futile[number] <= training.tenacity).any()]
            advance(len(going) - len(left))
            going = left
        advance(len(going))
        return best, accuracy

    def _initial_weights(self) -> Tensor:
        """Return the weights (c, d + 1) of a linear layer as PyTorch makes it from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.training.seed)
            layer = torch.nn.Linear(self.features.shape[1] - 1, int(self.labels.max()) + 1)
        weights = torch.cat([layer.weight, layer.bias[:, None]], dim=1)
        return weights.detach().to(self.features.device)

    def hits(self, weights: Tensor, rows: RowNumbers) -> Tensor:
        """Return whether each of r classifiers (r, c, d + 1) is right on n examples, (n, r)."""
        scores = torch.einsum("nd,rcd->nrc", self.features[rows], weights)
        return (scores.argmax(-1) == self.labels[rows][:, None]).cpu()

    def _batches(self, fits: Sequence[ClassifierFit]) -> Iterator[Tensor]:
        """Yield the rows (f, b) of each step of a pass over the fits' examples, in a new order.

        The longest fits come first, and alone take part in the last steps. -1 is padding.
        """
        batch = self.training.batch
        steps = [math.ceil(len(fit.train) / batch) for fit in fits]
        rows = np.full((len(fits), steps[0] * batch), -1)
        for row, fit in zip(rows, fits, strict=True):
            row[: len(fit.train)] = fit.generator.permutation(fit.train)
        drawn = torch.from_numpy(rows).to(self.features.device)  # the one copy of a pass
        for step in range(steps[0]):
            active = sum(of_fit > step for of_fit in steps)
            yield drawn[:active, step * batch : (step + 1) * batch]

    def _loss(self, rows: Tensor, weights: Tensor, decays: Tensor) -> Tensor:
        """Return the sum of the losses of f fits with r weight decays (f, r) each, whose weights
        are (f, r, c, d + 1): the mean cross-entropy of the fit's rows (f, b), and decay / 2 |W|^2.
        """
        fits, tried, classes, width = weights.shape
        scores = torch.bmm(self.features[rows], weights.view(fits, -1, width).transpose(1, 2))
        wanted = self.labels[rows].where(rows >= 0, _PADDING).repeat_interleave(tried)
        errors = functional.cross_entropy(
            scores.view(-1, classes), wanted, ignore_index=_PADDING, reduction="none"
        )
        means = errors.view(fits, -1).sum(1) / (rows >= 0).sum(1)
        return means.sum() + (decays * weights.square().sum((2, 3))).sum() / 2

    def choose_decay(
        self, fits: Sequence[ClassifierFit], advance: Advance
    ) -> tuple[float, float, Tensor]:
        """Return the best of ``DECAYS`` over fits that try all, its mean accuracy x 100, and its
        weights (f, c, d + 1).
        """
        weights, accuracy = self.train(fits, advance)
        scores = [round(100 * float(value), 2) for value in accuracy.mean(0)]
        best = int(np.argmax(scores))
        return DECAYS[best], scores[best], weights[:, best]


def stratified_folds(labels: Labels, folds: int, seed: int) -> list[tuple[RowNumbers, RowNumbers]]:
    """Return the training and test rows of every fold; each class is spread evenly."""
    from sklearn.model_selection import StratifiedKFold

    drawn = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return list(drawn.split(labels, labels))


@dataclass(frozen=True)
class Outcome:
    """A classifier's result on one task."""

    test: float  #: accuracy x 100 on test examples
    #: (examples,) 1 for each correctly classified test example, else 0
    right: NDArray[np.float64]
    dev: float  #: accuracy x 100 on the examples that chose the weight decay
    decays: list[float]  #: the weight decay chosen, one for each outer fold


def check_labels(name: str, splits: Mapping[str, Labels], training: ClassifierTraining) -> None:
    """Refuse labels with only one class, or with too few examples to fold.

    ``splits`` has the training split first.
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
    left = len(labels)
    if "all" in splits:  # an outer fold is the test set, the others are folded again
        needed += 2
        left -= math.ceil(left / folds)
    if counts.min() < needed:
        raise UsageError(
            f"{name}: {counts.min()} examples of class {classes[counts.argmin()]} are too few for"
            f" {folds} folds; give at least {needed}"
        )
    if int(HELD_OUT * left) == 0:
        raise UsageError(
            f"{name}: of {left} training examples {HELD_OUT:.0%} cannot be held out; give"
            f" {round(1 / HELD_OUT)}"
        )


def classify(
    splits: Mapping[str, Examples],
    training: ClassifierTraining,
    *,
    device: str = "cpu",
    task: str = "",
) -> Outcome:
    """Test classifiers by SentEval's protocol for these splits.

    ``all``: each fold is tested by a classifier whose weight decay was chosen on folds of the other
    examples; all folds are drawn with seed 1111, and the seed sets only first weights and order
    (InnerKFoldClassifier). ``train`` and ``test``: folds of ``train`` choose the weight decay
    (KFoldClassifier). With ``dev`` too, it chooses the weight decay and the end (SplitClassifier).
    ``task`` is the name shown in the progress.
    """
    classifiers = Classifiers(splits.values(), training, device)
    labels = classifiers.labels.cpu().numpy()
    ends = np.cumsum([len(of_split) for _, of_split in splits.values()])
    rows = dict(zip(splits, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
    folds, seed = training.folds, training.seed
    if "all" in splits:
        seed = SENTEVAL_SEED
        outer = stratified_folds(labels, folds, seed)
    else:
        outer = [(rows["train"], rows["test"])]
    count = 1 if "dev" in splits else (folds + 1) * len(outer)
    decays, dev_scores, last = [], [], []
    with stage(f"classify {task}".strip(), count) as advance:
        for learned, _ in outer:
            if "dev" in splits:
                fits = [classifiers.fit(learned, DECAYS, rows["dev"])]
            else:
                inner = stratified_folds(labels[learned], folds, seed)
                fits = [classifiers.fit(learned[kept], DECAYS, learned[out]) for kept, out in inner]
            decay, dev_score, trained = classifiers.choose_decay(fits, advance)
            decays.append(decay)
            dev_scores.append(dev_score)
            last.append(classifiers.fit(learned, [decay]))
        if "dev" not in splits:
            trained = classifiers.train(last, advance)[0][:, 0]
    right = np.zeros(len(labels))
    for (_, tested), weights in zip(outer, trained, strict=True):
        right[tested] = classifiers.hits(weights[None], tested)[:, 0].numpy()
    test = [round(100 * float(right[tested].mean()), 2) for _, tested in outer]
    return Outcome(
        round(float(np.mean(test)), 2),
        right[np.sort(np.concatenate([tested for _, tested in outer]))],
        round(float(np.mean(dev_scores)), 2),
        decays,
    )
