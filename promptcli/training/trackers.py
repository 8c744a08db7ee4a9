"""Trackers of experiments, by accelerate: loss, learning rate, gradient norm, speed, development
score and settings.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.tracking import (
    GeneralTracker,
    MLflowTracker,
    TensorBoardTracker,
    TrackioTracker,
    WandBTracker,
)

from promptcli.errors import UsageError, look_up, missing_libraries, one_line
from promptcli.notes import is_offline, keyword, note, warn
from promptcli.training.watching import DevScore, Watcher

_PROJECT = "promptcli"  #: of trackers that put runs into projects


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers name it: seeds and other trials of a training are runs of one group."""

    group: str  #: name of the model
    name: str
    folder: Path  #: of trackers that write files
    begins_at: int = 0  #: steps done before, if it is resumed


@dataclass(frozen=True)
class TrackerKind:
    """A row of ``TRACKERS``."""

    package: str  #: that pip installs
    make: Callable[[TrackedRun], GeneralTracker]
    only_files: bool = False  #: it never uses the network


def _tensorboard(run: TrackedRun) -> GeneralTracker:
    note(f"tensorboard reads the run in {run.folder / run.group}")
    place = run.group
    if run.name != run.group:
        place = f"{run.group}/{run.name}"
    # TensorBoard hides what the folder has from this step on: an earlier run of that name, or what
    # a stopped run logged after its last checkpoint
    first = 0
    if run.begins_at:
        first = run.begins_at + 1
    return TensorBoardTracker(place, run.folder, purge_step=first)


def _wandb(run: TrackedRun) -> GeneralTracker:
    return WandBTracker(_PROJECT, group=run.group, name=run.name)


def _mlflow(run: TrackedRun) -> GeneralTracker:
    return MLflowTracker(_PROJECT, run_name=run.name, tags={"group": run.group})


def _trackio(run: TrackedRun) -> GeneralTracker:
    return TrackioTracker(_PROJECT, group=run.group, name=run.name)


#: Name of a tracker -> how it is started.
TRACKERS = {
    "tensorboard": TrackerKind("tensorboard", _tensorboard, only_files=True),
    "wandb": TrackerKind("wandb", _wandb),
    "mlflow": TrackerKind("mlflow", _mlflow),
    "trackio": TrackerKind("trackio", _trackio),
}


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are unknown, not installed, or forbidden by ``offline``."""
    for name in names:
        kind = look_up("tracker", name, TRACKERS)
        if missing_libraries(kind.package):
            raise UsageError(
                f"{keyword('report_to')} {name} needs {kind.package}, not installed here: pip"
                f" install {kind.package}"
            )
        if is_offline() and not kind.only_files:
            local = [row for row, of_row in TRACKERS.items() if of_row.only_files]
            raise UsageError(
                f"{keyword('report_to')} {name} uses the network, which {keyword('offline')}"
                f" forbids; without it: {', '.join(local)}"
            )


@contextlib.contextmanager
def started_trackers(
    names: Sequence[str], run: TrackedRun, settings: Mapping[str, Any]
) -> Iterator["Trackers"]:
    """Yield the trackers of a run, which are told its settings; they are finished afterwards."""
    trackers = Trackers({})
    try:
        for name in dict.fromkeys(names):
            trackers.start(name, run, settings)
        yield trackers
    finally:
        trackers.finish()


class Trackers(Watcher):
    """Trackers at work on a run. One that fails is left out, with a warning: training goes on."""

    def __init__(self, at_work: dict[str, GeneralTracker]) -> None:
        self._at_work = at_work

    def start(self, name: str, run: TrackedRun, settings: Mapping[str, Any]) -> None:
        """Start a tracker; one that has no credentials is refused."""
        kind = TRACKERS[name]
        if not kind.only_files:
            warn(f"reporting loss, scores and settings to {name}")
        tracker = kind.make(run)
        try:
            tracker.start()
            self._at_work[name] = tracker
            tracker.store_init_configuration(_plain(settings))
        except Exception as error:  # each tracker raises its own classes
            reason = one_line(f"{type(error).__name__}: {error}", 200)
            raise UsageError(
                f"{keyword('report_to')} {name} did not start: {reason}; log in to {name}, or leave"
                " it out"
            ) from None

    def on_step(self, step: int, figures: Mapping[str, float]) -> None:
        self._log({f"train/{name}": value for name, value in figures.items()}, step)

    def on_score(self, score: DevScore) -> None:
        values = {"development/spearman": score.value}
        if score.rate is not None:
            values["train/examples_per_second"] = score.rate
        self._log(values, score.step)

    def finish(self) -> None:
        for name in list(self._at_work):
            self._call(name, lambda tracker: tracker.finish())

    def _log(self, values: Mapping[str, float], step: int) -> None:
        for name in list(self._at_work):
            self._call(name, lambda tracker: tracker.log(dict(values), step=step))

    def _call(self, name: str, action: Callable[[GeneralTracker], None]) -> None:
        try:
            action(self._at_work[name])
        except Exception as error:  # each tracker raises its own classes
            del self._at_work[name]
            reason = one_line(f"{type(error).__name__}: {error}", 200)
            warn(f"{name} failed ({reason}); the training goes on without it")


def _plain(settings: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return settings as trackers take them: numbers and texts."""
    plain = {}
    for name, value in settings.items():
        if value is None:
            continue
        if not isinstance(value, bool | int | float | str):
            value = ", ".join(map(str, value))
        plain[name] = value
    return plain
