"""Training from the first step to the last: batches, gradients, development scores, and the state on disk.

Batches and dropout follow from seed and step number alone, so a run that was killed and resumed ends at the same
numbers, bit by bit. The folder of a run holds ``state.safetensors`` (weights, moments, position), ``best.safetensors``
(what an entry is made of) and ``log.jsonl`` (a development score a line); only the main process writes.
"""

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import set_seed
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor, nn

from promptcli.data.tasks import STSTask
from promptcli.data.training_examples import TrainingExamples
from promptcli.encoder.batching import LateFigures
from promptcli.encoder.streams import ahead
from promptcli.errors import OutOfMemoryError, PromptcliError, UsageError
from promptcli.evaluation.evaluator import spearman_on
from promptcli.notes import Advance, describe, note, working
from promptcli.storage.files import atomic_path
from promptcli.storage.runs import Position, load_state, log_until, save_state, truncate_log
from promptcli.storage.tensors import load_tensors, save_tensors
from promptcli.training.learner import Learner
from promptcli.training.methods.training_settings import MaskedLMSettings, TrainingSettings
from promptcli.training.optimizers import OPTIMIZERS
from promptcli.training.processes import Processes
from promptcli.training.trainable_encoder import TokenizedView

_CLIP = 1.0
_PRIME = 1_000_003  # spreads seeds, so that no two runs share a step's dropout
_STRIDE = 7_919  # spreads them over processes
_LEAST_TOKENS = 64
_EVERY = 100  # steps by which lambda decays by its factor
_ORDER, _DRAW = 7, 8  # what the generators of an epoch's order, and of a source's, get with the seed


@dataclass(frozen=True)
class DevScore:
    """A score on the development set, while training."""

    step: int  #: steps done
    loss: float | None  #: mean training loss since the last score; None at the start
    value: float  #: Spearman x 100
    best: bool  #: the best so far
    seconds: float  #: spent in steps
    rate: float | None  #: examples per second since the last score
    noise: bool  #: within two standard errors of 0: the vectors say nothing any more


@dataclass(frozen=True)
class TrainedWeights:
    """What a run ended with."""

    tensors: dict[str, Tensor]  #: of the best development score, by name
    dev_scores: list[DevScore]  #: all of the run, in order; the first is the start
    steps: int
    seconds: float  #: spent in steps

    @property
    def best(self) -> DevScore:
        """The development score whose numbers were kept."""
        return [score for score in self.dev_scores if score.best][-1]


def learning_rate(settings: TrainingSettings, step: int, steps: int) -> float:
    """Return the learning rate of step ``step`` (from 0) of ``steps``: a linear rise from 0, then linear decay to 0."""
    warm = min(settings.warmup_steps or math.ceil(settings.warmup * steps), steps)
    return settings.learning_rate * (step / warm if step < warm else 1 - (step - warm) / max(1, steps - warm))


def stalled(scores: Sequence[DevScore], patience: int) -> bool:
    """Return whether the last ``patience`` scores are none the best so far; never where it is 0."""
    return 0 < patience < len(scores) and not any(score.best for score in scores[-patience:])


