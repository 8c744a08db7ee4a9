"""SentEval's linear classifier on frozen vectors, many trained side by side, and its three
protocols.

Source: SentEval, tools/classifier.py with nhid 0: one linear layer, softmax, mean cross-entropy,
weight decay added to the gradient (of the bias, too), early stopping on held-out examples, the best
weights kept. Every fit equals the one that SentEval makes alone, but all are one batched matrix
product a step. Protocols: tools/validation.py; accuracies are x 100, rounded to 2 decimals like
SentEval's; of equally good weight decays the first is taken.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptcli.errors import UsageError
from promptcli.notes import Advance, stage

SENTEVAL_SEED = 1111  #: SentEval's seed of folds, first weights and order of examples
DECAYS = (1e-5, 1e-4, 1e-3, 1e-2)  #: the weight decays that are tried
#: share of the training examples that the last training holds out for early stopping
HELD_OUT = 0.05

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
RowNumbers = NDArray[np.int64]  #: row numbers of examples
Examples = tuple[Floats, Labels]  #: features (n, d) and labels (n,) of a split


@dataclass(frozen=True)
class ClassifierTraining:
    """How a classifier is trained."""

    folds: int  #: of every cross-validation
    optimizer: str  #: a row of ``OPTIMIZERS``
    learning_rate: float
    batch: int  #: examples a step
    epoch_size: int  #: passes over the training examples between two looks at the held-out ones
    #: stop after this many evaluations without improvement; the count is never reset (as SentEval
    #: does)
    tenacity: int
    max_passes: int = 200  #: training ends after the first look beyond this many passes

    def facts(self) -> dict[str, Any]:
        """Return all that an accuracy depends on beside the data, JSON-ready."""
        return {
            **asdict(self),
            "weight_decays": list(DECAYS),
            "held_out": HELD_OUT,
            "seed": SENTEVAL_SEED,
        }

    def caption(self, seed: int = SENTEVAL_SEED) -> str:
        """Return the line that tables print about the classifier and its seed."""
        return (
            f"SentEval's linear classifier, {self.folds} folds, {self.optimizer}, seed {seed};"
            " accuracy x 100"
        )


#: SentEval's recommended setting, used for the papers' scores, and its fast one for development.
FULL = ClassifierTraining(
    folds=10, optimizer="adam", learning_rate=1e-3, batch=64, epoch_size=4, tenacity=5
)
FAST = ClassifierTraining(
    folds=5, optimizer="rmsprop", learning_rate=1e-2, batch=128, epoch_size=2, tenacity=3
)

#: One step: the size of the move (f, c, d + 1) from the gradient and the two running means, at step
#: t (f, 1, 1) from 1.
_Step = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
_EPSILON = 1e-8


def _adam(gradient: Tensor, mean: Tensor, square: Tensor, step: Tensor) -> Tensor:
    mean.lerp_(gradient, 1 - 0.9)
    square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
    scale = (1 - 0.999**step).sqrt()
    return (mean / (square.sqrt().div_(scale).add_(_EPSILON))).div_(1 - 0.9**step)


def _rmsprop(gradient: Tensor, mean: Tensor, square: Tensor, step: Tensor) -> Tensor:
    square.mul_(0.99).addcmul_(gradient, gradient, value=1 - 0.99)
    return gradient / (square.sqrt().add_(_EPSILON))


#: PyTorch's optimisers of these names, with their defaults.
OPTIMIZERS: dict[str, _Step] = {"adam": _adam, "rmsprop": _rmsprop}


@dataclass(frozen=True)
class ClassifierFit:
    """One training run."""

    train: RowNumbers  #: row numbers of the training examples
    held_out: RowNumbers  #: row numbers of the examples that end the training
    #: weight decays, one classifier each; the same number in every fit of a call
    decay: Sequence[float]
    generator: np.random.RandomState  #: draws the order of the examples


@dataclass(frozen=True)
class ClassifierSetting:
    """Settings that all classifiers of a task share."""

    training: ClassifierTraining
    classes: int
    seed: int = SENTEVAL_SEED  #: of folds, first weights and order of examples
    device: str = "cpu"
    task: str = ""  #: named by the progress

    def fit(
        self, rows: RowNumbers, held_out: RowNumbers | None, decays: Sequence[float]
    ) -> ClassifierFit:
        """Return a training run on ``rows``.

        Without ``held_out`` a share of them is drawn and held out.
        """
        generator = np.random.RandomState(self.seed)
        if held_out is None:
            shuffled = rows[generator.permutation(len(rows))]
            count = int(HELD_OUT * len(rows))
            held_out = shuffled[:count]
            rows = shuffled[count:]
        return ClassifierFit(rows, held_out, decays, generator)


@dataclass(frozen=True)
class FittedClassifiers:
    """Trained classifiers of f fits with r weight decays each."""

    weights: Tensor  #: (f, r, c, d + 1), the bias last
    accuracy: Tensor  #: (f, r) of the held-out examples, 0 to 1


def with_bias(features: Floats, device: str) -> Tensor:
    """Return features (n, d) with a last column of ones, (n, d + 1)."""
    values = torch.ones(len(features), features.shape[1] + 1)
    values[:, :-1] = torch.from_numpy(features)
    return values.to(device)


def train(
    features: Tensor,
    labels: Tensor,
    fits: Sequence[ClassifierFit],
    setting: ClassifierSetting,
    advance: Advance = lambda done: None,
) -> FittedClassifiers:
    """Train the classifiers of f fits of similar length side by side.

    Features are (n, d + 1), labels (n,). ``advance`` is called with the number of fits that have
    ended.
    """
    order = sorted(range(len(fits)), key=lambda number: -len(fits[number].train))
    first = _first_weights(features.shape[1] - 1, setting.classes, setting.seed)
    run = _Run(features, labels, [fits[number] for number in order], setting.training, first)
    passes = 0
    while run.fits and passes <= setting.training.max_passes:
        for _ in range(setting.training.epoch_size):
            run.one_pass()
        passes += setting.training.epoch_size
        going = len(run.fits)
        run.look()
        advance(going - len(run.fits))
    advance(len(run.fits))
    back = np.argsort(order)
    return FittedClassifiers(run.best.cpu()[back], run.accuracy.cpu()[back])


def _first_weights(width: int, classes: int, seed: int) -> Tensor:
    """Return (c, d + 1): a linear layer as PyTorch makes it after ``manual_seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(width, classes)
    return torch.cat([layer.weight, layer.bias[:, None]], dim=1).detach()


