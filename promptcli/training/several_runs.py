"""Several trainings of one job with other settings each: one becomes a model, which remembers them
all.
"""

import contextlib
import dataclasses
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from promptcli.backbones.names import portable_name
from promptcli.data.file_arguments import split_columns
from promptcli.errors import UsageError, if_stopped
from promptcli.models.loading import open_registry
from promptcli.notes import keyword, note
from promptcli.settings import check_bounds, typed_settings
from promptcli.storage.runs import RunFolder, read_log
from promptcli.training.carry_out import carry_out, join_processes
from promptcli.training.description import describe
from promptcli.training.finished import find_ended
from promptcli.training.plan import TrainingPlan
from promptcli.training.processes import Processes
from promptcli.training.ranges import Range, Space
from promptcli.training.resuming import document_of, plan_of
from promptcli.training.run_data import read_run_data
from promptcli.training.train_arguments import Setting, TrainArguments
from promptcli.training.trained import Trained
from promptcli.training.watching import DevScore, Watcher


class SeveralRuns:
    """Trainings that change settings of one job, each under the name NAME.run-N.

    One of them becomes the model NAME. Those that had ended before they were stopped are found
    again. ``what`` is what a message calls them all.
    """

    def __init__(self, job: TrainArguments, name: str, what: str = "runs") -> None:
        self.job = job
        self.name = name
        self.what = what
        self._registry = open_registry()
        self._folder = RunFolder(self._registry.run_folder(f"{name}.sweep"))
        self._plan: TrainingPlan | None = None

    @classmethod
    def of(cls, name: str, given: Mapping[str, Any], what: str = "runs") -> "SeveralRuns":
        """Return the runs of the arguments that ``train`` takes."""
        fields = [item.name for item in dataclasses.fields(TrainArguments)]
        fields.remove("changes")
        arguments = {field: given[field] for field in fields if field in given}
        changes = {setting: value for setting, value in given.items() if setting not in fields}
        changes |= changes.pop("changes", {})
        job = TrainArguments(**{**arguments, "name": f"{name}.sweep", "changes": changes})
        check_bounds(job)
        return cls(job, name, what)

    def ended(self) -> Trained | None:
        """Return the model that was made of them; None if they are new, or have not ended."""
        return find_ended(self.name, resume=self.job.resume)

    @property
    def plan(self) -> TrainingPlan:
        """The job with what it leaves out, or what it was begun with."""
        if self._plan is None:
            self._plan = plan_of(self.job)
            self.job = self._plan.job
        return self._plan

    def run_name(self, number: int) -> str:
        """Return the name of a run; the first has the number 0."""
        return f"{self.name}.run-{number + 1}"

    def plan_of_run(self, number: int, changes: Mapping[str, Setting]) -> TrainingPlan:
        """Return the plan of a run, which changes settings."""
        return self.plan.of_trial(self.run_name(number), self.name, changes)

    def check_space(self, space: Space) -> dict[str, Any]:
        """Return what a run begins with, JSON-ready; refuse values that settings do not take."""
        return check_space(self.plan, space)

    @contextlib.contextmanager
    def start(
        self,
        described: Mapping[str, Any],
        changed: Mapping[str, Any],
        *,
        count: int | None = None,
        kept: Mapping[str, Any] | None = None,
        one_process: bool = False,
    ) -> Iterator[Path]:
        """Start the runs, or go on with them; yield their folder, on which no other process works.

        Args:
            described: What a run begins with.
            changed: What the runs change; with ``described`` the same when they are resumed.
            count: Number of the runs; None: not known before they end.
            kept: More that the folder keeps, for those who resume them.
            one_process: Refuse to train in several processes.
        """
        plan = self.plan
        job = plan.job
        registry = self._registry
        registry.check_free(self.name, force=job.force or job.resume)
        self._replaces = job.force or self.name in registry.names()
        self._watchers = job.make_watchers()
        self._processes: Processes = join_processes(job)
        if one_process and self._processes.number > 1:
            raise UsageError(
                f"a {self.what} trains in one process, not in {self._processes.number}; start it"
                " without a launcher"
            )
        with contextlib.ExitStack() as stack:
            if self._processes.is_main:
                single = RunFolder(registry.run_folder(self.name))  # which is kept out, too
                stack.enter_context(
                    single.claim(
                        f"the training of {self.name!r}", f"give another {keyword('name')}"
                    )
                )
                self._make_room(count)
                self._folder.open(
                    {**described, **_places(plan, described), **changed},
                    resume=job.resume and self._folder.has_begun,
                    name=Path(self.name),
                    elsewhere=f"{keyword('force')} starts it again, or give another"
                    f" {keyword('name')}",
                    force=job.force,
                    settings={**document_of(plan), **(kept or {})},
                )
            self._processes.wait()
            yield self._folder.folder
            self._processes.wait()

    def note_settings(self, run: str, changes: Mapping[str, Setting]) -> None:
        """Say which settings a run changes."""
        note(f"{run}: {', '.join(typed_settings(changes))}")

    def run(
        self, number: int, changes: Mapping[str, Setting], watchers: Sequence[Watcher] = ()
    ) -> Trained:
        """Return a run, trained now unless it had ended before; one that was stopped goes on."""
        name = self.run_name(number)
        if name in self._registry.names():
            return Trained(self._registry.load(name))
        plan = self.plan_of_run(number, changes)
        begun = RunFolder(self._registry.run_folder(name)).has_begun
        job = dataclasses.replace(plan.job, resume=plan.job.resume and begun)
        left = (
            f"`promptcli train --resume {self.name}` continues the {self.what},"
            f" {keyword('force')} starts again"
        )
        with if_stopped(left, instead=True):
            return carry_out(
                dataclasses.replace(plan, job=job), self._processes, [*self._watchers, *watchers]
            )

    def curve(self, number: int) -> list[dict[str, Any]]:
        """Return the development scores of a run that has not ended, JSON-ready."""
        run = RunFolder(self._registry.run_folder(self.run_name(number)))
        return [dataclasses.asdict(score) for score in read_log(run.folder / "log.jsonl", DevScore)]

    def forget(self, number: int) -> None:
        """Forget the model of a run, and what it left if it did not end."""
        self._discard([self.run_name(number)])

    def forget_others(self, number: int | None) -> None:
        """Forget the models of all runs but one."""
        for name in self._models_of_runs():
            if number is None or name != self.run_name(number):
                self._registry.remove(name)

    def save(self, best: Trained, count: int | None = None, **facts: Any) -> None:
        """Save one of the runs as the model NAME, with facts of all in its record, and forget the
        runs unless the job keeps them.
        """
        if not self._processes.is_main:
            return
        registry = self._registry
        if not self._replaces and self.name in registry.names():
            raise UsageError(
                f"model {self.name!r} appeared during the {self.what}; nothing is lost:"
                f" {keyword('resume')} replaces that model"
            )
        provenance = {**best.entry.provenance, "trained": {**best.facts, **facts}}
        entry = dataclasses.replace(best.entry, name=self.name, provenance=provenance)
        registry.save(entry, force=self._replaces)
        if not self.job.keep_runs:
            self._discard(self._names(count))
        self._folder.discard()

    def discard(self) -> None:
        """Forget that the runs were begun: their name is free again."""
        self._folder.discard()

    def _make_room(self, count: int | None) -> None:
        """Forget earlier runs that are begun again; refuse models that have the names of runs but
        are not runs: they would be removed.
        """
        job = self.plan.job
        if job.force and not job.resume and self._folder.has_begun:
            self._discard(self._names(count))
        elif not self._folder.has_begun:
            if job.force:
                self._discard(self._models_of_earlier_runs(count))
            for taken in sorted(set(self._names(count)) & set(self._registry.names())):
                raise UsageError(
                    f"model {taken!r} has the name of a run of {self.name!r}; give another"
                    f" {keyword('name')}, or remove the model"
                )

    def _names(self, count: int | None) -> list[str]:
        """Return the names of that many runs, or of all runs."""
        if count is not None:
            return list(map(self.run_name, range(count)))
        runs = self._registry.run_folder(self.name).parent
        names = [folder.name for folder in runs.glob(f"{glob.escape(self.name)}.run-*")]
        return sorted({*self._models_of_runs(), *names})

    def _models_of_runs(self) -> list[str]:
        return [name for name in self._registry.names() if name.startswith(f"{self.name}.run-")]

    def _models_of_earlier_runs(self, count: int | None) -> list[str]:
        """Return the models that earlier runs of that name left, since they were to be kept."""
        kept = []
        for name in sorted(set(self._names(count)) & set(self._registry.names())):
            facts = self._registry.card(name).provenance.get("trained", {})
            if facts.get("group") == self.name:
                kept.append(name)
        return kept

    def _discard(self, names: Sequence[str]) -> None:
        """Forget runs and their models."""
        registry = self._registry
        for name in names:
            run = RunFolder(registry.run_folder(name))
            with run.claim(f"the training of {name!r}", f"give another {keyword('name')}"):
                run.discard()
        for name in set(names) & set(registry.names()):
            registry.remove(name)


