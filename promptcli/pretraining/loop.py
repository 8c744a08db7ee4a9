"""The pre-training loop: one step after the other, logged, with the whole state kept every few minutes."""

import dataclasses
import functools
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.devices import choose_dtype
from promptcli.backbones.dropout import Dropout
from promptcli.encoder.batching import LateFigures
from promptcli.encoder.streams import STREAMS, ahead, stream_count
from promptcli.errors import OutOfMemoryError, PromptcliError, is_out_of_memory
from promptcli.notes import note
from promptcli.pretraining.batches import Batch, Step, chunks_of_phase, steps
from promptcli.pretraining.corpus import Corpus
from promptcli.pretraining.objectives import OBJECTIVES
from promptcli.pretraining.optimizer import make_optimizer
from promptcli.pretraining.plan import Plan
from promptcli.pretraining.precision import name
from promptcli.pretraining.start import sinusoids
from promptcli.storage.runs import Position, load_state, log_until, save_state, truncate_log

_CLIP = 1.0
_LOG_EVERY = 20  # steps; their mean is logged
_WARM_STEPS, _TIMED_STEPS = 3, 24  # of each phase, to learn its pace
_PRIME = 1_000_003  # spreads seeds, so that no two runs share a step's dropout


@dataclass(frozen=True)
class Report:
    """The mean of some steps, as logged."""

    step: int  #: steps done
    seen: int  #: tokens seen
    loss: float  #: mean cross-entropy (natural logarithm) over the predicted tokens of the steps since the last report
    accuracy: float  #: share of them whose first guess is right
    learning_rate: float  #: of the last step
    rate: float  #: tokens per second
    gflops: float  #: matrix products, 10^9 floating-point operations per second
    seconds: float  #: time spent in steps, over all sittings
    precision: str  #: of the matrix products


