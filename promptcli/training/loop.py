"""The loop of training and pre-training: steps from a checkpoint to the end."""

import abc
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from promptcli.encoder.batching import LateFigures
from promptcli.encoder.streams import ahead
from promptcli.storage.runs import Position, load_state, save_state

Item = TypeVar("Item")
CLIP = 1.0  # largest global norm of the gradient


class Planned(NamedTuple, Generic[Item]):
    """A step to come."""

    item: Item  #: its rows, or its number
    size: int  #: examples or tokens
    rate: float  #: learning rate


class Loop(abc.ABC, Generic[Item]):
    """A model that learns, step by step.

    What a step reads and draws follows from the settings and its number alone, so a resumed run ends with the same
    weights, bit by bit.
    """

    parameters: Mapping[str, nn.Parameter]
    optimizer: torch.optim.Optimizer

    @abc.abstractmethod
    def planned(self, position: Position) -> Iterable[Planned[Item]]: ...

    @abc.abstractmethod
    def read(self, item: Item) -> Any:
        """Return the inputs of a step; called in another thread, a step ahead."""

    @abc.abstractmethod
    def compute(self, item: Item, inputs: Any) -> Tensor:
        """Put the gradients of a step in place; return its figures, still on the device."""

    @abc.abstractmethod
    def took(self, figures: Any, item: Item, rate: float) -> None:
        """Receive the figures of a step, a step or two later."""

    @abc.abstractmethod
    def pauses(self, step: int) -> bool: ...

    @abc.abstractmethod
    def pause(self, position: Position) -> bool:
        """Score or log; return whether this is a checkpoint."""

    def stopped(self) -> bool:
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
        for planned, inputs in ahead(lambda planned: self.read(planned.item), self.planned(position)):
            if self.stopped():
                break
            for group in self.optimizer.param_groups:
                group["lr"] = planned.rate
            figures.add(self.compute(planned.item, inputs), planned.item, planned.rate)
            self.move()
            now = time.perf_counter()
            position = Position(position.step + 1, position.seen + planned.size, position.seconds + now - began)
            began = now
            if self.pauses(position.step):
                figures.read()
                if self.pause(position):
                    self.save(state, position)
                began = time.perf_counter()
        figures.read()
        return position