class _Run:
    """The state of a call of ``train``: the fits that still train, longest first."""

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        fits: Sequence[ClassifierFit],
        training: ClassifierTraining,
        first: Tensor,
    ) -> None:
        count = len(fits)
        decays = len(fits[0].decay)
        device = features.device
        self.classes, width = first.shape
        self._features = features
        self._labels = labels
        self._training = training
        self.fits = list(fits)  #: that still train
        self._places = list(range(count))  #: of these fits among all
        sizes = [len(fit.held_out) for fit in fits]
        held_out = torch.from_numpy(np.concatenate([fit.held_out for fit in fits])).to(device)
        self._held_out = torch.split(held_out, sizes)
        # the classifiers of a fit lie below each other: (f, r * c, d + 1)
        self._weights = first.to(device).repeat(count, decays, 1)
        self._mean = torch.zeros_like(self._weights)
        self._square = torch.zeros_like(self._weights)
        self._steps = torch.zeros(count, 1, 1, device=device)
        decay = torch.tensor([list(fit.decay) for fit in fits], device=device)
        self._decay = decay.repeat_interleave(self.classes, dim=1)[:, :, None]
        self._futile = torch.zeros(count, decays, dtype=torch.int64, device=device)
        self.accuracy = torch.full((count, decays), -1.0, dtype=torch.float64, device=device)
        self.best = torch.empty(count, decays, self.classes, width, device=device)

    def one_pass(self) -> None:
        """Go over every fit's training examples once, in a newly drawn order."""
        batch = self._training.batch
        steps = [math.ceil(len(fit.train) / batch) for fit in self.fits]
        most_steps = steps[0]
        rows = np.full((len(self.fits), most_steps * batch), -1)  # -1: padding
        for number, fit in enumerate(self.fits):
            order = fit.generator.permutation(len(fit.train))
            rows[number, : len(fit.train)] = fit.train[order]
        drawn = torch.from_numpy(rows).to(self._features.device)  # the one copy of a pass
        mask = (drawn >= 0).float()
        drawn.clamp_(min=0)
        for step in range(most_steps):
            active = sum(of_fit > step for of_fit in steps)
            part = slice(step * batch, (step + 1) * batch)
            self._step(drawn[:active, part], mask[:active, part])

    def _step(self, rows: Tensor, mask: Tensor) -> None:
        """Take one step of the first f fits on ``rows`` (f, b); ``mask`` is 0 at padding."""
        active = len(rows)
        weights = self._weights[:active]
        decay = self._decay[:active]
        steps = self._steps[:active]
        inputs = self._features.index_select(0, rows.reshape(-1)).view(*rows.shape, -1)
        scores = torch.bmm(inputs, weights.transpose(1, 2)).view(*rows.shape, -1, self.classes)
        # the gradient of cross-entropy by the scores: softmax, less 1 at the label
        errors = scores.softmax(-1)
        labels = self._labels[rows][:, :, None, None].expand(-1, -1, errors.shape[2], 1)
        minus_one = errors.new_full((), -1.0).expand(*errors.shape[:3], 1)
        errors.scatter_add_(-1, labels, minus_one)
        share_of_mean = mask / mask.sum(1, keepdim=True)
        errors *= share_of_mean[:, :, None, None]
        gradient = torch.bmm(errors.flatten(2).transpose(1, 2), inputs)
        gradient.addcmul_(decay, weights)
        steps += 1
        optimizer = OPTIMIZERS[self._training.optimizer]
        move = optimizer(gradient, self._mean[:active], self._square[:active], steps)
        weights.sub_(move, alpha=self._training.learning_rate)

    def look(self) -> None:
        """Score the held-out examples, keep better weights, and drop the fits that ended."""
        going = []
        for number, place in enumerate(self._places):
            rows = self._held_out[place]
            scores = self._features[rows] @ self._weights[number].T
            predicted = scores.view(len(rows), -1, self.classes).argmax(-1)
            hits = (predicted == self._labels[rows][:, None]).sum(0)
            accuracy = hits.double() / len(rows)
            is_going = self._futile[place] <= self._training.tenacity
            is_better = is_going & (accuracy > self.accuracy[place])
            self.accuracy[place] = torch.where(is_better, accuracy, self.accuracy[place])
            weights = self._weights[number].view(*self.best.shape[1:])
            self.best[place] = torch.where(is_better[:, None, None], weights, self.best[place])
            self._futile[place] += (is_going & ~is_better).long()
            going.append((self._futile[place] <= self._training.tenacity).any())
        numbers = np.flatnonzero(torch.stack(going).cpu()).tolist()  # the one wait of a look
        if len(numbers) < len(self.fits):
            self._keep(numbers)

    def _keep(self, numbers: Sequence[int]) -> None:
        """Keep the fits of these numbers."""
        self.fits = [self.fits[number] for number in numbers]
        self._places = [self._places[number] for number in numbers]
        rows = torch.tensor(numbers, dtype=torch.int64).to(self._features.device)
        self._weights = self._weights[rows]
        self._mean = self._mean[rows]
        self._square = self._square[rows]
        self._steps = self._steps[rows]
        self._decay = self._decay[rows]