class Trainer:
    """Trains a learner, alone or as one of several processes.

    Args:
        learner: Freshly made.
        processes: Who takes part, and in which precision the products are.
    """

    def __init__(self, learner: Learner, processes: Processes) -> None:
        self.learner, self.processes, self.settings = learner, processes, learner.settings
        self.dev_scores: list[DevScore] = []  #: all of the run, in order; the first is the start
        self._losses: list[float] = []  # since the last one
        self._scored_at = 0  # examples seen at the last one

    def train(self, examples: TrainingExamples, development: STSTask, folder: Path) -> TrainedWeights:
        """Train until the settings' end, from the state in ``folder`` where there is one.

        Args:
            examples: What to train on.
            development: What the best numbers are chosen by.
            folder: Of the run; there.

        Raises:
            UsageError: Too few examples, or a state of another run.
            PromptcliError: The loss is not a number, or memory does not hold one sentence.
        """
        settings, trainable = self.settings, self.learner.trainable()
        self.processes.check(batch_lengths(settings, examples.sizes))
        self.development, self.folder, self.steps = development, folder, steps_of(settings, examples.sizes)
        self.optimizer = OPTIMIZERS[settings.optimizer](trainable, settings.learning_rate, settings.weight_decay)
        position = self._resume()
        losses = LateFigures(self._report)
        with working(f"train {self.learner.method.name}", self.steps) as bar:
            bar(position.step)
            began = time.perf_counter()
            every = itertools.islice(enumerate(batches(settings, examples.sizes)), position.step, self.steps)
            for (number, rows), (columns, sides) in ahead(lambda item: self._read(examples, item[1]), every):
                if stalled(self.dev_scores, settings.patience):
                    break
                rate = learning_rate(settings, number, self.steps)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                losses.add(self.gradients(number, columns, sides), number + 1, rate, bar)
                self.move(trainable)
                seconds = position.seconds + time.perf_counter() - began
                began = time.perf_counter()
                position = Position(number + 1, position.seen + len(rows), seconds)
                last = position.step == self.steps and (settings.scored == "also-ends" or not self.dev_scores)
                if position.step % settings.eval_steps == 0 or last:
                    losses.read()
                    self._score(position)
                    if self.processes.is_main:
                        save_state(folder / "state.safetensors", trainable, self.optimizer, position)
                    began = time.perf_counter()
            losses.read()
        return TrainedWeights(self._best(), self.dev_scores, position.step, position.seconds)

    def _read(self, examples: TrainingExamples, rows: np.ndarray) -> tuple[list[list[str]], list[TokenizedView]]:
        """Return a batch's texts by column, and its views of this process, tokenised."""
        columns = [[column[row] for row in rows] for column in examples.columns]
        return columns, self.learner.tokenize(self.processes.share(columns))

    def _report(self, found: Any, step: int, rate: float, bar: Advance) -> None:
        """Take the loss of a step; it stops a run that it is not a number in."""
        loss = float(found)
        if not math.isfinite(loss):
            raise PromptcliError(
                f"the loss at step {step} is not a number; the best numbers so far are kept in {self.folder}: try a"
                " lower `learning_rate`"
            )
        self._losses.append(loss)
        bar(1)
        best = [score.value for score in self.dev_scores if score.best][-1:]
        describe(bar, f"loss {loss:.4f}" + "".join(f"  best {value:.2f}" for value in best))
        self.processes.accelerator.log({"loss": loss, "learning_rate": rate}, step=step)

    def gradients(
        self, number: int, columns: Sequence[Sequence[str]], sides: Sequence[TokenizedView] | None = None
    ) -> Tensor:
        """Put the gradients of step ``number`` (from 0) in place and return the loss, still on the device.

        Where memory runs out the step is done again, with gradient caching and passes half as large.

        Args:
            number: Of the step; its dropout follows from it.
            columns: Texts by column, of the whole batch of all processes.
            sides: The views of this process, where they are tokenised already.

        Raises:
            PromptcliError: Memory does not hold the smallest pass.
        """
        learner = self.learner
        while True:
            try:
                return self._gradients(number, columns, sides)
            except Exception as error:
                if not should_reduce_batch_size(error):
                    raise
                if self.processes.number > 1:  # the others wait for this one's vectors
                    raise OutOfMemoryError(
                        f"out of memory at step {number + 1} in process {self.processes.index}; give all of them"
                        f" `gradient_caching` and `chunk_tokens` {learner.chunk_tokens // 2}, or a smaller `batch_size`"
                    ) from None
                if learner.chunk_tokens // 2 < _LEAST_TOKENS:
                    raise OutOfMemoryError(
                        f"out of memory at step {number + 1} even with {learner.chunk_tokens} tokens a pass; take a"
                        " smaller `batch_size` or `max_length`"
                    ) from None
            learner.caching, learner.chunk_tokens = True, learner.chunk_tokens // 2
            note(
                f"out of memory at step {number + 1}: gradient caching from now on, {learner.chunk_tokens} tokens a"
                " pass; the batch and its negatives stay"
            )

    def _gradients(
        self, number: int, columns: Sequence[Sequence[str]], sides: Sequence[TokenizedView] | None
    ) -> Tensor:
        learner, processes, settings = self.learner, self.processes, self.settings
        set_seed((settings.seed * _PRIME + number + _STRIDE * processes.index) % 2**32)
        learner.train()
        learner.zero_grad(set_to_none=True)
        with processes.autocast():
            views = learner(processes.share(columns), sides)
        joined = [processes.join(part, len(columns[0])) for part in views]
        loss = learner.objective.loss(joined, columns)
        value = loss.detach()
        if isinstance(settings, MaskedLMSettings) and settings.mlm_weight:
            weight = settings.mlm_weight * learner.method.mlm_decay ** (number / _EVERY)
            total, count = learner.mlm_sums
            chosen = processes.total(count).clamp(min=1)
            loss = loss + weight * total / chosen
            value = value + weight * processes.total(total) / chosen
        processes.accelerator.backward(loss)
        processes.add_gradients(learner.trainable().values())
        return value

    def move(self, trainable: Mapping[str, nn.Parameter]) -> None:
        """Take the optimiser's step.

        Raises:
            OutOfMemoryError: Memory does not hold its moments.
        """
        try:
            self.processes.accelerator.clip_grad_norm_(trainable.values(), _CLIP)
            self.optimizer.step()
        except Exception as error:
            if not should_reduce_batch_size(error):
                raise
            count = sum(parameter.numel() for parameter in trainable.values())
            raise OutOfMemoryError(
                f"out of memory: {count:,} numbers learn, and with gradients and moments they take"
                f" {16 * count / 1e9:.1f} GB; take a smaller `backbone`, or a method that learns less, such as dcpcse"
            ) from None

    def _score(self, position: Position) -> None:
        """Score the learner; keep its numbers where they are the best so far (strictly: ties keep the earlier)."""
        self.learner.eval()
        value = spearman_on(self.learner.encoder(selecting=True), self.development)
        if not math.isfinite(value):
            value = 0.0  # equal vectors for all sentences rank nothing
        before = self.dev_scores[-1].seconds if self.dev_scores else 0.0
        samples, elapsed = position.seen - self._scored_at, position.seconds - before
        self._scored_at = position.seen
        score = DevScore(
            step=position.step,
            loss=float(np.mean(self._losses)) if self._losses else None,
            value=value,
            best=all(value > score.value for score in self.dev_scores),
            seconds=position.seconds,
            rate=samples / elapsed if elapsed > 0 else None,
            noise=abs(value) / 100 < 2 / math.sqrt(len(self.development.pairs())),
        )
        self.dev_scores.append(score)
        self._losses = []
        self.processes.accelerator.log({f"spearman/{self.development.label}": value}, step=position.step)
        if not self.processes.is_main:
            return
        if score.best:
            with atomic_path(self.folder / "best.safetensors") as temporary:
                save_tensors(self.learner.tensors(), temporary)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(dataclasses.asdict(score)) + "\n")
        self._say(score)

    def _say(self, score: DevScore) -> None:
        parts = [f"step {score.step}/{self.steps}", "" if score.loss is None else f"loss {score.loss:.4f}"]
        parts += [f"{self.development.label} {score.value:.2f}{' *' if score.best else ''}"]
        parts += ["" if score.rate is None else f"{score.rate:.0f} examples/s"]
        note("  ".join(filter(None, parts)))
        if score.noise and score.step:
            note(
                "the development score is noise: the run has diverged; try a `learning_rate` below"
                f" {self.settings.learning_rate:g}"
            )

    def _resume(self) -> Position:
        """Return how far the run is; a fresh one begins with the score of the start."""
        state, log = self.folder / "state.safetensors", self.folder / "log.jsonl"
        self.dev_scores, self._scored_at = [], 0
        begun = state.is_file()
        self.processes.wait()  # before the main process writes anything
        if not begun:
            if self.processes.is_main:
                log.unlink(missing_ok=True)
            if self.settings.scored == "also-ends":
                self._score(Position())
            return Position()
        position = load_state(state, self.learner.trainable(), self.optimizer)
        kept = log_until(log, position.step, DevScore)
        self.dev_scores, self._scored_at = [score for _, score in kept], position.seen
        if not any(score.best for score in self.dev_scores):
            raise UsageError(f"{log} holds no best score; {self._hint}")
        self.processes.wait()  # until all have read it
        if self.processes.is_main:
            truncate_log(log, kept)
        return position

    def _best(self) -> dict[str, Tensor]:
        """Return the best numbers.

        Raises:
            UsageError: Their file is damaged, or of another model.
        """
        self.processes.wait()
        path = self.folder / "best.safetensors"
        found = load_tensors(path, hint=self._hint, error=UsageError)
        shapes, wanted = ({name: one.shape for name, one in own.items()} for own in (found, self.learner.tensors()))
        if shapes != wanted:
            raise UsageError(f"{path} holds the numbers of another model; {self._hint}")
        return found

    @property
    def _hint(self) -> str:
        return f"delete {self.folder} and start again"


