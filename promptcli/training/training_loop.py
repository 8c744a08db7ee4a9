"""The training loop: steps, a development score now and then, the best kept, all resumable."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from promptcli.data.tasks import STSTask
from promptcli.data.training_examples import TrainingExamples
from promptcli.errors import PromptcliError
from promptcli.storage.runs import Position
from promptcli.training.adamw import OPTIMIZERS
from promptcli.training.checkpoint import Checkpointer, DevScore
from promptcli.training.epochs import batch_lengths, batches, steps_of
from promptcli.training.learner import Learner
from promptcli.training.methods.training_settings import TrainingSettings
from promptcli.training.processes import Processes
from promptcli.training.step import TrainingStep

_CLIP = 1.0


@dataclass(frozen=True)
class TrainedWeights:
    """What a run ended with."""

    tensors: dict[str, Tensor]  #: of the best development score, by name
    dev_scores: list[DevScore]  #: all of the run, in order; the first is the start
    #: Steps done, examples seen, and seconds spent in steps.
    steps: int
    samples: int
    seconds: float

    @property
    def best(self) -> DevScore:
        """The development score whose numbers were kept."""
        return [score for score in self.dev_scores if score.best][-1]


@dataclass(frozen=True)
class TrainingCallbacks:
    """What a run calls while it goes on."""

    step: Callable[[int, float], None] = lambda step, loss: None  #: with each step's number and loss
    dev_score: Callable[[DevScore], None] = lambda score: None  #: with each score on the development set
    note: Callable[[str], None] = lambda message: None  #: with one line where something was done otherwise than asked


def learning_rate(settings: TrainingSettings, step: int, steps: int) -> float:
    """Return the learning rate of step ``step`` (from 0) of ``steps``: a linear rise from 0, then linear decay to 0."""
    warm = min(settings.warmup_steps or math.ceil(settings.warmup * steps), steps)
    return settings.learning_rate * (step / warm if step < warm else 1 - (step - warm) / max(1, steps - warm))


def train(
    learner: Learner,
    examples: TrainingExamples,
    development: STSTask,
    *,
    folder: Path,
    processes: Processes,
    callbacks: TrainingCallbacks = TrainingCallbacks(),
) -> TrainedWeights:
    """Train until the settings' end, from the state in ``folder`` where there is one.

    Args:
        learner: Freshly made.
        examples: What to train on.
        development: What the best numbers are chosen by.
        folder: Holds state, best numbers and log while the run lasts.
        processes: Who takes part, and in which precision the products are.
        callbacks: Called while it goes on.

    Raises:
        UsageError: Too few examples, or a state of another run.
        PromptcliError: The loss is not a number, or memory does not hold one sentence.
    """
    settings, steps = learner.settings, steps_of(learner.settings, examples.sizes)
    processes.check(batch_lengths(settings, examples.sizes))
    accelerator = processes.accelerator
    trainable = learner.trainable()
    optimizer = OPTIMIZERS[settings.optimizer](trainable, settings.learning_rate, settings.weight_decay)
    checkpointer = Checkpointer(folder, learner, development, processes, callbacks.dev_score)
    position = checkpointer.resume(trainable, optimizer)
    step = TrainingStep(learner, processes, callbacks.note)
    began = time.perf_counter()
    for number, rows in enumerate(batches(settings, examples.sizes)):
        if number >= steps or checkpointer.stalled(settings.patience):
            break
        if number < position.step:
            continue
        rate = learning_rate(settings, number, steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        columns = [[column[row] for row in rows] for column in examples.columns]
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
        position = Position(number + 1, position.seen + len(rows), seconds)
        callbacks.step(number + 1, loss)
        accelerator.log({"loss": loss, "learning_rate": rate}, step=number + 1)
        checkpointer.add(loss, len(rows))
        last = position.step == steps and (settings.scored == "also-ends" or not checkpointer.dev_scores)
        if position.step % settings.eval_steps == 0 or last:
            checkpointer.evaluate(position)
            checkpointer.save(trainable, optimizer, position)
            accelerator.log({f"spearman/{development.label}": checkpointer.dev_scores[-1].value}, step=position.step)
            began = time.perf_counter()
    return TrainedWeights(checkpointer.best(), checkpointer.dev_scores, position.step, position.seen, position.seconds)
