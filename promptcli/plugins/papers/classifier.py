"""SentEval's linear classifier on frozen vectors, many trained side by side, and its three
protocols.

Source: SentEval, tools/classifier.py with nhid 0: one linear layer, softmax, mean cross-entropy,
weight decay added to the gradient (of the bias, too), early stopping on held-out examples, the best
weights kept. Every fit equals the one that SentEval makes alone, but all are one batched matrix
product a step. Protocols: tools/validation.py; accuracies are x 100, rounded to 2 decimals like
SentEval's; of equally good weight decays the first is taken.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptcli.errors import UsageError
from promptcli.evaluation.evaluator import EvalSettings
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


def training_of(settings: EvalSettings) -> tuple[ClassifierTraining, int]:
    """Return how classifiers are trained, and the seed of first weights and order of examples."""
    seed = SENTEVAL_SEED if settings.seed is None else settings.seed
    return FAST if settings.fast else FULL, seed


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
            held_out, rows = np.split(shuffled, [int(HELD_OUT * len(rows))])
        return ClassifierFit(rows, held_out, decays, generator)

    def tensors(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """Return features (n, d) with a last column of ones, (n, d + 1), and labels (n,)."""
        features, labels = examples
        values = torch.ones(len(features), features.shape[1] + 1)
        values[:, :-1] = torch.from_numpy(features)
        return values.to(self.device), torch.from_numpy(labels).to(self.device)

    def stage(self, fits: int) -> AbstractContextManager[Advance]:
        return stage(f"classify {self.task}".strip(), fits)


def train(
    features: Tensor,
    labels: Tensor,
    fits: Sequence[ClassifierFit],
    setting: ClassifierSetting,
    advance: Advance = lambda done: None,
) -> tuple[Tensor, Tensor]:
    """Train the classifiers of f fits of similar length with r weight decays each, side by side.

    Features are (n, d + 1), labels (n,). ``advance`` is called with the number of fits that have
    ended. Returned are the weights (f, r, c, d + 1), the bias last, and the accuracies (f, r) of
    the held-out examples, 0 to 1.
    """
    training = setting.training
    device = features.device
    with torch.random.fork_rng(devices=[]):  # a linear layer as PyTorch makes it from a seed
        torch.manual_seed(setting.seed)
        layer = torch.nn.Linear(features.shape[1] - 1, setting.classes)
    first = torch.cat([layer.weight, layer.bias[:, None]], dim=1).detach().to(device)
    held_out = [torch.from_numpy(fit.held_out).to(device) for fit in fits]
    shape = (len(fits), len(fits[0].decay))
    futile = torch.zeros(shape, dtype=torch.int64, device=device)
    accuracy = torch.full(shape, -1.0, dtype=torch.float64, device=device)
    best = torch.empty(*shape, *first.shape, device=device)
    # of the fits that still train, the longest first; a fit's classifiers lie below each other
    going = sorted(range(len(fits)), key=lambda number: -len(fits[number].train))
    weights = first.repeat(*shape, 1)  # (f, r * c, d + 1)
    decay = torch.tensor([list(fits[number].decay) for number in going], device=device)
    decay = decay.repeat_interleave(len(first), dim=1)[:, :, None]
    steps = torch.zeros(len(fits), 1, 1, device=device)
    state = [weights, decay, steps, torch.zeros_like(weights), torch.zeros_like(weights)]
    passes = 0
    while going and passes <= training.max_passes:
        for _ in range(training.epoch_size):
            for rows, mask in _batches([fits[number] for number in going], training.batch, device):
                _step(features, labels[rows], rows, mask, state, setting)
        passes += training.epoch_size
        are_going = []
        for number, found in zip(going, state[0], strict=True):
            rows = held_out[number]
            scores = (features[rows] @ found.T).view(len(rows), *best.shape[1:3])
            hits = (scores.argmax(-1) == labels[rows][:, None]).sum(0)
            reached = hits.double() / len(rows)
            trains = futile[number] <= training.tenacity
            is_better = trains & (reached > accuracy[number])
            accuracy[number] = torch.where(is_better, reached, accuracy[number])
            own = best[number]
            own[:] = torch.where(is_better[:, None, None], found.view_as(own), own)
            futile[number] += (trains & ~is_better).long()
            are_going.append((futile[number] <= training.tenacity).any())
        left = np.flatnonzero(torch.stack(are_going).cpu()).tolist()  # the one wait of a look
        advance(len(going) - len(left))
        if len(left) < len(going):
            going = [going[place] for place in left]
            state = [part[left] for part in state]
    advance(len(going))
    return best, accuracy


def _batches(
    fits: Sequence[ClassifierFit], batch: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows (f, b) of each step of a pass over the fits' examples, in a new order.

    The longest fits are the first, and the only ones of the last steps. The mask is 0 at padding.
    """
    steps = [math.ceil(len(fit.train) / batch) for fit in fits]
    rows = np.full((len(fits), steps[0] * batch), -1)  # -1: padding
    for row, fit in zip(rows, fits, strict=True):
        row[: len(fit.train)] = fit.generator.permutation(fit.train)
    drawn = torch.from_numpy(rows).to(device)  # the one copy of a pass
    mask = (drawn >= 0).float()
    drawn.clamp_(min=0)
    for step in range(steps[0]):
        active = sum(of_fit > step for of_fit in steps)
        part = slice(step * batch, (step + 1) * batch)
        yield drawn[:active, part], mask[:active, part]