def steps_of(settings: TrainingSettings, sizes: Sequence[int]) -> int:
    """Return how many steps a run takes on sources of so many examples.

    Raises:
        UsageError: Fewer examples than one batch.
    """
    lengths = batch_lengths(settings, sizes)
    if not lengths or sum(sizes) < settings.batch_size:
        raise UsageError(
            f"{sum(sizes)} examples are less than one batch of {settings.batch_size}; give more, or `batch_size`"
        )
    return settings.steps or max(1, round(settings.epochs * len(lengths)))


def batch_lengths(settings: TrainingSettings, sizes: Sequence[int]) -> list[int]:
    """Return the number of examples of each batch of an epoch, before the batches are put in order."""
    shares = source_shares(sizes, settings.data_temperature)
    parts = shares if settings.batches == "one-source" else [sum(shares)]
    size = settings.batch_size
    lengths = [min(size, part - start) for part in parts for start in range(0, part, size)]
    return [length for length in lengths if length == size or not settings.drop_last]


def source_shares(sizes: Sequence[int], temperature: float) -> list[int]:
    """Return how many rows of each source an epoch has: n^(1/T) / sum n^(1/T) of all, which are as many as there are.

    Rounded so that they add up: the largest remainders up, the others down.
    """
    total = sum(sizes)
    weights = np.asarray(sizes, np.float64) ** (1 / temperature)
    exact = total * weights / weights.sum()
    shares = np.floor(exact).astype(int)
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return [int(share) for share in shares]


