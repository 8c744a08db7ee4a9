"""Several runs of one method: every combination of a sweep, every seed; the best by the development set is kept."""

import dataclasses
import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.backbones.backbone import Backbone
from promptcli.errors import UsageError
from promptcli.registry.entries import Entry
from promptcli.storage.documents import shown
from promptcli.storage.files import write_text
from promptcli.storage.runs import RunFolder, read_log
from promptcli.training.processes import Processes
from promptcli.training.run import TrainingResult, TrainingRun, execute, open_run
from promptcli.training.training_loop import TrainingCallbacks

_FILE = "trials.jsonl"


@dataclass(frozen=True)
class Trial:
    """One run among several."""

    changes: dict[str, Any]  #: what differs from the others, the seed apart
    seed: int

    @property
    def key(self) -> str:
        """A name for its folder."""
        return "-".join([*(f"{name}={value}" for name, value in self.changes.items()), f"seed={self.seed}"])


#: Called before each trial with its run, all trials and its number from 1; returns who listens to it.
Begin = Callable[[TrainingRun, Sequence[Trial], int], TrainingCallbacks]


@dataclass(frozen=True)
class NearestWord:
    """A word of a soft template."""

    word: str
    nearest: list[str]  #: tokens whose embeddings have the highest cosine to its learned vector


@dataclass(frozen=True)
class TrialResult:
    """What came of a trial."""

    changes: dict[str, Any]
    seed: int
    steps: int
    best_step: int  #: whose numbers were kept
    seconds: float  #: in steps
    untrained: dict[str, float]  #: Spearman x 100 by task, the development set first, without anything learned
    values: dict[str, float]  #: the same, trained
    nearest_words: list[NearestWord]  #: of a soft template

    @property
    def chosen_by(self) -> float:
        """The figure on the development set."""
        return next(iter(self.values.values()))

    @property
    def better(self) -> bool:
        """Whether training helped on the development set."""
        return self.chosen_by > next(iter(self.untrained.values()))


@dataclass(frozen=True)
class TrialSummary:
    """One combination over its seeds, for one task: mean, standard deviation (n - 1; 0 for one), least, largest."""

    changes: dict[str, Any]
    task: str
    seeds: int
    mean: float
    std: float
    least: float
    largest: float


def plan_trials(sweep: Mapping[str, Sequence[Any]], seeds: Sequence[int]) -> list[Trial]:
    """Return every combination of the swept settings with every seed."""
    combinations = itertools.product(*sweep.values())
    return [Trial(dict(zip(sweep, values, strict=True)), seed) for values in combinations for seed in seeds]


def run_trials(
    run: TrainingRun,
    trials: Sequence[Trial],
    backbone: Backbone,
    load: Callable[[], Backbone],
    *,
    name: str,
    folder: Path,
    resume: bool,
    processes: Processes,
    save: Callable[[Entry], object],
    begin: Begin = lambda run, trials, number: TrainingCallbacks(),
) -> list[TrialResult]:
    """Run all trials that are not done yet; save the best by the development set whenever there is a new one.

    Args:
        run: With the settings that all share.
        trials: What to run.
        backbone: Fresh; for the first trial.
        load: Gives another one: a method may change its backbone.
        name: Of the entry.
        folder: Of the whole; each trial has one inside while it lasts.
        resume: Go on with what is in the folder.
        processes: Who takes part.
        save: Takes the best entry so far.
        begin: See ``Begin``.
    """
    shared = {**run.identity(backbone), "trials": [trial.key for trial in trials]}
    if processes.is_main:
        open_run(folder, shared, resume=resume)
    processes.wait()
    rows, fresh = _done(folder / _FILE, run, trials), True
    for number, trial in enumerate(trials, 1):
        if any((row.changes, row.seed) == (trial.changes, trial.seed) for row in rows):
            continue
        mine = dataclasses.replace(run, settings=run.settings.replace(**trial.changes, seed=trial.seed))
        inside = folder / trial.key
        backbone = backbone if fresh else load()
        fresh = False
        if processes.is_main:
            open_run(inside, mine.identity(backbone), resume=RunFolder(inside).begun)
        processes.wait()
        result = execute(
            mine, backbone, name=name, folder=inside, processes=processes, callbacks=begin(mine, trials, number)
        )
        row = _row(trial, result)
        if processes.is_main:
            if all(row.chosen_by > other.chosen_by for other in rows):
                save(result.entry)
            lines = [json.dumps(dataclasses.asdict(done)) + "\n" for done in [*rows, row]]
            write_text(folder / _FILE, "".join(lines))
            RunFolder(inside).remove()
        rows.append(row)
    return rows


def summarise(rows: Sequence[TrialResult]) -> list[TrialSummary]:
    """Return each combination's figures over its seeds, task after task."""
    groups: dict[str, list[TrialResult]] = {}
    for row in rows:
        groups.setdefault(json.dumps(row.changes), []).append(row)
    found = []
    for members in groups.values():
        for task in members[0].values:
            values = [row.values[task] for row in members]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            mean = statistics.fmean(values)
            found.append(TrialSummary(members[0].changes, task, len(values), mean, spread, min(values), max(values)))
    return found


def _done(path: Path, run: TrainingRun, trials: Sequence[Trial]) -> list[TrialResult]:
    """Return what came of the trials that are done, in order.

    Raises:
        UsageError: The file holds other trials than these, or figures of other tasks.
    """
    rows = read_log(path, TrialResult)
    tasks = list(dict.fromkeys(task.label for task in (run.development, *run.tests)))
    for row, trial in itertools.zip_longest(rows, trials[: len(rows)]):
        if trial is None or (row.changes, row.seed) != (trial.changes, trial.seed):
            raise UsageError(f"{path} holds a trial that this run does not have; delete {path.parent} and start anew")
        if not list(row.untrained) == list(row.values) == tasks:
            raise UsageError(
                f"{path} holds figures of {shown([*row.untrained, *row.values])}, this run scores {', '.join(tasks)};"
                f" delete {path.parent} and start anew"
            )
    return rows


def _row(trial: Trial, result: TrainingResult) -> TrialResult:
    trained = result.trained
    untrained, values = (
        {score.column: round(score.value, 4) for score in scores} for scores in (result.untrained, result.scores)
    )
    return TrialResult(
        trial.changes,
        trial.seed,
        trained.steps,
        trained.best.step,
        round(trained.seconds, 1),
        untrained,
        values,
        [NearestWord(**word) for word in result.nearest_words],
    )
