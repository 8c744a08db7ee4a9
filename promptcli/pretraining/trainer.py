"""A pre-training run: the model, its optimiser, and the work of one step."""

import dataclasses
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.devices import choose_dtype
from promptcli.backbones.dropout import Dropout
from promptcli.backbones.language_models import MaskedLM
from promptcli.encoder.streams import STREAMS, stream_count
from promptcli.errors import OutOfMemoryError, PromptcliError, is_out_of_memory
from promptcli.notes import Advance, describe, note
from promptcli.pretraining.batches import Batch, Step, predict_words, steps
from promptcli.pretraining.corpus import Corpus
from promptcli.pretraining.plan import Plan
from promptcli.pretraining.start import sinusoids
from promptcli.storage.runs import Position, truncate_log
from promptcli.training.loop import Loop, Planned

_SHAPE = ("layers", "width", "heads", "positions", "vocab_size", "tied")
_LOG_EVERY = 20  # steps; their mean is logged
_PRIME = 1_000_003  # spreads seeds, so that no two runs share a step's dropout
_BETAS, _EPSILON = (0.9, 0.98), 1e-6


@dataclass(frozen=True)
class Report:
    """The mean of some steps, as logged."""

    step: int  #: steps done
    seen: int  #: tokens seen
    loss: float  #: mean cross-entropy (natural logarithm) over the predicted tokens of the steps since the last report
    accuracy: float  #: share of them whose first guess is right
    learning_rate: float  #: of the last step
    rate: float  #: tokens per second
    seconds: float  #: time spent in steps, over all sittings


class Trainer(Loop[Step]):
    """A model in pre-training; a processor computes several parts of a batch at a time, each in its own thread."""

    def __init__(self, plan: Plan, device: str, start: Tensor | None = None, dtype: torch.dtype | None = None) -> None:
        self.plan, self.device = plan, device
        shape = {name: getattr(plan, name) for name in _SHAPE}
        dtype = choose_dtype("auto", device) if dtype is None else dtype
        self.model = MaskedLM(**shape, seed=plan.seed, device=device, dtype=dtype)
        self.parameters = self.model.parameters
        if start is not None:
            self.model.start_from(start)
        if not plan.begun_from:
            places = self.model.position_rows
            places.data.copy_(sinusoids(*places.shape))
        threads = torch.get_num_threads()
        self._parts = stream_count(threads) if device == "cpu" else 1
        self._map: Callable[..., Iterable[Any]] = map
        if self._parts > 1:
            share = threads // self._parts
            self._map = ThreadPoolExecutor(self._parts, initializer=lambda: torch.set_num_threads(share)).map
        groups = [
            {"params": [weight for weight in self.parameters.values() if (weight.dim() > 1) is matrices]}
            | {"weight_decay": plan.weight_decay if matrices else 0.0}
            for matrices in (True, False)
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=_BETAS, eps=_EPSILON, fused=True)
        self._advance: Advance = lambda done: None
        self._sums = np.zeros(3)  # loss, right guesses, predictions since the last report

    def train(self, corpus: Corpus, state: Path, log: Path, *, save_seconds: float, advance: Advance) -> Position:
        """Train to the end of the token budget, from the state on disk if there is one.

        ``state`` is written every ``save_seconds`` and at the end; ``advance`` takes the tokens seen.
        """
        self.corpus, self._log, self._save_seconds, self._advance = corpus, log, save_seconds, advance
        position = self.load(state) if state.exists() else Position()
        truncate_log(log, position.step)
        advance(position.seen)
        self._reported, self._saved = position, time.perf_counter()
        position = self.run(position, state)
        self.save(state, position)
        return position

    def planned(self, position: Position) -> Iterator[Planned[Step]]:
        for step in itertools.dropwhile(lambda step: step.number < position.step, steps(self.plan, self.corpus)):
            yield Planned(step, step.tokens, self.plan.learning_rate_at(step.seen + step.tokens))

    def read(self, item: Step) -> Batch:
        return predict_words(item, self.plan, self.corpus)

    def compute(self, item: Step, inputs: Batch) -> Tensor:
        """Put the gradients of a step in place; return loss, right first guesses and predictions, (3,)."""
        seed = self.plan.seed * _PRIME + item.number
        torch.manual_seed(seed)
        value, right, gradients = self._within_memory(item, inputs, seed)
        for parameter, gradient in zip(self.parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        return torch.stack([value, right, torch.full_like(value, len(inputs.gold))])

    def took(self, figures: np.ndarray, item: Step, rate: float) -> None:
        """Add the figures of a step to the next report; a loss that is not a number ends the run."""
        loss, right, predicted = figures.tolist()
        if not math.isfinite(loss):
            raise PromptcliError(f"the loss at step {item.number + 1} is not a number; try a lower `learning_rate`")
        self._sums += (loss * predicted, right, predicted)

    def pauses(self, step: int) -> bool:
        return step % _LOG_EVERY == 0

    def pause(self, position: Position) -> bool:
        """Log the mean of the steps since the last report; return whether a checkpoint is due."""
        loss, right, predicted = self._sums.tolist()
        seen = position.seen - self._reported.seen
        report = Report(
            step=position.step,
            seen=position.seen,
            loss=loss / predicted,
            accuracy=right / predicted,
            learning_rate=self.plan.learning_rate_at(position.seen),
            rate=seen / (position.seconds - self._reported.seconds),
            seconds=position.seconds,
        )
        with self._log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(dataclasses.asdict(report)) + "\n")
        self._advance(seen)
        describe(self._advance, f"loss {report.loss:.3f}  accuracy {100 * report.accuracy:.1f}%")
        self._sums, self._reported = np.zeros(3), position
        due = time.perf_counter() - self._saved > self._save_seconds
        self._saved = time.perf_counter() if due else self._saved
        return due

    def _within_memory(self, step: Step, batch: Batch, seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the loss, the right guesses and the gradients of a batch, in as many parts as memory takes."""
        while True:
            try:
                return self._sums_of(step, batch, seed)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if self._parts >= len(batch.ids):
                    problem = f"out of memory on {self.device} even with one line"
                    raise OutOfMemoryError(f"{problem}; give a smaller `width` or `layers`") from None
            self._parts *= 2
            note(f"out of memory on {self.device}: batches are computed in {self._parts} parts from here")

    def _sums_of(self, step: Step, batch: Batch, seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        parts = batch.split(self._parts)
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
        """Return a part's share of the mean loss over ``predicted`` and ``masks``, right guesses and gradients."""
        loss, right, bags_loss = self.model.loss(*part.tensors(self.device), drop=drop)
        # a part without plain predictions has the mean of nothing
        loss = loss * (len(part.gold) / predicted) if len(part.gold) else bags_loss.new_zeros(())
        if part.bags is not None:
            loss = loss + bags_loss * (len(part.bags.places) / masks)
        gradients = torch.autograd.grad(loss, list(self.parameters.values()))
        exact = torch.float32 if self.device == "mps" else torch.float64  # which MPS does not have
        return loss.detach().to(exact), right.to(exact), list(gradients)