def _step(
    features: Tensor,
    labels: Tensor,
    rows: Tensor,
    mask: Tensor,
    state: Sequence[Tensor],
    setting: ClassifierSetting,
) -> None:
    """Take one step of the first f fits on ``rows`` (f, b) with their labels."""
    weights, decay, steps, mean, square = (part[: len(rows)] for part in state)
    inputs = features.index_select(0, rows.reshape(-1)).view(*rows.shape, -1)
    scores = torch.bmm(inputs, weights.transpose(1, 2)).view(*rows.shape, -1, setting.classes)
    # the gradient of cross-entropy by the scores: softmax, less 1 at the label
    errors = scores.softmax(-1)
    places = labels[:, :, None, None].expand(-1, -1, errors.shape[2], 1)
    errors.scatter_add_(-1, places, errors.new_full((), -1.0).expand_as(places))
    share_of_mean = mask / mask.sum(1, keepdim=True)
    errors *= share_of_mean[:, :, None, None]
    gradient = torch.bmm(errors.flatten(2).transpose(1, 2), inputs)
    gradient.addcmul_(decay, weights)
    steps += 1
    move = OPTIMIZERS[setting.training.optimizer](gradient, mean, square, steps)
    weights.sub_(move, alpha=setting.training.learning_rate)


def stratified_folds(labels: Labels, folds: int, seed: int) -> list[tuple[RowNumbers, RowNumbers]]:
    """Return the training and test rows of every fold; each class is spread evenly.

    Equals scikit-learn's ``StratifiedKFold(folds, shuffle=True, random_state=seed)`` since 0.22,
    which is not a requirement: the sorted labels, dealt out like cards, say how many of each class
    go to a fold.
    """
    _, first, encoded = np.unique(labels, return_index=True, return_inverse=True)
    encoded = np.argsort(np.argsort(first))[encoded]  # classes by their first appearance
    dealt = np.sort(encoded)
    generator = np.random.RandomState(seed)
    fold_of = np.empty(len(labels), dtype=np.int64)
    for number in range(len(first)):
        counts = np.bincount(np.flatnonzero(dealt == number) % folds, minlength=folds)
        places = np.arange(folds).repeat(counts)
        generator.shuffle(places)
        fold_of[encoded == number] = places
    split = []
    for fold in range(folds):
        split.append((np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)))
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
    folds = needed = training.folds
    left = len(labels)
    if "all" in splits:  # an outer fold is tested on, the others are folded again
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