def batches(settings: TrainingSettings, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the rows of each batch without end; a batch that ends an epoch, or its source, may be short.

    With several sources one whose share is more than its rows begins again, one whose share is less goes on in the
    next epoch where it stopped, each time in a new order.
    """
    size = settings.batch_size
    shares = source_shares(sizes, settings.data_temperature)
    epoch = 0
    while True:
        order = np.random.default_rng([settings.seed, _ORDER, epoch])
        drawn = [
            first + _draw(settings.seed, source, rows, epoch * share, share)
            for source, (first, rows, share) in enumerate(zip(np.cumsum([0, *sizes]), sizes, shares, strict=False))
        ]
        if settings.batches == "one-source":
            parts = [part[start : start + size] for part in drawn for start in range(0, len(part), size)]
            parts = [parts[number] for number in order.permutation(len(parts))]
        else:
            chosen = order.permutation(sum(sizes))
            if shares != list(sizes):
                chosen = np.concatenate(drawn)[chosen]
            parts = [chosen[start : start + size] for start in range(0, len(chosen), size)]
        yield from (part for part in parts if len(part) == size or not settings.drop_last)
        epoch += 1


def _draw(seed: int, source: int, rows: int, start: int, count: int) -> np.ndarray:
    """Return rows ``start`` to ``start + count`` of a source that is gone through again and again, in new orders."""
    passes = range(start // rows, math.ceil((start + count) / rows))
    orders = [np.random.default_rng([seed, _DRAW, source, number]).permutation(rows) for number in passes]
    first = start - passes.start * rows
    return np.concatenate(orders)[first : first + count]