def pair_features(first: Floats, second: Floats) -> Floats:
    """Return (n, 2d): |u - v| next to u * v, for vectors u and v (n, d) (SentEval, mrpc.py)."""
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def stratified_folds(labels: Labels, folds: int, seed: int) -> list[tuple[RowNumbers, RowNumbers]]:
    """Return the training and test rows of every fold; each class is spread evenly.

    Equals scikit-learn's ``StratifiedKFold(folds, shuffle=True, random_state=seed)`` since 0.22,
    which is not a requirement: the sorted labels, dealt out like cards, say how many of each class
    go to a fold.
    """
    _, first, encoded = np.unique(labels, return_index=True, return_inverse=True)
    by_appearance = np.argsort(np.argsort(first))
    encoded = by_appearance[encoded]
    dealt = np.sort(encoded)
    by_fold = [np.bincount(dealt[fold::folds], minlength=len(first)) for fold in range(folds)]
    counts = np.stack(by_fold)
    generator = np.random.RandomState(seed)
    fold_of = np.empty(len(labels), dtype=np.int64)
    for number in range(len(first)):
        places = np.arange(folds).repeat(counts[:, number])
        generator.shuffle(places)
        fold_of[encoded == number] = places
    split = []
    for fold in range(folds):
        is_test = fold_of == fold
        split.append((np.flatnonzero(~is_test), np.flatnonzero(is_test)))
    return split


