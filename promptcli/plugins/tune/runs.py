"""Trainings that change settings of one config, each a trial of Optuna under the name NAME.run-N.

The trials are in ``trials.sqlite`` in the folder of the runs until all have ended.
"""

import contextlib
import dataclasses
import itertools
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import NullPool

from promptcli.errors import NotFoundError, PromptcliError, UsageError, if_stopped
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.notes import note
from promptcli.plugins.tune.trials import FAILED, FINISHED, PRUNED, Range, Space, Trial, Tuned
from promptcli.settings import typed_settings
from promptcli.storage.runs import RunFolder, read_log
from promptcli.training import run
from promptcli.training.config import Setting, TrainConfig
from promptcli.training.processes import start_processes
from promptcli.training.trained import Trained
from promptcli.training.watching import DevScore, Watcher

_STATES = {
    TrialState.COMPLETE: FINISHED,
    TrialState.PRUNED: PRUNED,
    TrialState.FAIL: FAILED,
}


def train_all(config: TrainConfig, space: Space, count: int | None, keep_runs: bool) -> Tuned:
    """Train all that have not ended before, and save the best.

    ``count``: how many are drawn; None: every combination is trained.
    """
    name = str(config.name)
    registry = open_registry()
    folder = RunFolder(registry.run_folder(f"{name}.tune"))
    if config.resume and folder.has_begun:
        stored = folder.settings
        config = config.resumed(stored)
        for setting, written in stored["space"].items():
            space.setdefault(setting, Range.of(written) if isinstance(written, str) else written)
        count = count or stored["count"]
        keep_runs = keep_runs or stored["keep_runs"]
    elif config.resume:
        finished = run.find_finished(name)
        if finished is not None:
            return _ended(finished, config, [] if count else _combinations(space))
    if not space:
        what = f"no unfinished runs of {name!r}" if config.resume else "nothing is swept"
        raise UsageError(f"{what}; give settings to sweep, or seeds", parameter="sweep")
    return Runs(config, space, count, keep_runs, folder).train()


def _ended(entry: Entry, config: TrainConfig, wanted: list[dict[str, Setting]]) -> Tuned:
    """Return trainings that have ended, from the record of their model."""
    run.check_same(entry, config.settings)
    facts = entry.provenance["trained"]
    runs = facts.get("runs", [])
    by_changes = {repr(each["changes"]): each for each in runs}
    trials = []
    for row in facts.get("trials", runs):
        record = by_changes.get(repr(row["changes"]), {"curve": []})
        trials.append(Trial(row["changes"], row.get("state", FINISHED), record["curve"], record))
    if not runs or (wanted and wanted != [trial.changes for trial in trials]):
        raise UsageError(
            f"model {entry.name!r} is of other runs; give another, or force trains them again",
            parameter="name",
        )
    note(f"done: model {entry.name!r} is trained already; force trains it again")
    [chosen] = [number for number, trial in enumerate(trials) if trial.record.get("chosen")]
    return Tuned(Trained(entry), trials, chosen, "trials" in facts)


def _combinations(space: Space) -> list[dict[str, Setting]]:
    values: Any = space.values()
    return [dict(zip(space, each, strict=True)) for each in itertools.product(*values) if each]


