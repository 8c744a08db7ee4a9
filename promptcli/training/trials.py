"""A search over settings by optuna: each trial is a training with values drawn from ranges, and the
best one becomes a model.

A tree-structured Parzen estimator draws the values; a trial whose score is below the median of the
earlier ones at the same step is ended. The trials are in an SQLite file in the run's folder, so
that a search that was stopped is resumed.
"""

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.errors import (
    NotFoundError,
    PromptcliError,
    UsageError,
    counted,
    if_stopped,
    require,
)
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.models.registry import Registry
from promptcli.notes import keyword, note
from promptcli.settings import typed_settings
from promptcli.storage.runs import RunFolder, read_log
from promptcli.training.carry_out import carry_out, join_processes
from promptcli.training.description import describe
from promptcli.training.plan import TrainingPlan
from promptcli.training.processes import Processes
from promptcli.training.ranges import Range, Space
from promptcli.training.resuming import document_of
from promptcli.training.sweep import begin_again_hint, check_free, places, resumed_if_begun
from promptcli.training.train_arguments import Setting
from promptcli.training.trained import Trained
from promptcli.training.watching import DevScore, Watcher

if TYPE_CHECKING:
    import optuna

FINISHED = "finished"
PRUNED = "pruned"
FAILED = "failed"


@dataclass(frozen=True)
class Trial:
    """One training of a search."""

    changes: dict[str, Setting]  #: of the settings
    state: str  #: ``finished``; ``pruned``: ended below the median; ``failed``: no score
    curve: list[dict[str, Any]]  #: its development scores
    record: dict[str, Any]  #: of a finished one, what ``Trained.to_dict`` says
    reason: str = ""  #: why it failed

    @property
    def value(self) -> float | None:
        """The best score on the development set."""
        return max((score["value"] for score in self.curve), default=None)

    def to_dict(self) -> dict[str, Any]:
        return {"changes": self.changes, "state": self.state, "value": self.value}


@dataclass(frozen=True)
class SettingsSearch:
    """The best run of a search, and all its trials in order."""

    best: Trained
    trials: list[Trial]
    chosen: int  #: number of the best trial, from 0

    def records(self) -> list[dict[str, Any]]:
        """Return the settings and the curve of every trial that has one."""
        records = []
        for trial in self.trials:
            if trial.curve:
                records.append({"changes": trial.changes, "curve": trial.curve})
        return records


class _PrunedError(Exception):
    """Ends a training whose score is below the median."""


class _Pruning(Watcher):
    """Reports a trial's scores, and ends it if optuna's pruner says so."""

    def __init__(self, trial: "optuna.trial.Trial", reported: Mapping[int, float]) -> None:
        self._trial = trial
        self._reported = reported  # before the search was resumed

    def on_score(self, score: DevScore) -> None:
        if score.step not in self._reported:
            self._trial.report(score.value, score.step)
        if self._trial.should_prune():
            raise _PrunedError


def search_settings(plan: TrainingPlan, space: Space, count: int, name: str) -> SettingsSearch:
    """Train ``count`` trials, each as ``NAME.run-N``; the best one becomes the model NAME.

    Only the best model so far is kept. With ``resume`` the trials that ended are not run again.
    """
    require("optuna", extra="trials")
    job = plan.job
    registry = open_registry()
    described = check_space(plan, space)
    registry.check_free(name, force=job.force or job.resume)
    replaces = job.force or name in registry.names()
    watchers = job.make_watchers()
    processes = join_processes(job)
    if processes.number > 1:
        raise UsageError(
            f"a search trains in one process, not in {processes.number}; start it without a"
            " launcher"
        )
    folder = RunFolder(registry.run_folder(f"{name}.sweep"))
    with RunFolder(registry.run_folder(name)).claim(
        f"the training of {name!r}", f"give another {keyword('name')}"
    ):
        if job.force and not job.resume and folder.begun:
            _discard_trials(registry, name)
        elif not folder.begun:
            check_free(registry, _trial_models(registry, name), name)
        written = {setting: _space_document(values) for setting, values in space.items()}
        folder.open(
            {**described, **places(plan, described), "space": written},
            resume=job.resume and folder.begun,
            name=Path(name),
            elsewhere=begin_again_hint(),
            force=job.force,
            given={**document_of(plan), "count": count},
        )
        with _study(folder.folder / "trials.sqlite", name) as study:
            seed = int(described["seed"])
            try:
                while len(_ended(study)) < count:
                    _run_next(study, plan, space, name, seed, processes, watchers)
                    _keep_best_only(registry, study, name)
            except UsageError:  # no trial can begin: the name is free for the next try
                if not _ended(study):
                    folder.discard()
                raise
            trials = [_trial_of(frozen) for frozen in _ended(study)]
            best = _best(study)
        if best is None:
            raise PromptcliError(f"no trial of {name!r} finished: {trials[-1].reason}")
        if not replaces and name in registry.names():
            raise UsageError(
                f"model {name!r} appeared during the search, which is kept: {keyword('resume')}"
                " replaces that model"
            )
        trained = Trained(registry.load(_trial_name(name, best)))
        registry.save(_record_all(trained, trials, best, name), force=replaces)
        _discard_trials(registry, name)
        folder.discard()
    return SettingsSearch(trained, trials, best)


