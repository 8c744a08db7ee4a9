"""Scores on the development set, and what is kept on the disk while a run lasts: state, best numbers, log."""

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor, nn, optim

from promptcli.data.tasks import STSTask
from promptcli.errors import UsageError
from promptcli.evaluation.evaluator import spearman_on
from promptcli.storage.files import atomic_path
from promptcli.storage.runs import Position, load_state, log_until, save_state, truncate_log
from promptcli.storage.tensors import load_tensors, save_tensors
from promptcli.training.learner import Learner
from promptcli.training.processes import Processes


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


class Checkpointer:
    """Scores, and keeps state, best numbers and log; only the main process writes."""

    def __init__(
        self, folder: Path, learner: Learner, task: STSTask, processes: Processes, report: Callable[[DevScore], None]
    ) -> None:
        self._state, self._best, self._log = (
            folder / name for name in ("state.safetensors", "best.safetensors", "log.jsonl")
        )
        self._mend = f"delete {folder} and start anew"
        self._learner, self._task, self._report = learner, task, report
        self._processes = processes
        self.dev_scores: list[DevScore] = []  #: all of the run, in order; the first is the start
        self._clear(0.0)

    def _clear(self, seconds: float) -> None:
        self._losses: list[float] = []
        self._samples = 0
        self._since = seconds

    def resume(self, trainable: dict[str, nn.Parameter], optimizer: optim.Optimizer) -> Position:
        """Return how far the run is; a fresh one begins with the score of the start."""
        begun = self._state.is_file()
        self._processes.wait()  # before the main process writes anything
        if not begun:
            if self._processes.is_main:
                self._log.unlink(missing_ok=True)
            if self._learner.settings.scored == "also-ends":
                self.evaluate(Position())
            return Position()
        position = load_state(self._state, trainable, optimizer)
        kept = log_until(self._log, position.step, DevScore)
        self.dev_scores = [score for _, score in kept]
        if not any(score.best for score in self.dev_scores):
            raise UsageError(f"{self._log} holds no best score; {self._mend}")
        self._processes.wait()  # until all have read it
        if self._processes.is_main:
            truncate_log(self._log, kept)
        self._clear(position.seconds)
        return position

    def stalled(self, patience: int) -> bool:
        """Return whether the last ``patience`` scores are none the best so far; never where it is 0."""
        return 0 < patience < len(self.dev_scores) and not any(score.best for score in self.dev_scores[-patience:])

    def add(self, loss: float, samples: int) -> None:
        """Count a step."""
        self._losses.append(loss)
        self._samples += samples

    def evaluate(self, position: Position) -> None:
        """Score the learner; keep its numbers where they are the best so far (strictly: ties keep the earlier)."""
        self._learner.eval()
        value = spearman_on(self._learner.encoder(selecting=True), self._task)
        if not math.isfinite(value):
            value = 0.0  # equal vectors for all sentences rank nothing
        best = all(value > score.value for score in self.dev_scores)
        if best and self._processes.is_main:
            with atomic_path(self._best) as temporary:
                save_tensors(self._learner.tensors(), temporary)
        elapsed = position.seconds - self._since
        made = DevScore(
            step=position.step,
            loss=float(np.mean(self._losses)) if self._losses else None,
            value=value,
            best=best,
            seconds=position.seconds,
            rate=self._samples / elapsed if elapsed > 0 else None,
            noise=abs(value) / 100 < 2 / math.sqrt(len(self._task.pairs())),
        )
        self.dev_scores.append(made)
        if self._processes.is_main:
            with self._log.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(dataclasses.asdict(made)) + "\n")
        self._clear(position.seconds)
        self._report(made)

    def save(self, trainable: dict[str, nn.Parameter], optimizer: optim.Optimizer, position: Position) -> None:
        """Keep the whole state."""
        if self._processes.is_main:
            save_state(self._state, trainable, optimizer, position)

    def best(self) -> dict[str, Tensor]:
        """Return the best numbers.

        Raises:
            UsageError: Their file is damaged, or of another model.
        """
        self._processes.wait()
        found = load_tensors(self._best, mend=self._mend, error=UsageError)
        shapes, wanted = ({name: one.shape for name, one in own.items()} for own in (found, self._learner.tensors()))
        if shapes != wanted:
            raise UsageError(f"{self._best} holds the numbers of another model; {self._mend}")
        return found