class Runs:
    """All trainings of one space of settings."""

    def __init__(
        self,
        config: TrainConfig,
        space: Space,
        count: int | None,
        keep_runs: bool,
        folder: RunFolder,
    ) -> None:
        self.config = config
        self.space = space
        self.count = count
        self.keep_runs = keep_runs
        self.folder = folder
        self.name = str(config.name)
        self.registry = open_registry()

    def train(self) -> Tuned:
        """Train all that have not ended before, and save the best."""
        config = self.config
        for setting, values in self.space.items():
            for value in [values.low, values.high] if isinstance(values, Range) else values:
                self._with({setting: value}).check_settings()
        self.registry.check_free(self.name, force=config.force or config.resume)
        self.processes = start_processes(config.device, config.dtype)
        if self.processes.number > 1:
            raise UsageError("several settings are trained in one process; leave out the launcher")
        written = {
            setting: str(values) if isinstance(values, Range) else values
            for setting, values in self.space.items()
        }
        kept = {"space": written, "count": self.count, "keep_runs": self.keep_runs}
        facts = run.Run(config).facts
        single = self._folder_of(self.name)  # which is kept out, too
        with single.claim(f"the training of {self.name!r}", "give another name"):
            if config.force or not self.folder.has_begun:
                self._make_room()
            self.folder.open(
                {**facts, "space": written},
                resume=config.resume and self.folder.has_begun,
                name=Path(self.name),
                elsewhere="force starts it again, or give another name",
                force=config.force,
                settings={**config.document(), **kept},
            )
            with _study(self.folder.folder / "trials.sqlite") as self.study:
                return self._train_all()

    def _train_all(self) -> Tuned:
        count = self.count
        if count is None:
            self.study.pruner = optuna.pruners.NopPruner()
            combinations = _combinations(self.space)
            for changes in combinations:
                self.study.enqueue_trial(changes, skip_if_exists=True)
            count = len(combinations)
        try:
            while len(self._ended_trials()) < count:
                self._run_next(count)
                if not self.keep_runs:
                    self._forget_all_but(self._best())
        except UsageError:  # none can begin: the name is free for the next try
            if not self._ended_trials():
                self.folder.discard()
            raise
        trials = []
        for ended in self._ended_trials():
            kept = ended.user_attrs
            trials.append(Trial(state=_STATES[ended.state], **{"curve": [], "record": {}, **kept}))
        best = self._best()
        if best is None:
            raise PromptcliError(f"no trial of {self.name!r} finished: {trials[-1].reason}")
        return self._save(trials, best)

    def _run_next(self, count: int) -> None:
        """Run the trial that was interrupted, or a new one, to its end."""
        study = self.study
        interrupted = study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
        if interrupted:
            trial = optuna.Trial(study, interrupted[0]._trial_id)
            reported = interrupted[0].intermediate_values
        else:
            # a sampler for each trial, so that a resumed search draws what an unbroken one draws
            number = len(study.get_trials(deepcopy=False))
            seed = self.config.in_force(self.config.form).settings.seed
            study.sampler = TPESampler(seed=seed + number)
            trial = study.ask()
            reported = {}
        changes = {setting: _draw(trial, setting, each) for setting, each in self.space.items()}
        trial.set_user_attr("changes", changes)
        number = trial.number
        name = self._run_name(number)
        note(f"run {number + 1} of {count}: {', '.join(typed_settings(changes))}")
        try:
            trained = self._run(number, changes, _Pruning(trial, reported))
        except optuna.TrialPruned:
            log = self.registry.run_folder(name) / "log.jsonl"
            trial.set_user_attr("curve", list(map(dataclasses.asdict, read_log(log, DevScore))))
            study.tell(trial, state=TrialState.PRUNED)
            self._forget(name)
            note(f"run {number + 1} is below the median of the earlier ones: pruned")
        except (UsageError, NotFoundError):
            raise
        except PromptcliError as error:  # its loss is not a number, or memory does not hold it
            trial.set_user_attr("reason", str(error))
            study.tell(trial, state=TrialState.FAIL)
            self._forget(name)
            note(f"run {number + 1} failed: {error}")
        else:
            trial.set_user_attr("curve", trained.facts["curve"])
            trial.set_user_attr("record", trained.to_dict())
            study.tell(trial, trained.chosen_by)

    def _run(self, number: int, changes: Mapping[str, Setting], *watchers: Watcher) -> Trained:
        """Return a run, trained now unless it had ended before; one that was stopped goes on."""
        name = self._run_name(number)
        if name in self.registry.names():
            return Trained(self.registry.load(name))
        config = dataclasses.replace(
            self._with(changes),
            name=name,
            group=self.name,
            resume=self._folder_of(name).has_begun,
            force=False,
        )
        left = f"`promptcli tune --resume {self.name}` continues, force starts again"
        with if_stopped(left, instead=True):
            return run.train(config, self.processes, watchers)

    def _save(self, trials: list[Trial], chosen: int) -> Tuned:
        """Save the best run as the model, with all of them in its record, and forget the runs."""
        best = self._run(chosen, trials[chosen].changes)
        runs = []
        for number, trial in enumerate(trials):
            if trial.state == FINISHED:
                record = {"changes": trial.changes, "chosen": number == chosen, **trial.record}
                runs.append({**record, "curve": trial.curve})
        facts: dict[str, Any] = {**best.facts, "runs": runs}
        if self.count is not None:
            facts["trials"] = [trial.row() for trial in trials]
            states = [trial.state for trial in trials]
            told = (f"{states.count(state)} {state}" for state in (FINISHED, PRUNED, FAILED))
            note(f"{len(trials)} trials: {', '.join(told)}")
        provenance = {**best.entry.provenance, "trained": facts}
        entry = dataclasses.replace(best.entry, name=self.name, provenance=provenance)
        if not (self.config.force or self.config.resume) and self.name in self.registry.names():
            raise UsageError(
                f"model {self.name!r} appeared meanwhile; nothing is lost: resume replaces it"
            )
        self.registry.save(entry, force=True)
        if not self.keep_runs:
            self._forget_all_but(None)
        self.folder.discard()
        trained = dataclasses.replace(best, entry=entry)
        return Tuned(trained, trials, chosen, self.count is not None)

    def _ended_trials(self) -> list[FrozenTrial]:
        return [trial for trial in self.study.get_trials() if trial.state.is_finished()]

    def _best(self) -> int | None:
        """Return the number of the best finished trial, the earlier of equal ones."""
        values = {
            trial.number: trial.value or 0.0
            for trial in self._ended_trials()
            if trial.state == TrialState.COMPLETE
        }
        return max(values, key=values.__getitem__, default=None)

    def _with(self, changes: Mapping[str, Setting]) -> TrainConfig:
        return dataclasses.replace(self.config, settings={**self.config.settings, **changes})

    def _run_name(self, number: int) -> str:
        return f"{self.name}.run-{number + 1}"

    def _folder_of(self, name: str) -> RunFolder:
        return RunFolder(self.registry.run_folder(name))

    def _make_room(self) -> None:
        """Forget earlier runs that are begun again; refuse a user's own model with such a name."""
        for name in self._names_of_runs():
            if name in self.registry.names():
                facts = self.registry.card(name).provenance.get("trained", {})
                if not self.config.force or facts.get("group") != self.name:
                    raise UsageError(
                        f"model {name!r} has the name of a run of {self.name!r}; give another, or"
                        " remove the model",
                        parameter="name",
                    )
            if self.config.force:
                self._forget(name)

    def _names_of_runs(self) -> list[str]:
        begun = self.registry.run_folder(self.name).parent.glob("*")
        names = {*self.registry.names(), *(path.name for path in begun)}
        return sorted(name for name in names if name.startswith(f"{self.name}.run-"))

    def _forget_all_but(self, number: int | None) -> None:
        for name in self._names_of_runs():
            if number is None or name != self._run_name(number):
                self._forget(name)

    def _forget(self, name: str) -> None:
        self._folder_of(name).discard()
        if name in self.registry.names():
            self.registry.remove(name)