def search_of(best: Trained) -> SettingsSearch:
    """Return a search that has ended, from the record of its model."""
    facts = best.facts
    curves = {repr(run["changes"]): run["curve"] for run in facts.get("runs", [])}
    trials = []
    for row in facts.get("trials", []):
        curve = curves.get(repr(row["changes"]), [])
        trials.append(Trial(row["changes"], row["state"], curve, {}))
    if not trials:
        raise UsageError(
            f"model {best.entry.name!r} is not of a search; {keyword('force')} trains it again, or"
            f" give another {keyword('name')}"
        )
    chosen = next(run["changes"] for run in facts["runs"] if run["chosen"])
    return SettingsSearch(best, trials, [trial.changes for trial in trials].index(chosen))


def check_space(plan: TrainingPlan, space: Space) -> dict[str, Any]:
    """Refuse values that the settings do not take; return the description of the plan."""
    described = describe(plan)
    for setting, values in space.items():
        tried: Sequence[Any]
        if isinstance(values, Range):
            tried = [values.low, values.high]
            if setting in described and not _is_number(described[setting]):
                raise UsageError(f"{setting.replace('_', '-')} takes no range; give its values")
        else:
            tried = values
        for value in tried:
            describe(plan.with_changes({setting: value}))
    return described


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _space_document(values: "Range | Any") -> Any:
    return str(values) if isinstance(values, Range) else list(values)


@contextlib.contextmanager
def _study(file: Path, name: str) -> "Iterator[optuna.Study]":
    """Open the trials of a search, new or as they were left."""
    import optuna
    from sqlalchemy.pool import NullPool

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # by a function, because a path may hold signs that mean something in a URL
    storage = optuna.storages.RDBStorage(
        "sqlite://",
        engine_kwargs={
            "creator": lambda: sqlite3.connect(file, check_same_thread=False),
            "poolclass": NullPool,
        },
    )
    try:
        yield optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(),
            load_if_exists=True,
        )
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _run_next(
    study: "optuna.Study",
    plan: TrainingPlan,
    space: Space,
    name: str,
    seed: int,
    processes: Processes,
    watchers: Sequence[Watcher],
) -> None:
    """Run the trial that was interrupted, or a new one, to its end."""
    from optuna.samplers import TPESampler
    from optuna.trial import Trial as Drawn
    from optuna.trial import TrialState

    interrupted = study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
    if interrupted:
        trial = Drawn(study, interrupted[0]._trial_id)
        reported = interrupted[0].intermediate_values
    else:
        # a sampler for each trial, so that a resumed search draws what an unbroken one draws
        study.sampler = TPESampler(seed=seed + len(study.get_trials(deepcopy=False)))
        trial = study.ask()
        reported = {}
    changes = {setting: _draw(trial, setting, values) for setting, values in space.items()}
    trial.set_user_attr("changes", changes)
    note(f"trial {trial.number + 1}: {', '.join(typed_settings(changes))}")
    registry = open_registry()
    run_name = _trial_name(name, trial.number)
    run = RunFolder(registry.run_folder(run_name))
    try:
        if run_name in registry.names():  # it ended just before the search was stopped
            trained = Trained(registry.load(run_name))
        else:
            of_trial = resumed_if_begun(plan.of_trial(run_name, name, changes), registry)
            left = (
                f"`promptcli train --resume {name}` continues the search, {keyword('force')} starts"
                " it again"
            )
            with if_stopped(left, instead=True):
                trained = carry_out(of_trial, processes, [*watchers, _Pruning(trial, reported)])
    except _PrunedError:
        curve = read_log(run.folder / "log.jsonl", DevScore)
        trial.set_user_attr("curve", [dataclasses.asdict(score) for score in curve])
        study.tell(trial, state=TrialState.PRUNED)
        run.discard()
        note(f"trial {trial.number + 1} is below the median of the earlier ones: pruned")
    except (UsageError, NotFoundError):
        raise
    except PromptcliError as error:  # its loss is not a number, or memory does not hold it
        trial.set_user_attr("reason", str(error))
        study.tell(trial, state=TrialState.FAIL)
        run.discard()
        note(f"trial {trial.number + 1} failed: {error}")
    else:
        trial.set_user_attr("curve", trained.facts["curve"])
        trial.set_user_attr("record", trained.to_dict())
        study.tell(trial, trained.chosen_by)