@dataclass(frozen=True)
class Outcome:
    """A classifier's result on one task."""

    test: float  #: accuracy x 100 on test examples
    #: (examples,) 1 for each test example that was classified rightly, else 0
    right: NDArray[np.float64]
    dev: float  #: accuracy x 100 on the examples that chose the weight decay
    decays: list[float]  #: the weight decay chosen, one for each outer fold


def check_labels(name: str, splits: Mapping[str, Labels], training: ClassifierTraining) -> None:
    """Refuse labels of one class or with too few examples to fold.

    ``splits`` has the split to train on first.
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
    folds = training.folds
    fewest = int(counts.min())
    left = len(labels)
    fewest_left = fewest
    needed = f"{folds} folds; give {folds}"
    if "all" in splits:  # an outer fold is tested on, the others are folded again
        left -= math.ceil(len(labels) / folds)
        fewest_left -= math.ceil(fewest / folds)
        needed = f"{folds} folds within folds; give at least {folds + 2}"
    if fewest_left < folds:
        rarest = classes[counts.argmin()]
        raise UsageError(f"{name}: {fewest} examples of class {rarest} are too few for {needed}")
    if int(HELD_OUT * left) == 0:
        least = round(1 / HELD_OUT)
        raise UsageError(
            f"{name}: of {left} training examples {HELD_OUT:.0%} cannot be held out; give {least}"
        )


def nested_cross_validation(splits: Mapping[str, Examples], setting: ClassifierSetting) -> Outcome:
    """Test on each fold of ``all`` a classifier whose weight decay the other examples chose.

    They choose it by their own folds. All folds are drawn by 1111, as in SentEval's
    InnerKFoldClassifier; the seed decides first weights and order alone.
    """
    all_features, numbers = splits["all"]
    features, labels = _tensors(splits["all"], setting)
    outer = stratified_folds(numbers, setting.training.folds, SENTEVAL_SEED)
    chosen = []
    dev = []
    test = []
    right = np.zeros(len(numbers))
    with _classifying_stage(setting, len(outer) * setting.training.folds + len(outer)) as advance:
        for rows, _ in outer:
            decay, score = _by_folds(
                features, labels, rows, numbers, setting, SENTEVAL_SEED, advance
            )
            chosen.append(decay)
            dev.append(score)
        fits = []
        for (rows, _), decay in zip(outer, chosen, strict=True):
            fits.append(setting.fit(rows, None, [decay]))
        trained = train(features, labels, fits, setting, advance).weights[:, 0]
    for (_, rows), weights in zip(outer, trained, strict=True):
        right[rows] = _right_answers((all_features[rows], numbers[rows]), weights, setting)
        test.append(_percent(right[rows]))
    return Outcome(
        test=round(float(np.mean(test)), 2),
        right=right,
        dev=round(float(np.mean(dev)), 2),
        decays=chosen,
    )


def cross_validation(splits: Mapping[str, Examples], setting: ClassifierSetting) -> Outcome:
    """Test on ``test`` a classifier whose weight decay folds of ``train`` chose."""
    features, labels = _tensors(splits["train"], setting)
    numbers = splits["train"][1]
    rows = np.arange(len(numbers))
    with _classifying_stage(setting, setting.training.folds + 1) as advance:
        decay, dev = _by_folds(features, labels, rows, numbers, setting, setting.seed, advance)
        fit = setting.fit(rows, None, [decay])
        fitted = train(features, labels, [fit], setting, advance)
    right = _right_answers(splits["test"], fitted.weights[0, 0], setting)
    return Outcome(test=_percent(right), right=right, dev=dev, decays=[decay])


def fixed_split(splits: Mapping[str, Examples], setting: ClassifierSetting) -> Outcome:
    """Test on ``test`` a classifier trained on ``train``; ``dev`` chose its decay and its end."""
    train_features, train_labels = splits["train"]
    dev_features, dev_labels = splits["dev"]
    all_features = np.concatenate([train_features, dev_features])
    all_labels = np.concatenate([train_labels, dev_labels])
    features, labels = _tensors((all_features, all_labels), setting)
    rows = np.arange(len(all_labels))
    fit = setting.fit(rows[: len(train_labels)], rows[len(train_labels) :], DECAYS)
    with _classifying_stage(setting, 1) as advance:
        fitted = train(features, labels, [fit], setting, advance)
    best, dev = _best(fitted)
    right = _right_answers(splits["test"], fitted.weights[0, best], setting)
    return Outcome(test=_percent(right), right=right, dev=dev, decays=[DECAYS[best]])


#: The splits of a transfer task -> how it is scored.
PROTOCOL_OF_SPLITS: dict[
    frozenset[str], Callable[[Mapping[str, Examples], ClassifierSetting], Outcome]
] = {
    frozenset({"all"}): nested_cross_validation,
    frozenset({"train", "test"}): cross_validation,
    frozenset({"train", "dev", "test"}): fixed_split,
}


def _classifying_stage(setting: ClassifierSetting, fits: int) -> AbstractContextManager[Advance]:
    return stage(f"classify {setting.task}".strip(), fits)


def _by_folds(
    features: Tensor,
    labels: Tensor,
    rows: RowNumbers,
    numbers: Labels,
    setting: ClassifierSetting,
    seed: int,
    advance: Advance,
) -> tuple[float, float]:
    """Return the best weight decay over folds of the rows, and its mean accuracy x 100."""
    folds = stratified_folds(numbers[rows], setting.training.folds, seed)
    fits = [setting.fit(rows[kept], rows[held_out], DECAYS) for kept, held_out in folds]
    best, score = _best(train(features, labels, fits, setting, advance))
    return DECAYS[best], score


def _best(fitted: FittedClassifiers) -> tuple[int, float]:
    scores = [round(100 * float(value), 2) for value in fitted.accuracy.mean(0)]
    return int(np.argmax(scores)), max(scores)


def _right_answers(
    examples: Examples, weights: Tensor, setting: ClassifierSetting
) -> NDArray[np.float64]:
    """Return 1 for each example that a classifier labels rightly, else 0."""
    features, labels = _tensors(examples, setting)
    predicted = (features @ weights.to(features.device).T).argmax(1)
    right = predicted == labels
    return right.double().cpu().numpy()


def _percent(right: NDArray[np.float64]) -> float:
    return round(100 * float(right.mean()), 2)


def _tensors(examples: Examples, setting: ClassifierSetting) -> tuple[Tensor, Tensor]:
    features, labels = examples
    return with_bias(features, setting.device), torch.from_numpy(labels).to(setting.device)
