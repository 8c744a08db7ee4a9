"""Trackers of experiments, with accelerate. They get the settings, the loss, the learning rate, the
gradient norm, the speed and the development scores.
"""

from collections.abc import Callable, Mapping
from typing import Any

from accelerate import PartialState
from accelerate.tracking import (
    GeneralTracker,
    MLflowTracker,
    TensorBoardTracker,
    TrackioTracker,
    WandBTracker,
)

from promptcli import errors, notes
from promptcli.errors import UsageError
from promptcli.notes import note
from promptcli.settings import home_folder
from promptcli.training import watching
from promptcli.training.watching import Watcher

_PROJECT = "promptcli"  #: project name for trackers with projects


def _tensorboard(run: watching.WatchedRun) -> GeneralTracker:
    folder = home_folder() / "trackers"
    note(f"tensorboard reads the run in {folder / run.group}")
    name = run.group if run.name == run.group else f"{run.group}/{run.name}"
    # from step ``purge_step`` on, TensorBoard hides the data of an earlier run of that name
    return TensorBoardTracker(name, folder, purge_step=None if run.resumed else 0)


#: Name of a tracker, which is also that of its package -> the function that makes it for a run.
TRACKERS: dict[str, Callable[[watching.WatchedRun], GeneralTracker]] = {
    "tensorboard": _tensorboard,
    "wandb": lambda run: WandBTracker(_PROJECT, group=run.group, name=run.name),
    "mlflow": lambda run: MLflowTracker(_PROJECT, run_name=run.name, tags={"group": run.group}),
    "trackio": lambda run: TrackioTracker(_PROJECT, group=run.group, name=run.name),
}
_LOCAL = "tensorboard"  #: the tracker that never uses the network


class Tracker(Watcher):
    """A tracker of a run. If the tracker fails, a warning says so, and the training goes on without
    it.

    Raises:
        UsageError: The tracker is not installed, or ``offline`` forbids it. When a run begins:
            also if the credentials are missing.
    """

    def __init__(self, name: str) -> None:
        if errors.missing_libraries(name):
            raise UsageError(
                f"{name} is not installed here: pip install {name}", parameter="report_to"
            )
        if notes.is_offline() and name != _LOCAL:
            raise UsageError(
                f"{name} uses the network, which offline=True forbids; without it: {_LOCAL}",
                parameter="report_to",
            )
        self._name = name
        self._tracker: GeneralTracker | None = None  #: while a run lasts

    def begin(self, run: watching.WatchedRun, facts: Mapping[str, Any]) -> None:
        if self._name != _LOCAL:
            notes.warn(f"reporting loss, scores and settings to {self._name}")
        tracker = TRACKERS[self._name](run)
        PartialState()  # tells accelerate's trackers whether this is the first process
        try:
            tracker.start()
            self._tracker = tracker
            tracker.store_init_configuration(_plain(facts))
        except Exception as error:  # each tracker raises its own classes
            reason = errors.join_lines(f"{type(error).__name__}: {error}", 200)
            raise UsageError(
                f"{self._name} did not start: {reason}; log in to {self._name}, or leave it out",
                parameter="report_to",
            ) from None

    def on_step(self, step: int, figures: Mapping[str, float]) -> None:
        self._log({f"train/{name}": value for name, value in figures.items()}, step)

    def on_score(self, score: watching.DevScore) -> None:
        values = {"development/spearman": score.value}
        if score.rate is not None:
            values["train/examples_per_second"] = score.rate
        self._log(values, score.step)

    def end(self) -> None:
        self._call(lambda tracker: tracker.finish())
        self._tracker = None

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self._call(lambda tracker: tracker.log(dict(values), step=step))

    def _call(self, action: Callable[[GeneralTracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            action(self._tracker)
        except Exception as error:  # each tracker raises its own classes
            self._tracker = None
            reason = errors.join_lines(f"{type(error).__name__}: {error}", 200)
            notes.warn(f"{self._name} failed ({reason}); the training goes on without it")


def _plain(facts: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return facts as numbers and texts, which all trackers accept."""
    plain = {}
    for name, value in facts.items():
        if isinstance(value, bool | int | float | str):
            plain[name] = value
        elif value is not None:
            plain[name] = ", ".join(map(str, value))
    return plain