class Trainer:
    """A model, its optimiser and the work of one step.

    On a processor a batch is computed in several parts at a time, each in a thread of its own: threads that share one
    product wait for each other.
    """

    def __init__(self, plan: Plan, device: str, start: Tensor | None = None, dtype: torch.dtype | None = None) -> None:
        self.plan = plan
        self.device = device
        self.dtype = choose_dtype("auto", device) if dtype is None else dtype
        self.objective = OBJECTIVES[plan.objective]
        self.model = self.objective.model(
            layers=plan.layers,
            width=plan.width,
            heads=plan.heads,
            positions=plan.positions,
            vocab_size=plan.vocab_size,
            tied=plan.tied,
            device=device,
            seed=plan.seed,
            dtype=self.dtype,
        )
        if start is not None:
            self.model.start_from(start)
        places = self.model.position_rows
        if plan.sinusoids and places is not None:
            places.data.copy_(sinusoids(*places.shape))
        threads = torch.get_num_threads()
        self._parts = stream_count(threads) if device == "cpu" and self.model.side_by_side else 1
        self._map: Callable[..., Iterable[Any]] = map
        pool = None
        if self._parts > 1:
            pool = ThreadPoolExecutor(self._parts, initializer=lambda: torch.set_num_threads(threads // self._parts))
            self._map = pool.map
        self.optimizer = make_optimizer(
            plan.optimizer,
            self.model.parameters,
            learning_rate=plan.learning_rate,
            weight_decay=plan.weight_decay,
            executor=pool,
            parts=self._parts,
        )

    def step(self, step: Step, batch: Batch) -> tuple[float, int]:
        """Take one step; return the loss and the number of right first guesses.

        Raises:
            PromptcliError: The loss is not a number.
        """
        return figures_of(step, self.begin(step, batch).cpu().numpy())

    def begin(self, step: Step, batch: Batch) -> Tensor:
        """Take one step; return the loss and the number of right first guesses, (2,), still on the device."""
        seed = self.plan.seed * _PRIME + step.number
        torch.manual_seed(seed)
        rate = self.plan.learning_rate_at(step.seen + step.tokens)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        value, right, gradients = self._within_memory(step, batch, seed)
        for parameter, gradient in zip(self.model.parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(self.model.parameters.values(), _CLIP)
        self.optimizer.step()
        return torch.stack([value, right])

    def _within_memory(self, step: Step, batch: Batch, seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the loss, the right guesses and the gradients of a batch, in as many parts as memory takes.

        Raises:
            OutOfMemoryError: It does not hold one row.
        """
        while True:
            parts = batch.split(self._parts)
            try:
                return self._sums(step, batch, parts, seed)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if self._parts >= len(batch.ids):
                    raise OutOfMemoryError(
                        f"out of memory on {self.device} even with one line at a time; give a smaller --width, --layers"
                        " or --vocab-size, or another --device"
                    ) from None
            self._parts *= 2
            note(f"out of memory on {self.device}: batches are computed in {self._parts} parts from here")

    def _sums(self, step: Step, batch: Batch, parts: Sequence[Batch], seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        drops = [
            Dropout(step.dropout, torch.Generator().manual_seed(seed * STREAMS + index)) for index in range(len(parts))
        ]
        masks = len(batch.bags.places) if batch.bags else 0
        work = functools.partial(self._gradients, predicted=len(batch.gold), masks=masks)
        (value, right, gradients), *others = self._map(work, parts, drops)
        for loss, guessed, more in others:
            value, right = value + loss, right + guessed
            torch._foreach_add_(gradients, more)
        return value, right, gradients

    def _gradients(self, part: Batch, drop: Dropout, predicted: int, masks: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return what a part adds to the mean loss, its right guesses, and its gradients.

        The mean over ``predicted`` tokens, and where templates stand the mean over their ``masks``, as much again.
        """
        loss, right, of_bags = self.model.loss(*part.tensors(self.device), drop=drop)
        loss = loss * (len(part.gold) / predicted)
        if part.bags is not None:
            loss = loss + of_bags * (len(part.bags.places) / masks)
        gradients = torch.autograd.grad(loss, list(self.model.parameters.values()))
        whole = torch.float32 if self.device == "mps" else torch.float64  # which MPS does not have
        return loss.detach().to(whole), right.to(whole), list(gradients)


def figures_of(step: Step, found: np.ndarray) -> tuple[float, int]:
    """Return the loss and the number of right first guesses of a step.

    Raises:
        PromptcliError: The loss is not a number.
    """
    loss, right = found.tolist()
    if not math.isfinite(loss):
        raise PromptcliError(
            f"the loss at step {step.number + 1} is not a number; the state kept last is unharmed: try a lower"
            " --learning-rate in another folder"
        )
    return loss, int(right)


def tokens_in(
    plan: Plan, corpus: Corpus, start: Tensor | None, *, minutes: float, device: str, dtype: torch.dtype
) -> int:
    """Return how many tokens a run of that many minutes can see, by timing some steps of every phase.

    The model that takes them is thrown away. The budget is fixed before the run, so that the run does not depend on
    the clock.
    """
    plan = dataclasses.replace(plan, tokens=sys.maxsize)  # no end in sight: the learning rate stays near 0
    trainer = Trainer(plan, device, start, dtype)
    pace = 0.0  # seconds a token, over the phases in their shares
    number = 0
    for index, phase in enumerate(plan.phases):
        seconds = tokens = 0.0
        for spans in itertools.islice(chunks_of_phase(plan, corpus, index), _WARM_STEPS + _TIMED_STEPS):
            step = Step(number, 0, spans, phase.dropout)
            began = time.perf_counter()
            trainer.step(step, trainer.objective.batch(step, plan, corpus))
            number += 1
            if number % (_WARM_STEPS + _TIMED_STEPS) >= _WARM_STEPS:
                seconds, tokens = seconds + time.perf_counter() - began, tokens + step.tokens
        pace += (phase.until - phase.begins) * seconds / tokens
    return max(plan.batch_tokens, int(minutes * 60 / pace))


def run(
    trainer: Trainer, corpus: Corpus, *, state: Path, log: Path, save_seconds: float, report: Callable[[Report], None]
) -> Position:
    """Run to the end of the token budget, from the state on disk where there is one.

    Args:
        trainer: Freshly made.
        corpus: What to read.
        state: File of the whole state; written every ``save_seconds`` and at the end.
        log: JSONL file, one report a line.
        save_seconds: Between two states.
        report: Called with each report.

    Raises:
        UsageError: The state is not this run's.
        PromptcliError: The loss is not a number.
    """
    position = load_state(state, trainer.model.parameters, trainer.optimizer) if state.is_file() else Position()
    truncate_log(log, log_until(log, position.step, Report))
    tally = _Tally(position)

    def add(found: np.ndarray, step: Step, predicted: int, seconds: float) -> None:
        loss, right = figures_of(step, found)
        tally.add(step, loss, right, predicted, trainer.model.matrix_work(step.tokens, predicted), seconds)

    figures = LateFigures(add)
    saved = time.perf_counter()
    with log.open("a", encoding="utf-8") as lines:
        left = itertools.dropwhile(lambda step: step.number < position.step, steps(trainer.plan, corpus))
        began = time.perf_counter()
        for step, batch in ahead(lambda step: trainer.objective.batch(step, trainer.plan, corpus), left):
            values = trainer.begin(step, batch)
            began, seconds = (now := time.perf_counter()), now - began
            figures.add(values, step, len(batch.gold), seconds)
            if (step.number + 1) % _LOG_EVERY == 0:
                figures.read()
                made = tally.report(trainer)
                lines.write(json.dumps(dataclasses.asdict(made)) + "\n")
                lines.flush()
                report(made)
                if time.perf_counter() - saved > save_seconds:
                    save_state(state, trainer.model.parameters, trainer.optimizer, tally.position)
                    saved = time.perf_counter()
                began = time.perf_counter()
        figures.read()
    save_state(state, trainer.model.parameters, trainer.optimizer, tally.position)
    return tally.position


class _Tally:
    """Sums since the last report, and how far the run is."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self._clear()

    def _clear(self) -> None:
        self._loss = self._seconds = 0.0
        self._right = self._predicted = self._tokens = self._work = 0

    def add(self, step: Step, loss: float, right: int, predicted: int, work: int, seconds: float) -> None:
        """Add one step."""
        self._loss += loss * predicted
        self._right += right
        self._predicted += predicted
        self._tokens += step.tokens
        self._work += work
        self._seconds += seconds
        self.position = Position(step.number + 1, step.seen + step.tokens, self.position.seconds + seconds)

    def report(self, trainer: Trainer) -> Report:
        """Return the means and start anew."""
        made = Report(
            step=self.position.step,
            seen=self.position.seen,
            loss=self._loss / self._predicted,
            accuracy=self._right / self._predicted,
            learning_rate=trainer.plan.learning_rate_at(self.position.seen),
            rate=self._tokens / self._seconds,
            gflops=self._work / self._seconds / 1e9,
            seconds=self.position.seconds,
            precision=name(trainer.dtype),
        )
        self._clear()
        return made
