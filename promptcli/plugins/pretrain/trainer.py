"""A pre-training run: the model, its optimiser, and the work of one step."""

import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from promptcli import errors, notes
from promptcli.backbones.language_models import ContinuedMaskedLM
from promptcli.encoder import batching
from promptcli.encoder.prefetching import prefetch
from promptcli.errors import PromptcliError
from promptcli.plugins.pretrain.batches import MaskedBatch, Step, batch_of_step, steps
from promptcli.plugins.pretrain.corpus import Corpus
from promptcli.plugins.pretrain.plan import Plan
from promptcli.storage import runs
from promptcli.training.trainer import PRIME

_CLIP = 1.0  #: norm to which gradients are clipped
_LOG_EVERY = 20  # steps; their mean is logged
_SAVE_SECONDS = 60.0  # between two checkpoints
_BETAS = (0.9, 0.98)
_EPSILON = 1e-6


class Pretrainer:
    """A model in pre-training.

    What a step reads and draws follows from the plan and its number alone, so a resumed run ends
    with the same weights, bit by bit.
    """

    def __init__(self, plan: Plan, device: str, model: ContinuedMaskedLM) -> None:
        self.plan = plan
        self.device = device
        self.model = model
        self.parameters = self.model.parameters
        weights = self.parameters.values()
        groups: list[dict[str, Any]] = [
            {"params": [each for each in weights if each.dim() > 1]},
            # biases and layer norms do not decay
            {"params": [each for each in weights if each.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=plan.learning_rate,
            betas=_BETAS,
            eps=_EPSILON,
            weight_decay=plan.weight_decay,
            fused=True,
        )
        self._sums = np.zeros(3)  # loss, right guesses, predictions since the last report

    def train(
        self, corpus: Corpus, state: Path, log: Path, advance: notes.Advance
    ) -> runs.Position:
        """Train to the end of the token budget, from the state on disk if there is one.

        ``state`` is written every minute and at the end; ``advance`` takes the tokens seen.
        """
        position = runs.Position()
        if state.exists():
            position = runs.load_state(state, self.parameters, self.optimizer)
        runs.truncate_log(log, position.step)
        advance(position.seen)
        reported = position
        saved = began = time.perf_counter()
        figures = batching.LateFigures(self._record)
        remaining = itertools.islice(steps(self.plan, corpus), position.step, None)
        # another thread prepares the next step's batch while this one computes
        for step, batch in prefetch(lambda step: batch_of_step(step, self.plan, corpus), remaining):
            for group in self.optimizer.param_groups:
                group["lr"] = self.plan.learning_rate_at(step.seen + step.tokens)
            figures.add(self.gradients(step, batch), step)
            self.apply_gradients()
            now = time.perf_counter()
            position = runs.Position(
                position.step + 1, position.seen + step.tokens, position.seconds + now - began
            )
            began = now
            if position.step % _LOG_EVERY == 0:
                figures.read()
                self._report(reported, position, log, advance)
                reported = position
                if now - saved > _SAVE_SECONDS:
                    saved = now
                    self.save(state, position)
                began = time.perf_counter()
        figures.read()
        self.save(state, position)
        return position

    def save(self, state: Path, position: runs.Position) -> None:
        runs.save_state(state, self.parameters, self.optimizer, position)

    def gradients(self, step: Step, batch: MaskedBatch) -> Tensor:
        """Put the gradients of a step in place.

        Return loss, right first guesses and predictions, (3,).
        """
        torch.manual_seed(self.plan.seed * PRIME + step.number)
        self.optimizer.zero_grad()
        try:
            loss, right = self.model.loss(*batch.tensors(self.device), dropout=step.dropout)
            loss.backward()  # type: ignore[no-untyped-call]
        except (MemoryError, RuntimeError) as error:
            if not errors.is_out_of_memory(error):
                raise
            raise errors.OutOfMemoryError(
                f"out of memory on {self.device}; give fewer tokens a step",
                parameter="batch_tokens",
            ) from None
        predictions = torch.full_like(loss, len(batch.gold), requires_grad=False)
        return torch.stack([loss.detach(), right.float(), predictions])

    def apply_gradients(self) -> None:
        """Clip the gradients and take the optimiser's step."""
        nn.utils.clip_grad_norm_(self.parameters.values(), _CLIP)
        self.optimizer.step()

    def _record(self, figures: np.ndarray, step: Step) -> None:
        """Add the figures of a step to the next report.

        A loss that is not a number ends the run.
        """
        loss, right, predictions = figures.tolist()
        if not math.isfinite(loss):
            raise PromptcliError(
                f"the loss at step {step.number + 1} is not a number; try a lower one",
                parameter="learning_rate",
            )
        self._sums += (loss * predictions, right, predictions)

    def _report(
        self, reported: runs.Position, position: runs.Position, log: Path, advance: notes.Advance
    ) -> None:
        """Log and show the means of the steps since the last report."""
        loss, right, predictions = self._sums.tolist()
        self._sums = np.zeros(3)
        seen = position.seen - reported.seen
        report = {
            "step": position.step,
            "seen": position.seen,
            "loss": loss / predictions,
            "accuracy": right / predictions,
            "learning_rate": self.plan.learning_rate_at(position.seen),
            "rate": seen / (position.seconds - reported.seconds),
            "seconds": position.seconds,
        }
        with log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(report) + "\n")
        advance(seen)
        notes.describe(advance, f"loss {report['loss']:.3f}  accuracy {report['accuracy']:.1%}")