def run_trials(runs: SeveralRuns, trials: Sequence[Mapping[str, Setting]]) -> list[Trained]:
    """Train with each of several changes of the settings, and keep the best one."""
    plans = [runs.plan_of_run(number, changes) for number, changes in enumerate(trials)]
    descriptions = list(map(describe, plans))  # which refuses wrong values of all trials
    _check_different(descriptions)
    trained: list[Trained] = []
    count = len(trials)
    with runs.start(descriptions[0], {"trials": trials}, count=count):
        for number, changes in enumerate(trials):
            runs.note_settings(f"run {number + 1} of {count}", changes)
            trained.append(runs.run(number, changes))
        best = max(trained, key=lambda run: run.chosen_by)
        runs.save(best, count, runs=_records(best, trained, trials))
    return trained


def records_of(plan: TrainingPlan, trials: Sequence[Mapping[str, Setting]]) -> list[dict[str, Any]]:
    """Return what the record of each run would say: method, settings and hashes of the data."""
    data = read_run_data(plan)
    hashes = {"data": data.examples.sha256, "development": data.development.sha256()}
    records = []
    for changes in trials:
        settings = plan.with_changes(changes).settings(data.method).settings
        records.append({"method": data.method.name, **dataclasses.asdict(settings), **hashes})
    return records


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


