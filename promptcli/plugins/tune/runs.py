"""Several trainings that vary the settings of one config; each training is a trial of Optuna.

Until all trials have ended, a folder keeps them in ``trials.sqlite``, and keeps the runs that may
still be needed in ``run-N``.
"""

import contextlib
import dataclasses
import itertools
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import NullPool

from promptcli.errors import NotFoundError, PromptcliError, UsageError, if_stopped, with_count
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.notes import note
from promptcli.settings import spell_settings
from promptcli.storage.runs import RunFolder, read_log
from promptcli.training import run
from promptcli.training.config import Setting, TrainConfig, TrainingInputs, read_inputs
from promptcli.training.run import Trained
from promptcli.training.step import Processes, start_processes
from promptcli.training.watching import DevScore, Watcher, make_trackers

FINISHED = "finished"
#: Setting -> an Optuna distribution: the values, or the range from which trials draw.
Space = dict[str, Any]
_STATES = {
    TrialState.COMPLETE: FINISHED,
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class Trial:
    """A training with varied settings, and its result."""

    changes: dict[str, Setting]  #: the varied settings
    state: str  #: ``finished``; ``pruned``: ended below the median; ``failed``: has no score
    curve: list[dict[str, Any]]  #: the development scores
    record: dict[str, Any]  #: the result of ``Trained.to_dict`` if finished, else empty
    reason: str = ""  #: why it failed

    @property
    def value(self) -> float | None:
        """The best score on the development set."""
        return max((score["value"] for score in self.curve), default=None)

    def row(self) -> dict[str, Any]:
        return {"changes": self.changes, "state": self.state, "value": self.value}


@dataclass(frozen=True)
class Tuned:
    """The best of several trainings, which becomes the model, and all trainings in their order."""

    best: Trained
    trials: list[Trial]
    chosen: int  #: number of the best trial, from 0
    drawn: bool  #: whether Optuna drew the settings


def train_all(config: TrainConfig, space: Space, count: int | None, keep_runs: bool) -> Tuned:
    """Train all unfinished trials, and save the best.

    ``count``: number of drawn trials. If it is None, every combination is trained.
    """
    name = str(config.name)
    registry = open_registry()
    folder = RunFolder(registry.run_folder(f"{name}.tune"))
    if config.resume and folder.has_begun:
        stored = folder.read_settings()
        config = config.resume_from(stored)
        for setting, distribution in stored["space"].items():
            space.setdefault(setting, json_to_distribution(distribution))
        count = count or stored["count"]
        keep_runs = keep_runs or stored["keep_runs"]
    elif config.resume:
        finished = None if config.force else run.find_finished(name)
        if finished is not None:
            return _read_finished(finished, config, [] if count else _combinations(space))
    if not space:
        problem = f"no unfinished runs of {name!r}" if config.resume else "nothing is swept"
        raise UsageError(f"{problem}; give sweep=SETTINGS or seeds=N")
    for setting, values in space.items():
        for value in getattr(values, "choices", None) or (values.low, values.high):
            changed = dataclasses.replace(config, settings={**config.settings, setting: value})
            changed.check_settings()
    processes = start_processes(config.device, config.dtype)
    if processes.world_size > 1:
        raise UsageError("several settings are trained in one process; leave out the launcher")
    inputs = read_inputs(config)
    registry.check_free(name, force=config.force or config.resume)
    run_folder = RunFolder(registry.run_folder(name))  # also claimed by a training of that name
    with run_folder.claim(f"the training of {name!r}", "give another name"):
        return Trials(inputs, processes, space, count, keep_runs, folder).train()


def _read_finished(
    entry: Entry, config: TrainConfig, combinations: list[dict[str, Setting]]
) -> Tuned:
    """Return the finished trainings in the record of their model; raise UsageError if they are not
    those of the ``combinations``, if there are any.
    """
    run.check_finished(entry, config.settings)
    facts = entry.provenance["trained"]
    runs = facts.get("runs", [])
    finished_runs = iter(runs)
    trials = []
    for row in facts.get("trials", runs):
        state = row.get("state", FINISHED)
        record = next(finished_runs) if state == FINISHED else {"curve": []}
        trials.append(Trial(row["changes"], state, record["curve"], record))
    changes = [trial.changes for trial in trials]
    if not runs or (combinations and combinations != changes):
        raise UsageError(
            f"model {entry.name!r} comes from other runs; give another name, or force=True trains"
            " the runs again",
            parameter="name",
        )
    [chosen] = [number for number, trial in enumerate(trials) if trial.record.get("chosen")]
    return Tuned(Trained(entry), trials, chosen, "trials" in facts)


def _combinations(space: Space) -> list[dict[str, Setting]]:
    """Return every combination of the values; none if a setting has a range."""
    choices = [getattr(distribution, "choices", ()) for distribution in space.values()]
    products = itertools.product(*choices)
    return [dict(zip(space, values, strict=True)) for values in products if values]


@dataclass(frozen=True)
class Trials:
    """All trainings of one space of settings."""

    inputs: TrainingInputs  #: of all trainings
    processes: Processes
    space: Space
    count: int | None  #: of the trials that are drawn; None: every combination is trained
    keep_runs: bool
    folder: RunFolder

    @property
    def config(self) -> TrainConfig:
        return self.inputs.config

    @property
    def name(self) -> str:
        return str(self.config.name)

    def train(self) -> Tuned:
        """Train all unfinished trials, and save the best."""
        config = self.config
        if (config.force and not config.resume) or not self.folder.has_begun:
            self._make_room()
        space = {name: distribution_to_json(values) for name, values in self.space.items()}
        search = {"space": space, "count": self.count, "keep_runs": self.keep_runs}
        self.folder.open(
            {**self.inputs.identify(), "space": space},
            resume=config.resume,
            name=Path(self.name),
            elsewhere="force=True to start over, or another name",
            force=config.force,
            settings={**config.document(), **search},
        )
        with _study(self.folder.folder / "trials.sqlite") as study:
            return self._train_all(study)

    def _make_room(self) -> None:
        """Remove the models of earlier runs that begin again; raise UsageError if another model has
        the name of a run that is kept.
        """
        registry = open_registry()
        for name in registry.names():
            if not name.startswith(f"{self.name}.run-"):
                continue
            facts = registry.load_manifest(name).provenance.get("trained", {})
            if self.config.force and facts.get("group") == self.name:
                registry.remove(name)
            elif self.keep_runs:
                raise UsageError(
                    f"model {name!r} has the name of a run of {self.name!r}; give another, or"
                    " remove the model",
                    parameter="name",
                )

    def _train_all(self, study: optuna.Study) -> Tuned:
        count = self.count
        if count is None:
            combinations = _combinations(self.space)
            for changes in combinations:
                study.enqueue_trial(changes, skip_if_exists=True)
            count = len(combinations)
        best: Trained | None = None
        try:
            while len(_ended_trials(study)) < count:
                number, trained = self._run_next(study, count)
                chosen = _best(study)
                if number == chosen:
                    best = trained
                for folder in self.folder.folder.glob("run-*"):
                    if chosen is None or folder != self._run_folder(chosen).folder:
                        RunFolder(folder).discard()
        except UsageError:  # no run can begin, so the name stays free for the next call
            if not _ended_trials(study):
                self.folder.discard()
            raise
        trials = []
        for trial in _ended_trials(study):
            facts = {"curve": [], "record": {}, **trial.user_attrs}
            trials.append(Trial(state=_STATES[trial.state], **facts))
        chosen = _best(study)
        if chosen is None:
            raise PromptcliError(f"no trial of {self.name!r} finished: {trials[-1].reason}")
        # a run that ended in an earlier call has its weights in its folder, and is only scored
        best = best or self._run(chosen, trials[chosen].changes)
        return self._save(trials, chosen, best)

    def _run_next(self, study: optuna.Study, count: int) -> tuple[int, Trained | None]:
        """Run the interrupted trial or a new trial to its end; return its number, and the trained
        model if it finished.
        """
        interrupted = study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
        if interrupted:
            trial = optuna.Trial(study, interrupted[0]._trial_id)
            reported = interrupted[0].intermediate_values
        else:
            # each trial has its own sampler, so that a resumed search draws the same as before
            seed = self.inputs.settings.seed + len(study.get_trials(deepcopy=False))
            study.sampler = TPESampler(seed=seed)
            trial = study.ask(self.space)
            reported = {}
        changes = {name: trial.params[name] for name in self.space}
        trial.set_user_attr("changes", changes)
        number = trial.number
        note(f"run {number + 1} of {count}: {', '.join(spell_settings(changes))}")
        watchers = [] if self.count is None else [_Pruning(trial, reported)]
        try:
            trained = self._run(number, changes, watchers)
        except optuna.TrialPruned:
            log = self._run_folder(number).folder / "log.jsonl"
            trial.set_user_attr("curve", list(map(dataclasses.asdict, read_log(log, DevScore))))
            study.tell(trial, state=TrialState.PRUNED)
            note(f"run {number + 1} is below the median of the earlier ones: pruned")
            return number, None
        except (UsageError, NotFoundError):
            raise
        except PromptcliError as error:  # the loss is not a number, or memory is too small
            trial.set_user_attr("reason", str(error))
            study.tell(trial, state=TrialState.FAIL)
            note(f"run {number + 1} failed: {error}")
            return number, None
        if self.keep_runs:
            open_registry().save(trained.entry, force=True)
        trial.set_user_attr("curve", trained.facts["curve"])
        trial.set_user_attr("record", trained.to_dict())
        study.tell(trial, trained.development_score)
        return number, trained

    def _run(
        self, number: int, changes: Mapping[str, Setting], watchers: Sequence[Watcher] = ()
    ) -> Trained:
        """Return the result of a run, which continues from its folder if it has begun."""
        folder = self._run_folder(number)
        config = dataclasses.replace(
            self.config,
            settings={**self.config.settings, **changes},
            name=f"{self.name}.run-{number + 1}",
            group=self.name,
            resume=folder.has_begun,
            force=False,
        )
        if folder.has_begun:
            config = config.resume_from(folder.read_settings())
        inputs = dataclasses.replace(self.inputs, config=config)
        watchers = [*make_trackers(config.report_to), *watchers]
        advice = f"`promptcli tune --resume {self.name}` continues the run, force=True starts over"
        with if_stopped(advice, instead=True):
            trained = run.train_in_folder(inputs, self.processes, watchers, folder.folder)
        run.warn_if_worse(trained)
        return trained

    def _save(self, trials: list[Trial], chosen: int, best: Trained) -> Tuned:
        """Save the best run as the model, with all runs in its record; delete the folder of the
        trials.
        """
        runs = []
        for number, trial in enumerate(trials):
            if trial.state == FINISHED:
                record = {"changes": trial.changes, "chosen": number == chosen, **trial.record}
                runs.append({**record, "curve": trial.curve})
        facts: dict[str, Any] = {**best.facts, "runs": runs}
        if self.count is not None:
            facts["trials"] = [trial.row() for trial in trials]
            states = [trial.state for trial in trials]
            counts = (f"{states.count(state)} {state}" for state in _STATES.values())
            note(f"{with_count(len(trials), 'trial')}: {', '.join(counts)}")
        provenance = {**best.entry.provenance, "trained": facts}
        entry = dataclasses.replace(best.entry, name=self.name, provenance=provenance)
        registry = open_registry()
        if not (self.config.force or self.config.resume) and self.name in registry.names():
            raise UsageError(
                f"model {self.name!r} was created during the training; the runs are kept:"
                " resume=True replaces that model"
            )
        registry.save(entry, force=True)
        self.folder.discard()
        trained = dataclasses.replace(best, entry=entry)
        return Tuned(trained, trials, chosen, self.count is not None)

    def _run_folder(self, number: int) -> RunFolder:
        return RunFolder(self.folder.folder / f"run-{number + 1}")


def _ended_trials(study: optuna.Study) -> list[FrozenTrial]:
    return [trial for trial in study.get_trials() if trial.state.is_finished()]


def _best(study: optuna.Study) -> int | None:
    """Return the number of the best finished trial; of equal trials, the first is the best."""
    values = {
        trial.number: trial.value or 0.0
        for trial in _ended_trials(study)
        if trial.state == TrialState.COMPLETE
    }
    return max(values, key=values.__getitem__, default=None)


class _Pruning(Watcher):
    """Reports the scores of a trial, and ends the trial if Optuna's pruner says so."""

    def __init__(self, trial: optuna.Trial, reported: Mapping[int, float]) -> None:
        self._trial = trial
        self._reported = reported  # the scores before the search was resumed

    def on_score(self, score: DevScore) -> None:
        if score.step not in self._reported:
            self._trial.report(score.value, score.step)
        if self._trial.should_prune():
            raise optuna.TrialPruned


@contextlib.contextmanager
def _study(file: Path) -> Iterator[optuna.Study]:
    """Open the trials, new ones or those of an earlier call."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # connects by a function, because some characters of a path have a meaning in a URL
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
