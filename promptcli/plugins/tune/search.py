"""A search over settings by optuna: each trial is a training with values drawn from ranges, and the
best one becomes a model.

A tree-structured Parzen estimator draws the values; a trial whose score is below the median of the
earlier ones at the same step is ended. The trials are in an SQLite file in the run's folder, so
that a search that was stopped is resumed.
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli import NotFoundError, PromptcliError, Range, Trained, UsageError
from promptcli.extending import SeveralRuns, Watcher, errors, keyword, note, watching

if TYPE_CHECKING:
    import optuna

Setting = str | int | float | bool | tuple[str, ...]  #: a value of a setting
#: Setting -> what a search draws from: a range, or values.
Space = Mapping[str, Range | Sequence[Any]]

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

    def on_score(self, score: watching.DevScore) -> None:
        if score.step not in self._reported:
            self._trial.report(score.value, score.step)
        if self._trial.should_prune():
            raise _PrunedError


def search_settings(runs: SeveralRuns, space: Space, count: int) -> SettingsSearch:
    """Train ``count`` trials, each as ``NAME.run-N``; the best one becomes the model NAME.

    Only the best model so far is kept. With ``resume`` the trials that ended are not run again.
    """
    errors.require("optuna", extra="trials")
    described = runs.check_space(space)
    seed = int(described["seed"])
    written = {setting: _space_document(values) for setting, values in space.items()}
    with runs.start(
        described, {"space": written}, kept={"count": count}, one_process=True
    ) as folder:
        with _study(folder / "trials.sqlite", runs.name) as study:
            try:
                while len(_ended(study)) < count:
                    _run_next(study, runs, space, seed)
                    runs.forget_others(_best(study))
            except UsageError:  # no trial can begin: the name is free for the next try
                if not _ended(study):
                    runs.discard()
                raise
            trials = [_trial_of(frozen) for frozen in _ended(study)]
            best = _best(study)
        if best is None:
            raise PromptcliError(f"no trial of {runs.name!r} finished: {trials[-1].reason}")
        trained = runs.run(best, trials[best].changes)  # its model
        runs.save(trained, **_record_of_all(trials, best))
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


def _space_document(values: "Range | Any") -> Any:
    return str(values) if isinstance(values, Range) else list(values)


@contextlib.contextmanager
def _study(file: Path, name: str) -> "Iterator[optuna.Study]":
    """Open the trials of a search, new or from an earlier session."""
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


def _run_next(study: "optuna.Study", runs: SeveralRuns, space: Space, seed: int) -> None:
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
    runs.note_settings(f"trial {trial.number + 1}", changes)
    try:
        trained = runs.run(trial.number, changes, [_Pruning(trial, reported)])
    except _PrunedError:
        trial.set_user_attr("curve", runs.curve(trial.number))
        study.tell(trial, state=TrialState.PRUNED)
        runs.forget(trial.number)
        note(f"trial {trial.number + 1} is below the median of the earlier ones: pruned")
    except (UsageError, NotFoundError):
        raise
    except PromptcliError as error:  # its loss is not a number, or memory does not hold it
        trial.set_user_attr("reason", str(error))
        study.tell(trial, state=TrialState.FAIL)
        runs.forget(trial.number)
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


def _record_of_all(trials: list[Trial], chosen: int) -> dict[str, Any]:
    """Return the summary of all trials for the record of the best one, JSON-ready."""
    runs = []
    for number, trial in enumerate(trials):
        if trial.state == FINISHED:
            record = {"changes": trial.changes, "chosen": number == chosen, **trial.record}
            runs.append({**record, "curve": trial.curve})
    counted = errors.counted(len(trials), "trial")
    note(f"{counted}: {len(runs)} finished, {_count_ended(trials)}")
    return {"runs": runs, "trials": [trial.to_dict() for trial in trials]}


def _count_ended(trials: list[Trial]) -> str:
    pruned = sum(trial.state == PRUNED for trial in trials)
    failed = sum(trial.state == FAILED for trial in trials)
    return f"{pruned} pruned, {failed} failed"
