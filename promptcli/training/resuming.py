"""What a run keeps of the job that began it, and how a run that is resumed takes it up again."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from promptcli.data.file_arguments import split_columns
from promptcli.data.sources import TrainingData, is_sources
from promptcli.errors import UsageError
from promptcli.jobs import fields_of
from promptcli.models.loading import open_registry
from promptcli.notes import keyword, typed_command
from promptcli.storage.runs import RunFolder
from promptcli.training.plan import TrainingPlan
from promptcli.training.train_arguments import Setting, TrainArguments


def document_of(plan: TrainingPlan) -> dict[str, Any]:
    """Return the job of a plan as the folder of its run keeps it, JSON-ready.

    Values in memory are left out, and named in ``in_memory``.
    """
    job = plan.job
    where = job.where
    in_memory: list[str] = []
    document: dict[str, Any] = {
        "command": plan.command or typed_command(),
        "folder": os.getcwd(),
        "in_memory": in_memory,
    }
    for item in _fields_of_run():
        value = getattr(job, item.name)
        if item.name == "data":
            document["data"] = _names_of_data(value)
        else:
            document[item.name] = _json_ready(value)
        if document[item.name] is None and value is not None:
            in_memory.append(item.name)
    document |= {"model": where.model, "backbone": where.backbone}
    return document | {"dtype": where.dtype, "threads": where.threads}


def request_of(plan: TrainingPlan) -> dict[str, Any]:
    """Return the command and the arguments of a run, for the record of its model."""
    arguments = document_of(plan)
    del arguments["folder"]  # of this machine
    command = arguments.pop("command")
    dtype = arguments["dtype"] or "auto"
    request = {"dtype": dtype, "command": command or None, "arguments": arguments}
    if plan.group is not None:
        request["group"] = plan.group
    return request


def plan_of(job: TrainArguments) -> TrainingPlan:
    """Return the plan of a job; one that is resumed gets all that its run was begun with."""
    plan = TrainingPlan(job)
    if job.resume and job.name is not None:
        plan = _complete(plan, open_registry().run_folder(job.name))
    if plan.job.method:
        return plan
    if job.resume and job.name is not None:
        raise UsageError(
            f"no unfinished run of {job.name.removesuffix('.sweep')!r}; leave out"
            f" {keyword('resume')} to start one"
        )
    raise UsageError(
        "give a method, e.g. `promptcli train simcse`; only a run that is resumed needs none"
    )


def _complete(plan: TrainingPlan, folder: Path) -> TrainingPlan:
    """Return a plan, completed by the job that the run in ``folder`` began with."""
    job = plan.job
    stored = RunFolder(folder).settings
    if not stored:
        return plan
    for field in stored["in_memory"]:
        if not getattr(job, field):
            raise UsageError(
                f"the {keyword(field)} of this run were in memory, not in files; give them again"
            )
    began_in = Path(stored["folder"])
    where = dataclasses.replace(
        job.where,
        dtype=job.where.dtype or stored["dtype"],
        threads=job.where.threads or stored["threads"],
    )
    if where.model is None:
        model = stored["model"] and _located(stored["model"], began_in)
        backbone = _located(stored["backbone"], began_in)
        where = dataclasses.replace(where, model=model, backbone=backbone)
    completed: dict[str, Any] = {"backbone": where}
    for item in _fields_of_run():
        value = getattr(job, item.name)
        if item.name == "changes":
            before = {name: _setting(kept) for name, kept in stored["changes"].items()}
            completed["changes"] = {**before, **value}
        elif not value:
            completed[item.name] = _restored(item, stored[item.name], began_in)
    job = dataclasses.replace(job, **completed)
    return dataclasses.replace(plan, job=job, command=stored["command"])


def _fields_of_run() -> "list[dataclasses.Field[Any]]":
    """Return the fields of a job that a run is made of, but for the backbone, which is where the
    work is done, too.
    """
    fields = fields_of(TrainArguments)
    return [
        item for item in fields if item.metadata.get("of_run", True) and item.name != "backbone"
    ]


def _json_ready(value: Any) -> Any:
    """Return a value as JSON keeps it, paths as text; None: it is in memory."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str | Path) for item in value):
        return [str(item) for item in value]
    return None


def _names_of_data(data: TrainingData | None) -> list[str] | None:
    """Return the names of a run's data; None: its sentences are in memory."""
    if isinstance(data, str | Path):
        return [str(data)]
    names: list[str] | None = None
    if is_sources(data):
        names = _json_ready(data)
    return names


def _restored(item: "dataclasses.Field[Any]", stored: Any, folder: Path) -> Any:
    """Return a field's value as a run in a folder had it; files are found from here, too."""
    if stored is None or "locates" not in item.metadata:
        return stored
    if isinstance(stored, str):
        return _located(stored, folder)
    names = [_located(name, folder) for name in stored]
    if item.name != "data":
        return names
    return names[0] if len(names) == 1 else [Path(name) for name in names]


def _setting(value: Any) -> Setting:
    """Return a setting as JSON keeps it: a list was a tuple."""
    setting: Setting = value
    if isinstance(value, list):
        setting = tuple(value)
    return setting


def _located(name: str, folder: Path) -> str:
    """Return the name of a file that ``folder`` has and the current one has not as a path, another
    as it is.
    """
    there = str(folder / name)
    here = os.path.exists(split_columns(name)[0])
    return there if not here and os.path.exists(split_columns(there)[0]) else name