def nested_cross_validation(splits: Mapping[str, Examples], setting: ClassifierSetting) -> Outcome:
    """Test on each fold of ``all`` a classifier whose weight decay the other examples chose.

    They choose it by their own folds. All folds are drawn by 1111, as in SentEval's
    InnerKFoldClassifier; the seed decides first weights and order alone.
    """
    features, labels = setting.tensors(splits["all"])
    folds = setting.training.folds
    outer = stratified_folds(splits["all"][1], folds, SENTEVAL_SEED)
    with setting.stage((folds + 1) * folds) as advance:
        chosen = []
        for rows, _ in outer:
            chosen.append(_by_folds(features, labels, rows, setting, SENTEVAL_SEED, advance))
        fits = []
        for (rows, _), (decay, _) in zip(outer, chosen, strict=True):
            fits.append(setting.fit(rows, None, [decay]))
        trained, _ = train(features, labels, fits, setting, advance)
    right = np.zeros(len(labels))
    for (_, rows), weights in zip(outer, trained, strict=True):
        right[rows] = _right_answers(features[rows], labels[rows], weights[0])
    decays, dev = zip(*chosen, strict=True)
    test = [_percent(right[rows]) for _, rows in outer]
    return Outcome(round(float(np.mean(test)), 2), right, round(float(np.mean(dev)), 2), [*decays])


def cross_validation(splits: Mapping[str, Examples], setting: ClassifierSetting) -> Outcome:
    """Test on ``test`` a classifier whose weight decay folds of ``train`` chose."""
    features, labels = setting.tensors(splits["train"])
    rows = np.arange(len(labels))
    with setting.stage(setting.training.folds + 1) as advance:
        decay, dev = _by_folds(features, labels, rows, setting, setting.seed, advance)
        fit = setting.fit(rows, None, [decay])
        weights, _ = train(features, labels, [fit], setting, advance)
    right = _right_answers(*setting.tensors(splits["test"]), weights[0, 0])
    return Outcome(_percent(right), right, dev, [decay])


def fixed_split(splits: Mapping[str, Examples], setting: ClassifierSetting) -> Outcome:
    """Test on ``test`` a classifier trained on ``train``; ``dev`` chose its decay and its end."""
    train_features, train_labels = splits["train"]
    dev_features, dev_labels = splits["dev"]
    features, labels = setting.tensors(
        (
            np.concatenate([train_features, dev_features]),
            np.concatenate([train_labels, dev_labels]),
        )
    )
    rows, held_out = np.split(np.arange(len(labels)), [len(train_labels)])
    with setting.stage(1) as advance:
        fit = setting.fit(rows, held_out, DECAYS)
        weights, accuracy = train(features, labels, [fit], setting, advance)
    best, dev = _best(accuracy)
    right = _right_answers(*setting.tensors(splits["test"]), weights[0, best])
    return Outcome(_percent(right), right, dev, [DECAYS[best]])


#: The splits of a transfer task -> how it is scored.
PROTOCOL_OF_SPLITS: dict[
    frozenset[str], Callable[[Mapping[str, Examples], ClassifierSetting], Outcome]
] = {
    frozenset({"all"}): nested_cross_validation,
    frozenset({"train", "test"}): cross_validation,
    frozenset({"train", "dev", "test"}): fixed_split,
}


def _by_folds(
    features: Tensor,
    labels: Tensor,
    rows: RowNumbers,
    setting: ClassifierSetting,
    seed: int,
    advance: Advance,
) -> tuple[float, float]:
    """Return the best weight decay over folds of the rows, and its mean accuracy x 100."""
    folds = stratified_folds(labels.cpu().numpy()[rows], setting.training.folds, seed)
    fits = [setting.fit(rows[kept], rows[held_out], DECAYS) for kept, held_out in folds]
    _, accuracy = train(features, labels, fits, setting, advance)
    best, score = _best(accuracy)
    return DECAYS[best], score


def _best(accuracy: Tensor) -> tuple[int, float]:
    scores = [round(100 * float(value), 2) for value in accuracy.cpu().mean(0)]
    return int(np.argmax(scores)), max(scores)


def _right_answers(features: Tensor, labels: Tensor, weights: Tensor) -> NDArray[np.float64]:
    """Return 1 for each example that a classifier labels rightly, else 0."""
    right = (features @ weights.T).argmax(1) == labels
    return right.double().cpu().numpy()


def _percent(right: NDArray[np.float64]) -> float:
    return round(100 * float(right.mean()), 2)
