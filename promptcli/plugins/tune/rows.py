"""The command ``tune``, and trackers; accelerate is imported on use."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from promptcli.cli.command_line import Command

if TYPE_CHECKING:
    from promptcli.training.watching import Watcher


@dataclass(frozen=True)
class TrackerRow:
    """A tracker of accelerate, by its name."""

    name: str

    def __call__(self) -> "Watcher":
        """Return the tracker, not yet attached to a run."""
        from promptcli.plugins.tune.trackers import Tracker

        return Tracker(self.name)


TENSORBOARD = TrackerRow("tensorboard")
WANDB = TrackerRow("wandb")
MLFLOW = TrackerRow("mlflow")
TRACKIO = TrackerRow("trackio")
TUNE = Command(
    "tune",
    "promptcli.plugins.tune.command:tune_command",
    "Train with several settings or seeds, and keep the best.",
)
