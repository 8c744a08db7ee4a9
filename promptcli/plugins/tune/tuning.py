"""Trainings with other settings each, by Optuna: every combination, or trials that it draws.

The trials are in ``trials.sqlite`` in the folder of the runs until all have ended.
"""

import contextlib
import dataclasses
import itertools
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.errors import NotFoundError, PromptcliError, UsageError, if_stopped, require
from promptcli.notes import note, without_network
from promptcli.settings import typed_settings

if TYPE_CHECKING:
    import optuna

    from promptcli.data.sources import TrainingData
    from promptcli.training.config import Setting, TrainConfig
    from promptcli.training.trained import Trained

FINISHED = "finished"
PRUNED = "pruned"
FAILED = "failed"


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``; with ``log`` every order of magnitude is as likely.

    Example:
        >>> Range.of("1e-5..1e-4:log")
        Range(low=1e-05, high=0.0001, log=True)
    """

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, written: str) -> "Range":
        """Return the range that is written as ``LOW..HIGH`` or ``LOW..HIGH:log``."""
        ends, _, scale = written.partition(":")
        low, _, high = ends.partition("..")
        try:
            drawn = cls(_number(low), _number(high), {"": False, "log": True}[scale])
        except (ValueError, KeyError):
            drawn = cls(0, 0)
        if drawn.low >= drawn.high or (drawn.log and drawn.low <= 0):
            raise UsageError(
                f"range {written!r} is not allowed; give LOW..HIGH or LOW..HIGH:log with LOW below"
                " HIGH, and above 0 for a logarithm, e.g. 1e-5..1e-4:log",
                parameter="sweep",
            )
        return drawn

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}" + (":log" if self.log else "")


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


#: Setting -> what is tried: a list of values, or a range that trials draw from.
Space = dict[str, Range | list[Any]]


@dataclass(frozen=True)
class Trial:
    """One of the trainings."""

    changes: dict[str, "Setting"]  #: of the settings
    state: str  #: ``finished``; ``pruned``: ended below the median; ``failed``: no score
    curve: list[dict[str, Any]]  #: its development scores
    record: dict[str, Any]  #: of a finished one, what ``Trained.to_dict`` says
    reason: str = ""  #: why it failed

    @property
    def value(self) -> float | None:
        """The best score on the development set."""
        return max((score["value"] for score in self.curve), default=None)


@dataclass(frozen=True)
class Tuned:
    """The best of several trainings, which the model is, and all of them in order."""

    best: "Trained"
    trials: list[Trial]
    chosen: int  #: number of the best one, from 0
    drawn: bool  #: whether Optuna drew the settings


def tune(
    method: str = "",
    data: "TrainingData | None" = None,
    *,
    name: str,
    sweep: "Mapping[str, str | Sequence[Setting]] | None" = None,
    seeds: int | None = None,
    trials: int | None = None,
    keep_runs: bool = False,
    resume: bool = False,
    force: bool = False,
    offline: bool = False,
    **arguments: Any,
) -> Tuned:
    """Train with several settings or seeds; the best on the development pairs becomes the model.

    Without ``trials`` every combination of the values and seeds is trained. With it a
    tree-structured Parzen estimator draws that many, and one that is below the median of the
    earlier ones at the same step is ended.

    Args:
        method: As of ``train``.
        data: As of ``train``.
        name: Name of the model, whose record holds all trainings.
        sweep: Setting -> a list of values, or a range for ``trials``: ``"1e-5..1e-4:log"``.
        seeds: Train with the seeds 0, 1, ... of that number.
        trials: How many trainings are drawn.
        keep_runs: Keep every training as a model of its own, NAME.run-N, not the best alone.
        resume: Go on with those of that name that were stopped; ``trials`` may then be more.
        force: Replace a model of that name.
        offline: Never use the network.
        arguments: The other arguments and the settings of ``train``.

    Returns:
        The best training and all of them.

    Raises:
        UsageError: As ``train``; a setting that is not swept; several processes.
        PromptcliError: No training has a score.

    Example:
        >>> import promptcli as pc
        >>> found = pc.tune("simcse", seeds=2, name="mine")  # doctest: +SKIP
        >>> found.best.chosen_by, found.trials[0].changes  # doctest: +SKIP
    """
    require("optuna", extra="trials")
    from promptcli.training.config import TrainConfig

    fields = {item.name for item in dataclasses.fields(TrainConfig)}
    given = {field: arguments.pop(field) for field in fields & arguments.keys()}
    for field in {"tests", "report_to"} & given.keys():
        given[field] = tuple(given[field])
    with without_network(offline):
        config = TrainConfig(
            method=method,
            data=data,
            name=name,
            resume=resume,
            force=force,
            settings=arguments,
            **given,
        )
        return Runs(config, _space(sweep or {}, seeds, trials), trials, keep_runs).train()


def _space(
    sweep: "Mapping[str, str | Sequence[Setting]]", seeds: int | None, trials: int | None
) -> Space:
    space: Space = {}
    for setting, values in sweep.items():
        if isinstance(values, str):
            if trials is None:
                raise UsageError(
                    f"{setting} is a range; trials says how many are drawn", parameter="sweep"
                )
            space[setting] = Range.of(values)
        else:
            space[setting] = list(dict.fromkeys(values))
    if trials is not None and (seeds or not space):
        raise UsageError("draws from what is swept, without seeds", parameter="trials")
    if seeds:
        space["seed"] = list(range(seeds))
    return space


class Runs:
    """Trainings that change settings of one config, each under the name NAME.run-N."""

    def __init__(
        self, config: "TrainConfig", space: Space, count: int | None, keep_runs: bool
    ) -> None:
        from promptcli.models.loading import open_registry
        from promptcli.storage.runs import RunFolder

        self.name = str(config.name)
        self.registry = open_registry()
        self.folder = RunFolder(self.registry.run_folder(f"{self.name}.tune"))
        self.is_done = False
        if config.resume and self.folder.has_begun:
            stored = self.folder.settings
            config = config.resumed(stored)
            for setting, written in stored["space"].items():
                space.setdefault(
                    setting, Range.of(written) if isinstance(written, str) else written
                )
            count = count or stored["count"]
            keep_runs = keep_runs or stored["keep_runs"]
        elif config.resume:
            self.is_done = self.name in self.registry.names()
        if not (space or self.is_done):
            what = f"no unfinished runs of {self.name!r}" if config.resume else "nothing is swept"
            raise UsageError(f"{what}; give settings to sweep, or seeds", parameter="sweep")
        self.config = config
        self.space = space
        self.count = count
        self.keep_runs = keep_runs

    def train(self) -> Tuned:
        """Train all that have not ended before, and save the best."""
        from promptcli.training.processes import start_processes
        from promptcli.training.run import Run, check_same, find_finished
        from promptcli.training.trained import Trained

        config = self.config
        if self.is_done:
            entry = find_finished(self.name)
            assert entry is not None
            check_same(entry, config.settings)
            ended = _ended(Trained(entry))
            tried = [trial.changes for trial in ended.trials]
            if self.space and self.count is None and tried != self._combinations():
                raise UsageError(
                    f"model {self.name!r} is of {len(tried)} other runs; give another, or force"
                    " trains them again",
                    parameter="name",
                )
            return ended
        for setting, values in self.space.items():
            ends = [values.low, values.high] if isinstance(values, Range) else values
            for value in ends:
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
        facts = Run(config).facts
        single = type(self.folder)(self.registry.run_folder(self.name))  # which is kept out, too
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
            with _study(
                self.folder.folder / "trials.sqlite", drawn=self.count is not None
            ) as study:
                return self._train_all(study)

    def _train_all(self, study: "optuna.Study") -> Tuned:
        count = self.count
        if count is None:
            combinations = self._combinations()
            for changes in combinations:
                study.enqueue_trial(changes, skip_if_exists=True)
            count = len(combinations)
        try:
            while len(_ended_trials(study)) < count:
                self._run_next(study, count)
                if not self.keep_runs:
                    self._forget_all_but(_best(study))
        except UsageError:  # none can begin: the name is free for the next try
            if not _ended_trials(study):
                self.folder.discard()
            raise
        trials = [_trial_of(frozen) for frozen in _ended_trials(study)]
        best = _best(study)
        if best is None:
            raise PromptcliError(f"no trial of {self.name!r} finished: {trials[-1].reason}")
        return self._save(trials, best)

    def _combinations(self) -> "list[dict[str, Setting]]":
        values: Any = self.space.values()
        return [dict(zip(self.space, each, strict=True)) for each in itertools.product(*values)]

    def _with(self, changes: "Mapping[str, Setting]") -> "TrainConfig":
        settings = {**self.config.settings, **changes}
        return dataclasses.replace(self.config, settings=settings)

    def _run_name(self, number: int) -> str:
        return f"{self.name}.run-{number + 1}"

    def _run(
        self, number: int, changes: "Mapping[str, Setting]", watchers: Sequence[Any] = ()
    ) -> "Trained":
        """Return a run, trained now unless it had ended before; one that was stopped goes on."""
        from promptcli.training.run import train
        from promptcli.training.trained import Trained

        name = self._run_name(number)
        if name in self.registry.names():
            return Trained(self.registry.load(name))
        begun = type(self.folder)(self.registry.run_folder(name)).has_begun
        config = dataclasses.replace(
            self._with(changes), name=name, group=self.name, resume=begun, force=False
        )
        left = f"`promptcli tune --resume {self.name}` continues, force starts again"
        with if_stopped(left, instead=True):
            return train(config, self.processes, watchers)

    def _run_next(self, study: "optuna.Study", count: int) -> None:
        """Run the trial that was interrupted, or a new one, to its end."""
        from optuna.samplers import TPESampler
        from optuna.trial import Trial as Drawn
        from optuna.trial import TrialState

        from promptcli.storage.runs import read_log
        from promptcli.training.watching import DevScore

        interrupted = study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
        if interrupted:
            trial = Drawn(study, interrupted[0]._trial_id)
            reported = interrupted[0].intermediate_values
        else:
            # a sampler for each trial, so that a resumed search draws what an unbroken one draws
            number = len(study.get_trials(deepcopy=False))
            seed = self._with({}).in_force(self.config.form).settings.seed
            study.sampler = TPESampler(seed=seed + number)
            trial = study.ask()
            reported = {}
        changes = {setting: _draw(trial, setting, each) for setting, each in self.space.items()}
        trial.set_user_attr("changes", changes)
        note(f"run {trial.number + 1} of {count}: {', '.join(typed_settings(changes))}")
        number = trial.number
        folder = self.registry.run_folder(self._run_name(number))
        watchers = [_pruning(trial, reported)] if self.count is not None else []
        try:
            trained = self._run(number, changes, watchers)
        except _PrunedError:
            curve = [dataclasses.asdict(one) for one in read_log(folder / "log.jsonl", DevScore)]
            trial.set_user_attr("curve", curve)
            study.tell(trial, state=TrialState.PRUNED)
            self._forget(self._run_name(number))
            note(f"run {number + 1} is below the median of the earlier ones: pruned")
        except (UsageError, NotFoundError):
            raise
        except PromptcliError as error:  # its loss is not a number, or memory does not hold it
            trial.set_user_attr("reason", str(error))
            study.tell(trial, state=TrialState.FAIL)
            self._forget(self._run_name(number))
            note(f"run {number + 1} failed: {error}")
        else:
            trial.set_user_attr("curve", trained.facts["curve"])
            trial.set_user_attr("record", trained.to_dict())
            study.tell(trial, trained.chosen_by)

    def _save(self, trials: list[Trial], chosen: int) -> Tuned:
        """Save the best run as the model, with all of them in its record, and forget the runs."""
        best = self._run(chosen, trials[chosen].changes)
        runs = []
        for number, trial in enumerate(trials):
            if trial.state == FINISHED:
                record = {"changes": trial.changes, "chosen": number == chosen, **trial.record}
                runs.append({**record, "curve": trial.curve})
        states = [trial.state for trial in trials]
        facts: dict[str, Any] = {**best.facts, "runs": runs}
        if self.count is not None:
            facts["trials"] = [
                {"changes": trial.changes, "state": trial.state, "value": trial.value}
                for trial in trials
            ]
            told = ", ".join(
                f"{states.count(state)} {state}" for state in (FINISHED, PRUNED, FAILED)
            )
            note(f"{len(trials)} trials: {told}")
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
        prefix = f"{self.name}.run-"
        begun = self.registry.run_folder(self.name).parent
        names = [path.name for path in begun.iterdir()] if begun.is_dir() else []
        return sorted(
            {name for name in [*self.registry.names(), *names] if name.startswith(prefix)}
        )

    def _forget_all_but(self, number: int | None) -> None:
        for name in self._names_of_runs():
            if number is None or name != self._run_name(number):
                self._forget(name)

    def _forget(self, name: str) -> None:
        type(self.folder)(self.registry.run_folder(name)).discard()
        if name in self.registry.names():
            self.registry.remove(name)


def _ended(best: "Trained") -> Tuned:
    """Return trainings that have ended, from the record of their model."""
    facts = best.facts
    name = best.entry.name
    runs = facts.get("runs")
    if not runs:
        raise UsageError(f"model {name!r} is not of several runs; force trains it again")
    note(f"done: model {name!r} is trained already; force trains it again")
    by_changes = {repr(run["changes"]): run for run in runs}
    trials = []
    for row in facts.get("trials", runs):
        run = by_changes.get(repr(row["changes"]), {"curve": []})
        trials.append(Trial(row["changes"], row.get("state", FINISHED), run["curve"], run))
    chosen = next(run["changes"] for run in runs if run["chosen"])
    number = [trial.changes for trial in trials].index(chosen)
    return Tuned(best, trials, number, "trials" in facts)


class _PrunedError(Exception):
    """Ends a training whose score is below the median."""


def _pruning(trial: "optuna.trial.Trial", reported: Mapping[int, float]) -> Any:
    """Return what reports a trial's scores, and ends it if Optuna's pruner says so."""
    from promptcli.training.watching import DevScore, Watcher

    class Pruning(Watcher):
        def on_score(self, score: DevScore) -> None:
            if score.step not in reported:  # before the search was resumed
                trial.report(score.value, score.step)
            if trial.should_prune():
                raise _PrunedError

    return Pruning()


@contextlib.contextmanager
def _study(file: Path, *, drawn: bool) -> "Iterator[optuna.Study]":
    """Open the trials, new or from an earlier session."""
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
            study_name="trials",
            direction="maximize",
            pruner=optuna.pruners.MedianPruner() if drawn else optuna.pruners.NopPruner(),
            load_if_exists=True,
        )
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _draw(trial: "optuna.trial.Trial", setting: str, values: Range | list[Any]) -> Any:
    """Return the value of a setting in a trial."""
    if not isinstance(values, Range):
        return trial.suggest_categorical(setting, values)
    if isinstance(values.low, int) and isinstance(values.high, int):
        return trial.suggest_int(setting, values.low, values.high, log=values.log)
    number = trial.suggest_float(setting, values.low, values.high, log=values.log)
    # four digits are as good as seventeen, and can be read and typed
    return min(max(float(f"{number:.4g}"), values.low), values.high)


def _ended_trials(study: "optuna.Study") -> "list[optuna.trial.FrozenTrial]":
    return [trial for trial in study.get_trials() if trial.state.is_finished()]


def _best(study: "optuna.Study") -> int | None:
    """Return the number of the best finished trial, the earlier of equal ones."""
    values: dict[int, float] = {}
    for trial in _ended_trials(study):
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
