"""The loop of training and pre-training: steps from a checkpoint to the end."""

import abc
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from promptcli.encoder.batching import LateFigures
from promptcli.encoder.streams import ahead
from promptcli.storage.runs import Position, load_state, save_state

Item = TypeVar("Item")
CLIP = 1.0  # largest global norm of the gradient


class Loop(abc.ABC, Generic[Item]):
    """A model that learns, step by step.

    What a step reads and draws follows from the settings and its number alone, so a resumed run ends with the same
    weights, bit by bit.
    """

    parameters: Mapping[str, nn.Parameter]
    optimizer: torch.optim.Optimizer

    @abc.abstractmethod
    def items(self, position: Position) -> Iterable[Item]:
        """Yield what each of the remaining steps is made of."""

    @abc.abstractmethod
    def read(self, item: Item) -> Any:
        """Return the inputs of a step; called in another thread, a step ahead."""

    @abc.abstractmethod
    def rate(self, item: Item) -> float:
        """Return the learning rate of a step."""

    @abc.abstractmethod
    def size(self, item: Item) -> int:
        """Return the number of examples or tokens of a step."""

    @abc.abstractmethod
    def compute(self, item: Item, inputs: Any) -> Tensor:
        """Put the gradients of a step in place; return its figures, still on the device."""

    @abc.abstractmethod
    def took(self, figures: np.ndarray, item: Item) -> None:
        """Receive the figures of a step, a step or two later."""

    @abc.abstractmethod
    def pauses(self, step: int) -> bool:
        """Return whether to pause after a step."""

    @abc.abstractmethod
    def pause(self, position: Position) -> bool:
        """Score or log; return whether this is a checkpoint."""

    def stopped(self) -> bool:
        """Return whether the run ends early."""
        return False

    def move(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters.values(), CLIP)
        self.optimizer.step()

    def load(self, state: Path) -> Position:
        return load_state(state, dict(self.parameters), self.optimizer)

    def save(self, state: Path, position: Position) -> None:
        save_state(state, dict(self.parameters), self.optimizer, position)

    def run(self, position: Position, state: Path) -> Position:
        figures = LateFigures(self.took)
        began = time.perf_counter()
        for item, inputs in ahead(self.read, self.items(position)):
            if self.stopped():
                break
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(item)
            figures.add(self.compute(item, inputs), item)
            self.move()
            now = time.perf_counter()
            position = Position(position.step + 1, position.seen + self.size(item), position.seconds + now - began)
            began = now
            if self.pauses(position.step):
                figures.read()
                if self.pause(position):
                    self.save(state, position)
                began = time.perf_counter()
        figures.read()
        return position