class _Pruning(Watcher):
    """Reports a trial's scores, and ends it if Optuna's pruner says so."""

    def __init__(self, trial: optuna.Trial, reported: Mapping[int, float]) -> None:
        self._trial = trial
        self._reported = reported  # before the search was resumed

    def on_score(self, score: DevScore) -> None:
        if score.step not in self._reported:
            self._trial.report(score.value, score.step)
        if self._trial.should_prune():
            raise optuna.TrialPruned


@contextlib.contextmanager
def _study(file: Path) -> Iterator[optuna.Study]:
    """Open the trials, new or from an earlier session."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # by a function, because a path may hold signs that mean something in a URL
    connect = {
        "creator": lambda: sqlite3.connect(file, check_same_thread=False),
        "poolclass": NullPool,
    }
    storage = optuna.storages.RDBStorage("sqlite://", engine_kwargs=connect)
    try:
        yield optuna.create_study(
            storage=storage, study_name="trials", direction="maximize", load_if_exists=True
        )
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _draw(trial: optuna.Trial, setting: str, values: Range | list[Any]) -> Any:
    """Return the value of a setting in a trial."""
    if not isinstance(values, Range):
        return trial.suggest_categorical(setting, values)
    if isinstance(values.low, int) and isinstance(values.high, int):
        return trial.suggest_int(setting, values.low, values.high, log=values.log)
    number = trial.suggest_float(setting, values.low, values.high, log=values.log)
    # four digits are as good as seventeen, and can be read and typed
    return min(max(float(f"{number:.4g}"), values.low), values.high)
