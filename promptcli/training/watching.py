"""Watchers of a running training: trackers, and the search that may stop it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from promptcli.errors import look_up
from promptcli.extensions import Table


@dataclass(frozen=True)
class DevScore:
    """A score on the development set during training."""

    step: int  #: steps done
    loss: float | None  #: mean training loss since the last score; None at the start
    value: float  #: Spearman x 100; of queries, nDCG@10 x 100
    best: bool  #: the best so far
    seconds: float  #: time spent in steps
    rate: float | None  #: examples per second since the last score
    #: learned scalars of the loss, e.g. the temperature
    learned: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class WatchedRun:
    """The names of a run for watchers; the runs of one search share a group."""

    group: str  #: name of the model
    name: str
    resumed: bool = False


class Watcher:
    """Receives the beginning, the steps, the scores and the end of a training, in order.

    An exception ends the training. If several processes train together, only the main process
    reports the beginning and the scores.
    """

    def begin(self, run: WatchedRun, facts: Mapping[str, Any]) -> None:
        """Take the names of the run, and its method, settings and data."""

    def on_step(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the loss, the learning rate and the norm of the gradients of a step (from 1)."""

    def on_score(self, score: DevScore) -> None:
        """Take a score on the development set."""

    def end(self) -> None:
        """Take the end of a run that has begun, however it ended."""


#: Name of a tracker -> the function that makes one, or raises a ``UsageError`` if it cannot.
TRACKERS: Table[Callable[[], Watcher]] = Table("trackers", {})


def make_trackers(names: Sequence[str]) -> list[Watcher]:
    """Return the trackers that ``report_to`` names, each once.

    Raises:
        UsageError: A tracker is unknown, not installed, or forbidden by ``offline``.
    """
    return [look_up("tracker", name, TRACKERS)() for name in dict.fromkeys(names)]
