"""The training loop: contrastive steps, a look at the development set now and then, the best kept, all resumable."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptcli.data.examples import Examples
from promptcli.data.sts import STSTask
from promptcli.errors import PromptcliError, UsageError
from promptcli.storage.training_state import Position
from promptcli.training.keeper import Keeper, Look
from promptcli.training.learner import Learner
from promptcli.training.methods.method import Settings
from promptcli.training.processes import Processes
from promptcli.training.step import Step

_CLIP = 1.0
_ORDER = 7  # what the generator of the data's order is told beside seed and epoch


@dataclass(frozen=True)
class Trained:
    """What a run ended with.

    Attributes:
        tensors: Of the best look, by name.
        looks: All looks, in order; the first is the start.
        steps: Steps done.
        samples: Examples seen.
        seconds: Time spent in steps.
    """

    tensors: dict[str, Tensor]
    looks: list[Look]
    steps: int
    samples: int
    seconds: float

    @property
    def best(self) -> Look:
        """The look whose numbers were kept."""
        return [look for look in self.looks if look.best][-1]


@dataclass(frozen=True)
class Told:
    """What a run tells while it goes on.

    Attributes:
        step: Told each step's number and loss.
        look: Told each look at the development set.
        note: Told one line where something was done otherwise than asked.
    """

    step: Callable[[int, float], None] = lambda step, loss: None
    look: Callable[[Look], None] = lambda look: None
    note: Callable[[str], None] = lambda message: None


def steps_of(settings: Settings, examples: int) -> int:
    """Return how many steps a run on that many examples takes.

    Raises:
        UsageError: Fewer examples than one batch.
    """
    if examples < settings.batch_size:
        raise UsageError(
            f"{examples} examples are less than one batch of {settings.batch_size}; give more, or --batch-size"
        )
    return max(1, round(settings.epochs * math.ceil(examples / settings.batch_size)))


def batches(examples: Examples, batch_size: int, seed: int) -> Iterator[list[list[str]]]:
    """Yield batches without end, epoch after epoch in a new order; an epoch's last one may be smaller.

    They follow from the seed alone, so that any step can be found again.
    """
    epoch = 0
    while True:
        order = np.random.default_rng([seed, _ORDER, epoch]).permutation(len(examples))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            yield [[column[row] for row in chosen] for column in examples.columns]
        epoch += 1


def train(
    learner: Learner,
    examples: Examples,
    development: STSTask,
    *,
    folder: Path,
    processes: Processes,
    told: Told = Told(),
) -> Trained:
    """Train until the settings' end, from the state in ``folder`` where there is one.

    Args:
        learner: Freshly made.
        examples: What to train on.
        development: What the best numbers are chosen by.
        folder: Holds state, best numbers and log while the run lasts.
        processes: Who takes part, and in which precision the products are.
        told: Listens.

    Raises:
        UsageError: Too few examples, or a state of another run.
        PromptcliError: The loss is not a number, or memory does not hold one sentence.
    """
    settings, steps = learner.settings, steps_of(learner.settings, len(examples))
    processes.check(len(examples), settings.batch_size)
    accelerator = processes.accelerator
    trainable = learner.trainable()
    optimizer = torch.optim.AdamW(
        trainable.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay, eps=1e-8
    )
    keeper = Keeper(folder, learner, development, processes, told.look)
    position = keeper.resume(trainable, optimizer)
    step = Step(learner, processes, told.note)
    began = time.perf_counter()
    for number, columns in enumerate(batches(examples, settings.batch_size, settings.seed)):
        if number >= steps:
            break
        if number < position.step:
            continue
        rate = settings.learning_rate * (1 - number / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = step.gradients(number, columns)
        if not math.isfinite(loss):
            raise PromptcliError(
                f"the loss at step {number + 1} is not a number; the best numbers so far are kept in {folder}: try a"
                " lower --learning-rate"
            )
        accelerator.clip_grad_norm_(trainable.values(), _CLIP)
        optimizer.step()
        seconds = position.seconds + time.perf_counter() - began
        began = time.perf_counter()
        position = Position(number + 1, position.seen + len(columns[0]), seconds)
        told.step(number + 1, loss)
        accelerator.log({"loss": loss, "learning_rate": rate}, step=number + 1)
        keeper.add(loss, len(columns[0]))
        if position.step % settings.eval_steps == 0 or position.step == steps:
            keeper.look(position)
            keeper.save(trainable, optimizer, position)
            accelerator.log({f"spearman/{development.label}": keeper.looks[-1].value}, step=position.step)
            began = time.perf_counter()
    return Trained(keeper.best(), keeper.looks, position.step, position.seen, position.seconds)
