"""Several trainings of one method, over seeds and settings: the best becomes a model, which
remembers them all.
"""

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from promptcli.backbones.names import portable_name
from promptcli.data.file_arguments import split_columns
from promptcli.errors import UsageError, if_stopped
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.models.registry import Registry
from promptcli.notes import keyword, note
from promptcli.settings import typed_settings
from promptcli.storage.runs import RunFolder
from promptcli.training.carry_out import carry_out, join_processes
from promptcli.training.description import describe
from promptcli.training.plan import TrainingPlan
from promptcli.training.processes import Processes
from promptcli.training.resuming import document_of
from promptcli.training.run_data import read_run_data
from promptcli.training.train_arguments import Setting
from promptcli.training.trained import Trained
from promptcli.training.watching import Watcher


def run_trials(
    plan: TrainingPlan, trials: Sequence[Mapping[str, Setting]], name: str
) -> list[Trained]:
    """Train every trial as a model ``NAME.run-N``.

    Then keep the best one as NAME, and remove the others, unless the job keeps them.

    A sweep that was stopped finds the models of its finished trials.
    """
    job = plan.job
    registry = open_registry()
    trial_names = [f"{name}.run-{number}" for number in range(1, len(trials) + 1)]
    plans = [
        plan.of_trial(trial_name, name, changes)
        for trial_name, changes in zip(trial_names, trials, strict=True)
    ]
    descriptions = list(map(describe, plans))  # which refuses wrong values of all trials
    _check_different(descriptions)
    described = descriptions[0]
    registry.check_free(name, force=job.force or job.resume)
    replaces = job.force or name in registry.names()
    sweep = RunFolder(registry.run_folder(f"{name}.sweep"))
    watchers = job.make_watchers()
    processes = join_processes(job)
    with contextlib.ExitStack() as stack:
        if processes.is_main:
            run = RunFolder(registry.run_folder(name))  # a single run of that name is kept out, too
            stack.enter_context(
                run.claim(f"the training of {name!r}", f"give another {keyword('name')}")
            )
            if job.force and not job.resume and sweep.begun:
                _discard(registry, trial_names)
            elif not sweep.begun:
                if job.force:
                    _discard(registry, _models_of_earlier_runs(registry, trial_names, name))
                check_free(registry, trial_names, name)
            sweep.open(
                {**described, **places(plan, described), "trials": trials},
                resume=job.resume and sweep.begun,
                name=Path(name),
                elsewhere=begin_again_hint(),
                force=job.force,
                given=document_of(plan),
            )
        processes.wait()
        runs = _run_all(registry, plans, trials, processes, watchers)
        if processes.is_main:
            if not replaces and name in registry.names():
                raise UsageError(
                    f"model {name!r} appeared during the runs, which are kept: {keyword('resume')}"
                    " replaces that model"
                )
            best = max(runs, key=lambda run: run.chosen_by)
            registry.save(_record_all(best, runs, trials, name), force=replaces)
            if not job.keep_runs:
                for trial_name in trial_names:
                    registry.remove(trial_name)
            sweep.discard()
        processes.wait()
    return runs


def records_of(plan: TrainingPlan, trials: Sequence[Mapping[str, Setting]]) -> list[dict[str, Any]]:
    """Return what the record of each run would say: method, settings and hashes of the data."""
    data = read_run_data(plan)
    hashes = {"data": data.examples.sha256, "development": data.development.sha256()}
    records = []
    for changes in trials:
        settings = plan.with_changes(changes).settings(data.method).settings
        records.append({"method": data.method.name, **dataclasses.asdict(settings), **hashes})
    return records


def _check_different(descriptions: Sequence[Mapping[str, Any]]) -> None:
    """Refuse two trials of the same settings: their scores would count as those of two seeds."""
    for number, description in enumerate(descriptions):
        if (first := descriptions.index(description)) < number:
            raise UsageError(
                f"trials {first + 1} and {number + 1} have the same settings; leave out one, or"
                " give it another seed"
            )


def places(plan: TrainingPlan, described: Mapping[str, Any]) -> dict[str, Any]:
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


def check_free(registry: Registry, trial_names: Sequence[str], name: str) -> None:
    """Refuse models that have the names of trials but are not trials: they would be removed."""
    for taken in sorted(set(trial_names) & set(registry.names())):
        raise UsageError(
            f"model {taken!r} has the name of a run of {name!r}; give another {keyword('name')}, or"
            " remove the model"
        )


def _models_of_earlier_runs(registry: Registry, trial_names: Sequence[str], name: str) -> list[str]:
    """Return the models that earlier runs of that name have left, since they were to be kept."""
    kept = []
    for trial_name in sorted(set(trial_names) & set(registry.names())):
        facts = registry.card(trial_name).provenance.get("trained", {})
        if facts.get("group") == name:
            kept.append(trial_name)
    return kept


def _discard(registry: Registry, trial_names: Sequence[str]) -> None:
    """Forget the runs and the models of trials that are begun again."""
    for trial_name in trial_names:
        run = RunFolder(registry.run_folder(trial_name))
        with run.claim(f"the training of {trial_name!r}", f"give another {keyword('name')}"):
            run.discard()
    for trial_name in set(trial_names) & set(registry.names()):
        registry.remove(trial_name)


def _run_all(
    registry: Registry,
    plans: Sequence[TrainingPlan],
    trials: Sequence[Mapping[str, Setting]],
    processes: Processes,
    watchers: Sequence[Watcher],
) -> list[Trained]:
    finished = set(registry.names())
    runs: list[Trained] = []
    group = plans[0].group
    left = (
        f"`promptcli train --resume {group}` continues the runs, {keyword('force')} starts them"
        " again"
    )
    with if_stopped(left, instead=True):
        for plan, changes in zip(plans, trials, strict=True):
            name = plan.job.name
            assert name is not None
            note(f"run {len(runs) + 1} of {len(trials)}: {', '.join(typed_settings(changes))}")
            if name in finished:
                runs.append(Trained(registry.load(name)))
            else:
                runs.append(carry_out(resumed_if_begun(plan, registry), processes, watchers))
    return runs


def resumed_if_begun(plan: TrainingPlan, registry: Registry) -> TrainingPlan:
    """Return the plan of a trial: resumed if the several runs are, and it had begun."""
    assert plan.job.name is not None
    begun = RunFolder(registry.run_folder(plan.job.name)).begun
    job = dataclasses.replace(plan.job, resume=plan.job.resume and begun)
    return dataclasses.replace(plan, job=job)


def _record_all(
    best: Trained, runs: Sequence[Trained], trials: Sequence[Mapping[str, Setting]], name: str
) -> Entry:
    """Return the entry of the best run under its own name, with the scores and curves of all
    runs.
    """
    records = []
    for changes, run in zip(trials, runs, strict=True):
        record = {"changes": dict(changes), "chosen": run is best}
        records.append({**record, **run.to_dict(), "curve": run.facts["curve"]})
    provenance = {**best.entry.provenance, "trained": {**best.facts, "runs": records}}
    return dataclasses.replace(best.entry, name=name, provenance=provenance)


def begin_again_hint() -> str:
    """Return what a message says to do where a folder holds another search."""
    return f"{keyword('force')} starts it again, or give another {keyword('name')}"
