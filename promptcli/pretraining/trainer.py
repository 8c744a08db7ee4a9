"""A pre-training run: the model, its optimiser, and the work of one step."""

import itertools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.devices import choose_dtype
from promptcli.backbones.language_models import MaskedLM
from promptcli.errors import OutOfMemoryError, PromptcliError, is_out_of_memory
from promptcli.notes import Advance, describe
from promptcli.pretraining.batches import Batch, Step, predict_words, steps
from promptcli.pretraining.corpus import Corpus
from promptcli.pretraining.plan import Plan
from promptcli.pretraining.start import sinusoids
from promptcli.storage.runs import Position, truncate_log
from promptcli.training.loop import Loop, Planned

_SHAPE = ("layers", "width", "heads", "positions", "vocab_size", "tied")
_LOG_EVERY = 20  # steps; their mean is logged
_SAVE_SECONDS = 60.0  # between two checkpoints
_PRIME = 1_000_003  # spreads seeds, so that no two runs share a step's dropout
_BETAS, _EPSILON = (0.9, 0.98), 1e-6


class Trainer(Loop[Step]):
    """A model in pre-training."""

    def __init__(self, plan: Plan, device: str, start: Tensor | None = None, dtype: torch.dtype | None = None) -> None:
        self.plan, self.device = plan, device
        shape = {name: getattr(plan, name) for name in _SHAPE}
        self.model = MaskedLM(**shape, seed=plan.seed, device=device, dtype=dtype or choose_dtype("auto", device))
        self.parameters = self.model.parameters
        if start is not None:
            self.model.start_from(start)
        if not plan.begun_from:
            places = self.model.position_rows
            places.data.copy_(sinusoids(*places.shape))
        groups = [
            {"params": [weight for weight in self.parameters.values() if (weight.dim() > 1) is matrices]}
            | {"weight_decay": plan.weight_decay if matrices else 0.0}
            for matrices in (True, False)
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=_BETAS, eps=_EPSILON, fused=True)
        self._sums = np.zeros(3)  # loss, right guesses, predictions since the last report

    def train(self, corpus: Corpus, state: Path, log: Path, advance: Advance) -> Position:
        """Train to the end of the token budget, from the state on disk if there is one.

        ``state`` is written every minute and at the end; ``advance`` takes the tokens seen.
        """
        self.corpus, self._log, self._advance = corpus, log, advance
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
        torch.manual_seed(self.plan.seed * _PRIME + item.number)
        self.optimizer.zero_grad()
        try:
            loss, right = self.model.loss(*inputs.tensors(self.device), dropout=item.dropout)
            loss.backward()  # type: ignore[no-untyped-call]
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemoryError(f"out of memory on {self.device}; give a lower `batch_tokens`") from None
        return torch.stack([loss.detach(), right.float(), torch.full_like(loss, len(inputs.gold), requires_grad=False)])

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
        seen, seconds = position.seen - self._reported.seen, position.seconds - self._reported.seconds
        report = {
            "step": position.step,
            "seen": position.seen,
            "loss": loss / predicted,
            "accuracy": right / predicted,
            "learning_rate": self.plan.learning_rate_at(position.seen),
            "rate": seen / seconds,
            "seconds": position.seconds,
        }
        with self._log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(report) + "\n")
        self._advance(seen)
        describe(self._advance, f"loss {loss / predicted:.3f}  accuracy {right / predicted:.1%}")
        self._sums, self._reported = np.zeros(3), position
        due = time.perf_counter() - self._saved > _SAVE_SECONDS
        self._saved = time.perf_counter() if due else self._saved
        return due
