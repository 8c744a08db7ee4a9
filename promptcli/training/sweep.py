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
from promptcli.training.processes import Processes
from promptcli.training.run import Trained, TrainingPlan
from promptcli.training.train_arguments import Setting


def run_trials(
    job: TrainingPlan, trials: Sequence[Mapping[str, Setting]], name: str
) -> list[Trained]:
    """Train every trial as a model ``NAME.run-N``.

    Then keep the best one as NAME, and remove the others, unless the job keeps them.

    A sweep that was stopped finds the models of its finished trials.
    """
    registry = open_registry()
    trial_names = [f"{name}.run-{number}" for number in range(1, len(trials) + 1)]
    jobs = [
        dataclasses.replace(job, name=trial_name, group=name, changes={**job.changes, **changes})
        for trial_name, changes in zip(trial_names, trials, strict=True)
    ]
    descriptions = [trial.describe() for trial in jobs]  # which refuses wrong values of all trials
    _check_different(descriptions)
    described = descriptions[0]
    registry.check_free(name, force=job.force or job.resume)
    replaces = job.force or name in registry.names()
    sweep = RunFolder(registry.run_folder(f"{name}.sweep"))
    processes = job.start_processes()
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
                    _discard(registry, _kept(registry, trial_names, name))
                check_free(registry, trial_names, name)
            sweep.open(
                {**described, **places(job, described), "trials": trials},
                resume=job.resume and sweep.begun,
                name=Path(name),
                elsewhere=begin_again_hint(),
                force=job.force,
                given=job.given(),
            )
        processes.wait()
        runs = _run_all(registry, jobs, trials, name, processes)
        if processes.is_main:
            if not replaces and name in registry.names():
                raise UsageError(
                    f"model {name!r} appeared during the runs, which are kept: {keyword('resume')}"
                    " replaces that model"
                )
            best = max(runs, key=lambda run: run.chosen_by)
            registry.save(_recorded(best, runs, trials, name), force=replaces)
            if not job.keep_runs:
                for trial_name in trial_names:
                    registry.remove(trial_name)
            sweep.discard()
        processes.wait()
    return runs


def _check_different(descriptions: Sequence[Mapping[str, Any]]) -> None:
    """Refuse two trials of the same settings: their scores would count as those of two seeds."""
    for number, description in enumerate(descriptions):
        if (first := descriptions.index(description)) < number:
            raise UsageError(
                f"trials {first + 1} and {number + 1} have the same settings; leave out one, or"
                " give it another seed"
            )


def places(job: TrainingPlan, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files of a description by names that hold in every folder."""
    given = job.given()
    backbone = portable_name(described["backbone"])
    data = described["data"]
    if given["data"] is not None:
        data = list(map(_absolute, given["data"]))
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


def _kept(registry: Registry, trial_names: Sequence[str], name: str) -> list[str]:
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
    jobs: Sequence[TrainingPlan],
    trials: Sequence[Mapping[str, Setting]],
    name: str,
    processes: Processes,
) -> list[Trained]:
    finished = set(registry.names())
    runs: list[Trained] = []
    left = (
        f"`promptcli train --resume {name}` continues the runs, {keyword('force')} starts them"
        " again"
    )
    with if_stopped(left, instead=True):
        for job, changes in zip(jobs, trials, strict=True):
            assert job.name is not None
            note(f"run {len(runs) + 1} of {len(trials)}: {', '.join(typed_settings(changes))}")
            if job.name in finished:
                runs.append(Trained(registry.load(job.name)))
            else:
                begun = RunFolder(registry.run_folder(job.name)).begun
                runs.append(
                    dataclasses.replace(job, resume=job.resume and begun).carry_out(processes)
                )
    return runs


def _recorded(
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
