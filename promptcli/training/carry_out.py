"""A training from top to bottom: the plan's data are read, the backbone is opened, the run trains
in its folder, and the model is saved.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.devices import choose_device, choose_dtype
from promptcli.errors import NotFoundError, UsageError, if_stopped
from promptcli.evaluation.evaluator import keep_random_states
from promptcli.extensions import used_extensions
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.models.registry import Registry
from promptcli.notes import keyword, note, silent, warn
from promptcli.settings import BARE
from promptcli.storage.files import temporary_folder
from promptcli.storage.runs import RunFolder, read_log
from promptcli.training.batches import steps_of
from promptcli.training.finished import check_same, find_finished, note_done
from promptcli.training.methods import find_method
from promptcli.training.methods.training_settings import ContrastiveSettings, TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.plan import TrainingPlan
from promptcli.training.processes import Processes, start_processes
from promptcli.training.resuming import document_of, request_of
from promptcli.training.run import TrainingRun
from promptcli.training.run_data import RunData, read_run_data
from promptcli.training.teacher import check_minable, check_negatives, named_vectors
from promptcli.training.train_arguments import TrainArguments
from promptcli.training.trained import Trained
from promptcli.training.watching import DevScore, WatchedRun, Watcher


@keep_random_states()
def carry_out(
    plan: TrainingPlan, processes: Processes | None = None, watchers: Sequence[Watcher] = ()
) -> Trained:
    """Train in these processes, or in those of this launch; save the model if it has a name."""
    job = plan.job
    registry = open_registry()
    if job.name is not None:
        plan.check_settings()  # an unknown setting is reported before a name that is taken
        registry.check_free(job.name, force=job.force or job.resume)
    elif job.resume:
        raise UsageError(f"which run should be resumed? give its {keyword('name')}")
    data = read_run_data(plan)
    finished = None
    if job.resume and job.name is not None:
        finished = find_finished(registry, job.name)
    replaces = job.force or (job.name is not None and job.name in registry.names())
    # before the backbone: each may have its own device
    processes = processes or join_processes(job)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_threads(job.where.threads))
        folder = stack.enter_context(_claimed_folder(job, registry, processes))
        stack.enter_context(silent(not processes.is_main))
        backbone = _open_backbone(plan, data, processes)
        run = _prepare(plan, data, backbone, processes)
        if finished is not None:
            check_same(finished, run.identity(backbone))
            note_done(finished)
            return Trained(finished, processes.device, processes.is_main, job.offline)
        if processes.is_main:
            stack.enter_context(_watched(plan, run, backbone, folder, watchers))
        run = dataclasses.replace(run, watchers=watchers)
        entry = _run_in_folder(plan, run, backbone, folder, processes)
        if processes.is_main and job.name is not None:
            _save(registry, entry, folder, replaces=replaces)
        processes.wait()
        trained = Trained(entry, processes.device, processes.is_main, job.offline)
        warn_if_worse(trained)
    return trained


def join_processes(job: TrainArguments) -> Processes:
    """Join the processes of this launch, on the device and in the precision of a job."""
    device = choose_device(job.where.device)
    mixed = choose_dtype(job.where.dtype or "auto", device) == torch.bfloat16
    return start_processes(device, mixed=mixed)


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Compute with this number of threads in the block; None: unchanged."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _claimed_folder(
    job: TrainArguments, registry: Registry, processes: Processes
) -> Iterator[Path]:
    """Yield the folder of a run, which no other process works in; without a name it is a temporary
    one.
    """
    if job.name is None:
        with temporary_folder() as folder:
            yield folder / job.method
        return
    folder = registry.run_folder(job.name)
    if not processes.is_main:
        yield folder
        return
    with RunFolder(folder).claim(
        f"the training of {job.name!r}", f"give another {keyword('name')}"
    ):
        yield folder


def _open_backbone(plan: TrainingPlan, data: RunData, processes: Processes) -> Backbone:
    """Open the backbone, after saying with which settings the run begins, and on what."""
    is_told = _note_settings(plan, data)
    _note_defaults(plan)
    data.note_learned_pairs()
    backbone = load_backbone(plan.backbone, device=processes.device, dtype=torch.float32)
    if not is_told:
        _note_settings(plan, data)
    return backbone


def _note_settings(plan: TrainingPlan, data: RunData) -> bool:
    """Say whose settings are in force.

    Return whether they are known by now: those of a backbone of the hub only once it is here.
    """
    try:
        note(plan.settings(data.method).summary())
    except NotFoundError:
        return False
    return True


def _note_defaults(plan: TrainingPlan) -> None:
    """Say which backbone, data and development pairs the run takes, of those not given."""
    job = plan.job
    if job.paper:
        return
    parts = []
    if job.where.model is None and job.start is None:
        parts.append(f"backbone {plan.backbone} ({keyword('backbone')})")
    if job.data is None:
        parts.append(f"the demo sentences are the data ({keyword('data')})")
    if not job.on:
        on = plan.development
        where = "the demo pairs" if on == BARE.development else on
        parts.append(f"checkpoints are chosen on {where} ({keyword('on')})")
    if job.data is None:
        parts.append(f"{keyword('paper')} takes the papers' backbone and data")
    if parts:
        note("; ".join(parts))


def _prepare(
    plan: TrainingPlan, data: RunData, backbone: Backbone, processes: Processes
) -> TrainingRun:
    """Return the run: the method, its settings on this backbone, and the examples it takes."""
    source = data.source
    with used_extensions() as code:
        method = find_method(plan.job.method, supervised=data.examples.supervised)
        objective = find_objective(method)
    in_force = plan.settings(method)
    settings = in_force.settings
    method = plan.read_as_start(method, settings, backbone.provenance.family)
    examples = objective.choose(data.examples, settings, backbone)
    named = _named_models(settings)
    if "mine" in named:
        check_minable(examples, source)
    if isinstance(settings, ContrastiveSettings):
        check_negatives(settings, examples, source)
    columns = objective.columns_of_models(settings)
    models = {}
    for field, model in named.items():
        models[field] = named_vectors(model, examples, source, processes.device, columns)
    run = TrainingRun(
        method,
        settings,
        examples,
        source,
        data.development,
        data.tests,
        data.start,
        models,
        code=sorted(code),
        request={**in_force.record(), **request_of(plan)},
    )
    run.note_examples()
    steps_of(settings, examples.sizes)  # refuses fewer examples than a batch
    return run


def _named_models(settings: TrainingSettings) -> dict[str, str]:
    """Return the models that settings name, e.g. a teacher, by setting.

    "" if one is needed and not named.
    """
    models = {}
    for item in dataclasses.fields(settings):
        if "model" not in item.metadata:
            continue
        model = getattr(settings, item.name)
        if model or "optional" not in item.metadata:
            models[item.name] = model
    return models


@contextlib.contextmanager
def _watched(
    plan: TrainingPlan,
    run: TrainingRun,
    backbone: Backbone,
    folder: Path,
    watchers: Sequence[Watcher],
) -> Iterator[None]:
    """Tell watchers that a run begins, and in the end that it is over."""
    name = plan.job.name or plan.job.method
    logged: list[DevScore] = []
    if plan.job.resume:
        logged = read_log(folder / "log.jsonl", DevScore)
    begins_at = logged[-1].step if logged else 0
    watched = WatchedRun(plan.group or name, name, begins_at)
    facts: dict[str, Any] = {
        **run.identity(backbone),
        "source": run.source,
        "backbone": backbone.name,
        "chosen_by": run.development.label,
    }
    with contextlib.ExitStack() as stack:
        for watcher in watchers:
            stack.callback(watcher.end)
            watcher.begin(watched, facts)
        yield


def _run_in_folder(
    plan: TrainingPlan, run: TrainingRun, backbone: Backbone, folder: Path, processes: Processes
) -> Entry:
    """Return the entry; the run's folder is kept for ``resume`` if the run is stopped."""
    job = plan.job
    run_folder = RunFolder(folder)
    processes.wait()  # until all have found the name free
    if processes.is_main:
        run_folder.open(
            run.identity(backbone),
            resume=job.resume and run_folder.has_begun,
            name=folder,
            elsewhere=f"{keyword('force')} starts it again, or take another {keyword('name')}",
            force=job.force,
            settings=document_of(plan),
        )
    processes.wait()
    kept: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if job.name:
        kept = if_stopped(_how_to_continue(job.name))
    try:
        with kept:
            return run.train_and_score(backbone, job.name or job.method, folder, processes)
    except UsageError:  # the run cannot begin: its name is free for the next try
        if processes.is_main and not job.resume:
            run_folder.discard()
        raise


def _save(registry: Registry, entry: Entry, folder: Path, *, replaces: bool) -> None:
    """Save the trained model, and remove the folder of its run."""
    if not replaces and entry.name in registry.names():
        raise UsageError(
            f"model {entry.name!r} appeared during the training, whose run is kept:"
            f" {keyword('resume')} replaces that model"
        )
    with if_stopped(_how_to_continue(entry.name)):
        registry.save(entry, force=replaces)
    RunFolder(folder).discard()


def _how_to_continue(name: str) -> str:
    """Return how a run that was stopped goes on."""
    return (
        f"`promptcli train --resume {name}` continues the run, {keyword('force')} starts it again"
    )


def warn_if_worse(trained: Trained) -> None:
    """Warn of a result that is worse than the encoder without anything learned."""
    plain, *_ = trained.references
    if plain in trained.below:
        development, value = next(iter(trained.scores.items()))
        than = f"{plain} has {trained.below[plain]:.2f}"
        warn(
            f"{trained.entry.name} is worse than without training: {value:.2f} on {development},"
            f" {than}"
        )
