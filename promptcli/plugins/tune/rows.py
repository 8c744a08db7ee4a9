"""What this plug-in adds to the table of trackers; accelerate is imported on use."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promptcli.extending import Watcher


@dataclass(frozen=True)
class TrackerRow:
    """A tracker of accelerate, by its name."""

    name: str

    def __call__(self) -> "Watcher":
        """Return the tracker, at work on nothing yet."""
        from promptcli.plugins.tune.trackers import Tracker

        return Tracker(self.name)


TENSORBOARD = TrackerRow("tensorboard")
WANDB = TrackerRow("wandb")
MLFLOW = TrackerRow("mlflow")
TRACKIO = TrackerRow("trackio")
