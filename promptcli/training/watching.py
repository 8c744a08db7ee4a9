"""What follows a training while it runs: trackers, and the search that may stop it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DevScore:
    """A score on the development set during training."""

    step: int  #: steps done
    loss: float | None  #: mean training loss since the last score; None at the start
    value: float  #: Spearman x 100
    best: bool  #: the best so far
    seconds: float  #: spent in steps
    rate: float | None  #: examples per second since the last score
    temperature: float | None = None  #: of the loss, if it learns


class Watcher:
    """Is told of a training's steps and scores, in order; what it raises ends the training."""

    def on_step(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the loss, the learning rate and the norm of the gradients of a step (from 1)."""

    def on_score(self, score: DevScore) -> None:
        """Take a score on the development set."""