def _draw(trial: "optuna.trial.Trial", setting: str, values: "Range | Any") -> Setting:
    """Return the value of a setting in a trial."""
    if not isinstance(values, Range):
        drawn: Setting = trial.suggest_categorical(setting, list(values))
        return drawn
    if isinstance(values.low, int) and isinstance(values.high, int):
        return trial.suggest_int(setting, values.low, values.high, log=values.log)
    number = trial.suggest_float(setting, values.low, values.high, log=values.log)
    # four digits are as good as seventeen, and can be read and typed
    return min(max(float(f"{number:.4g}"), values.low), values.high)


def _ended(study: "optuna.Study") -> "list[optuna.trial.FrozenTrial]":
    return [trial for trial in study.get_trials() if trial.state.is_finished()]


def _best(study: "optuna.Study") -> int | None:
    """Return the number of the best finished trial, the earlier of equal ones."""
    values: dict[int, float] = {}
    for trial in _ended(study):
        if "record" in trial.user_attrs and trial.value is not None:
            values[trial.number] = trial.value
    return max(values, key=values.__getitem__, default=None)


def _trial_of(frozen: "optuna.trial.FrozenTrial") -> Trial:
    kept = frozen.user_attrs
    states = {"COMPLETE": FINISHED, "PRUNED": PRUNED, "FAIL": FAILED}
    return Trial(
        kept["changes"],
        states[frozen.state.name],
        kept.get("curve", []),
        kept.get("record", {}),
        kept.get("reason", ""),
    )


def _trial_name(name: str, number: int) -> str:
    return f"{name}.run-{number + 1}"


def _trial_models(registry: Registry, name: str) -> list[str]:
    return [model for model in registry.names() if model.startswith(f"{name}.run-")]


def _keep_best_only(registry: Registry, study: "optuna.Study", name: str) -> None:
    best = _best(study)
    for model in _trial_models(registry, name):
        if best is None or model != _trial_name(name, best):
            registry.remove(model)


def _discard_trials(registry: Registry, name: str) -> None:
    """Forget the models and the unfinished runs of trials."""
    for model in _trial_models(registry, name):
        registry.remove(model)
    for folder in registry.run_folder(name).parent.glob(f"{name}.run-*"):
        RunFolder(folder).discard()


def _record_all(best: Trained, trials: list[Trial], chosen: int, name: str) -> Entry:
    """Return the entry of the best trial under its own name, with the record of all trials."""
    runs = []
    for number, trial in enumerate(trials):
        if trial.state == FINISHED:
            record = {"changes": trial.changes, "chosen": number == chosen, **trial.record}
            runs.append({**record, "curve": trial.curve})
    all_trials = [trial.to_dict() for trial in trials]
    facts = {**best.facts, "runs": runs, "trials": all_trials}
    note(f"{counted(len(trials), 'trial')}: {len(runs)} finished, {_count_ended(trials)}")
    return dataclasses.replace(
        best.entry, name=name, provenance={**best.entry.provenance, "trained": facts}
    )


def _count_ended(trials: list[Trial]) -> str:
    pruned = sum(trial.state == PRUNED for trial in trials)
    failed = sum(trial.state == FAILED for trial in trials)
    return f"{pruned} pruned, {failed} failed"
