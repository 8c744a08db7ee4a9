"""The training loop: contrastive steps, a look at the development set now and then, the best kept, all resumable."""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from safetensors.torch import load_file, save_file
from torch import Tensor

from promptcli.checkpoint import Position, load_state, save_state, truncate_log
from promptcli.data.examples import Examples
from promptcli.data.sts import STSTask
from promptcli.errors import PromptcliError, UsageError
from promptcli.evaluation import evaluate
from promptcli.files import atomic_path
from promptcli.methods.method import Settings
from promptcli.objectives import contrastive_loss
from promptcli.training.learner import Learner

_CLIP = 1.0
_PRIME = 1_000_003  # spreads seeds, so that no two runs share a step's dropout
_ORDER = 7  # what the generator of the data's order is told beside seed and epoch


@dataclass(frozen=True)
class Look:
    """A look at the development set.

    Attributes:
        step: Steps done.
        loss: Mean training loss since the last look; None at the start.
        value: Spearman x 100 on the development set.
        best: Whether it is the best so far.
        seconds: Time spent in steps.
        rate: Training sentences per second since the last look.
    """

    step: int
    loss: float | None
    value: float
    best: bool
    seconds: float
    rate: float | None


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
    precision: str = "no",
    report: Callable[[int, float], None] = lambda step, loss: None,
    look: Callable[[Look], None] = lambda look: None,
) -> Trained:
    """Train until the settings' end, from the state in ``folder`` where there is one.

    Args:
        learner: Freshly made.
        examples: What to train on.
        development: What the best numbers are chosen by, on the path that tests take.
        folder: Holds state, best numbers and log while the run lasts.
        precision: Of the products: ``no`` (float32) or ``bf16``.
        report: Told each step's number and loss.
        look: Told each look.

    Raises:
        UsageError: Too few examples, or a state of another run.
        PromptcliError: The loss is not a number.
    """
    settings, steps = learner.settings, steps_of(learner.settings, len(examples))
    accelerator = Accelerator(mixed_precision=precision, cpu=learner.backbone.device.type == "cpu")
    trainable = learner.trainable()
    optimizer = torch.optim.AdamW(
        trainable.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay, eps=1e-8
    )
    keeper = _Keeper(folder, learner, development, look)
    position = keeper.resume(trainable, optimizer)
    began = time.perf_counter()
    for number, columns in enumerate(batches(examples, settings.batch_size, settings.seed)):
        if number >= steps:
            break
        if number < position.step:
            continue
        set_seed(settings.seed * _PRIME + number)
        learner.train()
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 - number / steps)
        with accelerator.autocast():
            vectors = learner(columns)
        loss = contrastive_loss(*vectors, temperature=settings.temperature)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise PromptcliError(
                f"the loss at step {number + 1} is not a number; the best numbers so far are kept in {folder}: try a"
                " lower --learning-rate"
            )
        optimizer.zero_grad(set_to_none=True)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(trainable.values(), _CLIP)
        optimizer.step()
        seconds = position.seconds + time.perf_counter() - began
        began = time.perf_counter()
        position = Position(number + 1, position.seen + len(columns[0]), seconds)
        report(number + 1, value)
        keeper.add(value, len(columns[0]))
        if position.step % settings.eval_steps == 0 or position.step == steps:
            keeper.look(position)
            keeper.save(trainable, optimizer, position)
            began = time.perf_counter()
    return Trained(keeper.best(), keeper.looks, position.step, position.seen, position.seconds)


class _Keeper:
    """Looks at the development set, and keeps state, best numbers and log on the disk."""

    def __init__(self, folder: Path, learner: Learner, task: STSTask, told: Callable[[Look], None]) -> None:
        self._state, self._best, self._log = (
            folder / name for name in ("state.safetensors", "best.safetensors", "log.jsonl")
        )
        self._learner, self._task, self._told = learner, task, told
        self.looks: list[Look] = []
        self._clear(0.0)

    def _clear(self, seconds: float) -> None:
        self._losses: list[float] = []
        self._samples = 0
        self._since = seconds

    def resume(self, trainable: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> Position:
        """Return how far the run is; a fresh one begins with a look at the start."""
        if not self._state.is_file():
            self._log.unlink(missing_ok=True)
            self.look(Position())
            return Position()
        position = load_state(self._state, trainable, optimizer)
        truncate_log(self._log, position.step)
        self.looks = [Look(**json.loads(line)) for line in self._log.read_text(encoding="utf-8").splitlines()]
        self._clear(position.seconds)
        return position

    def add(self, loss: float, samples: int) -> None:
        """Count a step."""
        self._losses.append(loss)
        self._samples += samples

    def look(self, position: Position) -> None:
        """Score the learner; keep its numbers where they are the best so far (strictly: ties keep the earlier)."""
        self._learner.eval()
        value = evaluate([self._learner.encoder()], [self._task])[0].value
        if not math.isfinite(value):
            value = 0.0  # equal vectors for all sentences rank nothing
        best = all(value > look.value for look in self.looks)
        if best:
            with atomic_path(self._best) as temporary:
                tensors = self._learner.tensors()
                save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, temporary)
        elapsed = position.seconds - self._since
        made = Look(
            step=position.step,
            loss=float(np.mean(self._losses)) if self._losses else None,
            value=value,
            best=best,
            seconds=position.seconds,
            rate=self._samples / elapsed if elapsed > 0 else None,
        )
        self.looks.append(made)
        with self._log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(dataclasses.asdict(made)) + "\n")
        self._clear(position.seconds)
        self._told(made)

    def save(
        self, trainable: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, position: Position
    ) -> None:
        """Keep the whole state."""
        save_state(self._state, trainable, optimizer, position)

    def best(self) -> dict[str, Tensor]:
        """Return the best numbers."""
        return load_file(self._best)
