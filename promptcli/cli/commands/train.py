"""`promptcli train` and `promptcli optiprompt`: a method on a backbone, into a model of your own; the entrance."""

import dataclasses
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.commands.train_options import SettingsOptions, SeveralRuns, TrainingOptions
from promptcli.cli.commands.train_progress import TrialProgress
from promptcli.cli.commands.train_report import draw, print_rows, print_settings
from promptcli.cli.console import note
from promptcli.cli.opening import (
    announcer,
    configure_libraries,
    data_folder,
    default_backbone,
    default_development,
    open_backbone,
    open_registry,
)
from promptcli.cli.options import Runtime
from promptcli.cli.pictures.plots import check_picture
from promptcli.errors import UsageError
from promptcli.settings import BARE, PAPER
from promptcli.training.methods import METHODS, find_method

if TYPE_CHECKING:
    from promptcli.backbones.backbone import Backbone
    from promptcli.data.examples import TrainingExamples
    from promptcli.training.methods.method import Method, TrainingSettings

_TRIPLETS = "nli_for_simcse"


def train(
    method: Annotated[str, typer.Option("--method", help=f"{', '.join(METHODS)}.")],
    *,
    training: TrainingOptions,
    settings: SettingsOptions,
    several: SeveralRuns,
    runtime: Runtime,
) -> None:
    """Train a sentence encoder; the numbers that are best on the development pairs become a model of your own."""
    _train(method, training, settings, several, runtime)


def optiprompt(*, training: TrainingOptions, settings: SettingsOptions, several: SeveralRuns, runtime: Runtime) -> None:
    """Learn a template's words as vectors, backbone frozen (PromptBERT 4.2): `train --method optiprompt`."""
    _train("optiprompt", training, settings, several, runtime)


@dataclass(frozen=True)
class _Chosen:
    """What a call means, before anything is read.

    Attributes:
        name: Of the method.
        data: File or name of the examples.
        on: Development task.
        data_dir: SentEval folder.
        backbone: Name.
        entry: Of the registry.
    """

    name: str
    data: str
    on: str
    data_dir: Path | None
    backbone: str
    entry: str


def _train(
    name: str, training: TrainingOptions, changes: SettingsOptions, several: SeveralRuns, runtime: Runtime
) -> None:
    method = find_method(name, supervised=training.supervised)
    paper_data = _TRIPLETS if training.supervised else PAPER.corpus
    data_dir = data_folder(training.data_dir)
    chosen = _Chosen(
        name,
        training.data or (paper_data if training.paper else BARE.corpus),
        training.on or default_development(data_dir, paper=training.paper),
        data_dir,
        training.backbone or default_backbone(paper=training.paper),
        training.name or name,
    )
    if training.dry_run:
        loaded = None if chosen.backbone in method.paper else open_backbone(chosen.backbone, runtime, dtype="float32")
        settings = _settings(method, chosen.backbone, loaded, training, changes)
        family = loaded.provenance.family if loaded else ("roberta" if "roberta" in chosen.backbone else "bert")
        print_settings(method, settings, chosen.backbone, family, chosen.data, chosen.on, as_json=training.json_output)
        return
    _check(method, chosen.backbone, training)
    if training.plot is not None:
        check_picture(training.plot, force=training.force)
    _run(chosen, training, changes, several, runtime)


def _run(
    chosen: _Chosen, training: TrainingOptions, changes: SettingsOptions, several: SeveralRuns, runtime: Runtime
) -> None:
    configure_libraries(runtime)
    from promptcli.backbones.devices import choose_device, choose_dtype
    from promptcli.data.sources import development_task, training_examples
    from promptcli.registry.registry import home
    from promptcli.training.processes import start_processes
    from promptcli.training.run import TrainingRun
    from promptcli.training.trials import plan_trials, run_trials

    registry = open_registry()
    registry.check_free(chosen.entry, force=training.force or training.resume)

    examples = training_examples(chosen.data, offline=runtime.offline, announce=announcer(runtime))
    if training.supervised and not examples.supervised:
        raise UsageError(
            f"--supervised needs pairs or triplets, columns sent0, sent1 and perhaps hard_neg; {chosen.data} has"
            " sentences only"
        )
    method = find_method(chosen.name, supervised=examples.supervised)
    _check(method, chosen.backbone, training)
    development = development_task(chosen.on, chosen.data_dir, offline=runtime.offline)
    tests = tuple(
        development_task(task, chosen.data_dir, offline=runtime.offline)
        for task in training.test or [chosen.on.removesuffix(":dev")]
        if task != chosen.on
    )
    device = choose_device(runtime.device)
    halves = "bfloat16" in str(choose_dtype(runtime.dtype, device))
    processes = start_processes(device, halves=halves, trackers=training.report_to or [], folder=home(os.environ))
    runtime = dataclasses.replace(runtime, quiet=runtime.quiet or not processes.is_main, device=processes.device)

    def load() -> "Backbone":
        return open_backbone(chosen.backbone, runtime, dtype="float32")

    backbone = load()
    settings = _settings(method, chosen.backbone, backbone, training, changes)
    if training.report_to:
        processes.accelerator.init_trackers(chosen.entry, config=dataclasses.asdict(settings))
    trials = plan_trials(several.swept(method), range(several.seeds) if several.seeds else [settings.seed])
    _say(chosen, training, examples, runtime)
    folder = registry.run_folder(chosen.entry)
    run = TrainingRun(method, settings, examples, chosen.data, development, tests)
    with TrialProgress(run, len(trials), quiet=runtime.quiet) as telling:
        rows = run_trials(
            run,
            trials,
            backbone,
            load,
            name=chosen.entry,
            folder=folder,
            resume=training.resume,
            processes=processes,
            save=lambda entry: registry.save(entry, force=True),
            begin=telling.begin,
        )
    processes.accelerator.end_training()
    if not processes.is_main:
        return
    shutil.rmtree(folder)
    print_rows(rows, chosen.entry, as_json=training.json_output, quiet=runtime.quiet)
    if training.plot is not None:
        curve = registry.card(chosen.entry).provenance["trained"]["curve"]
        draw(training.plot, rows, curve, f"{chosen.name} on {chosen.backbone}", chosen.on)
        note(f"drawn to {training.plot}", quiet=runtime.quiet)


def _check(method: "Method", backbone: str, training: TrainingOptions) -> None:
    if training.paper and backbone not in method.paper:
        raise UsageError(
            f"--paper: no settings of {method.name} are published for backbone {backbone!r}; there are for:"
            f" {', '.join(method.paper)}"
        )


def _settings(
    method: "Method", backbone: str, loaded: "Backbone | None", training: TrainingOptions, changes: SettingsOptions
) -> "TrainingSettings":
    """Return the settings in force; ``loaded`` may be None where the backbone's are published."""
    _check(method, backbone, training)
    base = method.published(backbone) if training.paper else method.settings(backbone, loaded.width if loaded else 0)
    return base.replace(**changes.changes(method))


def _say(chosen: _Chosen, training: TrainingOptions, examples: "TrainingExamples", runtime: Runtime) -> None:
    """Say what was assumed and what was found in the data."""
    if not training.data and not training.paper:
        note(
            f"assumed: {chosen.backbone}, {len(examples):,} demo sentences, chosen by {chosen.on}; the papers' setting:"
            " --paper",
            quiet=runtime.quiet,
        )
    if examples.blank:
        note(f"{chosen.data}: {examples.blank:,} rows with a blank sentence left out", quiet=runtime.quiet)
    if examples.repeated:
        note(f"{chosen.data}: {examples.repeated:,} rows repeat one before them; they stay", quiet=runtime.quiet)
