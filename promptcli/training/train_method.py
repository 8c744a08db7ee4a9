"""Train a method, once or several times, into a registry entry: what `promptcli train` and `promptcli.train` call."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import choose_device, choose_dtype
from promptcli.backbones.loading import load_backbone
from promptcli.data.sources import development_task, source_name, training_examples
from promptcli.errors import UsageError
from promptcli.registry.registry import Registry
from promptcli.storage.runs import RunFolder
from promptcli.training.epochs import steps_of
from promptcli.training.methods import METHODS, find_method
from promptcli.training.objectives import find_objective
from promptcli.training.processes import start_processes
from promptcli.training.run import TrainingRun
from promptcli.training.starting import read_start
from promptcli.training.training_loop import TrainingCallbacks
from promptcli.training.training_plan import TrainingPlan, check_published
from promptcli.training.trials import Begin, TrialResult, plan_trials, run_trials


@dataclass(frozen=True)
class TrainingReport:
    """What came of all trials; the best by the development task is the registry's entry."""

    results: list[TrialResult]
    is_main: bool  #: whether this is the process that speaks and writes, where several train together

    @property
    def best(self) -> TrialResult:
        """The trial whose numbers are the entry's."""
        return max(self.results, key=lambda result: result.chosen_by)


def train_method(
    plan: TrainingPlan,
    registry: Registry,
    *,
    device: str = "auto",
    dtype: str = "auto",
    offline: bool = False,
    resume: bool = False,
    force: bool = False,
    trackers: Sequence[str] = (),
    begin: Begin = lambda run, trials, number: TrainingCallbacks(),
    announce: Callable[[str], None] = lambda message: None,
) -> TrainingReport:
    """Train, score next to the untrained encoder, and save the best as an entry.

    Args:
        plan: What to train on what.
        registry: Takes the entry; its folder of runs holds the state while the work lasts.
        device: ``auto`` or a torch device.
        dtype: Of the products, ``auto``, ``float32`` or ``bfloat16``; weights and optimiser are float32.
        offline: Never use the network.
        resume: Go on with the unfinished run of that name.
        force: Replace an entry of that name.
        trackers: Names of accelerate's trackers to report to.
        begin: Called before each trial.
        announce: Called with one line before the network is used.

    Raises:
        UsageError: A name, setting or file content that is not allowed, or too few examples.
        NotFoundError: Data or a backbone that is not there.
        PromptcliError: The loss is not a number, or memory does not hold one sentence.
    """
    registry.check_free(plan.name, force=force or resume)
    start = read_start(plan, registry)
    run = dataclasses.replace(read_run(plan, offline=offline, announce=announce), start=start)
    device = choose_device(device)
    halves = choose_dtype(dtype, device) == torch.bfloat16
    folder = registry.run_folder(plan.name)
    processes = start_processes(device, halves=halves, trackers=trackers, folder=folder.parents[1], offline=offline)
    if not processes.is_main:  # one process speaks
        begin, announce = lambda run, trials, number: TrainingCallbacks(), lambda message: None

    def load() -> Backbone:
        return load_backbone(
            plan.backbone, device=processes.device, dtype=torch.float32, offline=offline, announce=announce
        )

    backbone = load()
    run = run.on(backbone, plan.settings(run.method, backbone.width))
    if trackers:
        processes.accelerator.init_trackers(plan.name, config=dataclasses.asdict(run.settings))
    trials = plan_trials(plan.sweep, range(plan.seeds) if plan.seeds else [run.settings.seed])
    for trial in trials:  # what cannot be trained is refused before a folder is made
        steps_of(run.method.changed(run.settings, trial.changes), run.examples.sizes)
    results = run_trials(
        run,
        trials,
        backbone,
        load,
        name=plan.name,
        folder=folder,
        resume=resume,
        processes=processes,
        save=lambda entry: registry.save(entry, force=True),
        begin=begin,
    )
    processes.accelerator.end_training()
    if processes.is_main:
        RunFolder(folder).remove()
    return TrainingReport(results, processes.is_main)


def read_run(
    plan: TrainingPlan, *, offline: bool = False, announce: Callable[[str], None] = lambda message: None
) -> TrainingRun:
    """Return the run that a plan means, its data read; its settings may be another width's yet.

    Raises:
        UsageError: A name, setting or file content that is not allowed.
        NotFoundError: Data that are not there.
    """
    method = find_method(plan.method, supervised=plan.supervised)
    if plan.paper:
        check_published(method, plan.backbone)
    objectives = [find_objective(form) for form in METHODS[plan.method] if form is not None]
    layouts = tuple(dict.fromkeys(layout for objective in objectives for layout in objective.layouts))
    examples = training_examples(plan.data, layouts=layouts, data_dir=plan.data_dir, offline=offline, announce=announce)
    source = source_name(plan.data)
    if plan.supervised and not examples.supervised:
        wanted = " or ".join(", ".join(layout) for layout in find_objective(method).layouts if layout)
        raise UsageError(f"--supervised needs pairs or triplets, columns {wanted}; {source} has sentences only")
    method = find_method(plan.method, supervised=examples.supervised)
    development, *tests = (
        development_task(task, plan.data_dir, offline=offline, announce=announce)
        for task in dict.fromkeys([plan.on, *(plan.tests or [plan.on.removesuffix(":dev")])])
    )
    return TrainingRun(method, plan.settings(method, 0), examples, source, development, tuple(tests))