def _check_different(descriptions: Sequence[Mapping[str, Any]]) -> None:
    """Refuse two trials of the same settings: their scores would count as those of two seeds."""
    for number, description in enumerate(descriptions):
        if (first := descriptions.index(description)) < number:
            raise UsageError(
                f"trials {first + 1} and {number + 1} have the same settings; leave out one, or"
                " give it another seed"
            )


def _places(plan: TrainingPlan, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files of a description by names that hold in every folder."""
    named = document_of(plan)["data"]
    backbone = portable_name(described["backbone"])
    data = described["data"]
    if named is not None:
        data = list(map(_absolute, named))
    return {
        "data": data,
        "chosen_by": _absolute(described["chosen_by"]),
        "backbone": backbone,
        "recipe": {**described["recipe"], "backbone": backbone},
    }


def _absolute(name: str) -> str:
    if os.path.exists(split_columns(name)[0]):
        return os.path.abspath(name)
    return name


def _records(
    best: Trained, runs: Sequence[Trained], trials: Sequence[Mapping[str, Setting]]
) -> list[dict[str, Any]]:
    """Return the scores and curves of all runs, JSON-ready."""
    records = []
    for changes, run in zip(trials, runs, strict=True):
        record = {"changes": dict(changes), "chosen": run is best}
        records.append({**record, **run.to_dict(), "curve": run.facts["curve"]})
    return records
