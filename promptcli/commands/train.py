"""``promptcli train`` and ``promptcli optiprompt``: a method on a backbone, into a model of your own."""

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.commands.common import (
    data_folder,
    default_backbone,
    default_development,
    open_backbone,
    open_registry,
    prepare,
)
from promptcli.console import note, progress, result, result_json
from promptcli.errors import NotFoundError, UsageError
from promptcli.options import Runtime
from promptcli.settings import BARE, PAPER

if TYPE_CHECKING:
    from promptcli.methods.method import Method, Settings
    from promptcli.training.loop import Look
    from promptcli.training.run import Result

_PANEL = "Settings (defaults: the method's own, see --dry-run)"


@dataclasses.dataclass(frozen=True)
class SettingsOptions:
    """Changes of a method's settings."""

    batch_size: Annotated[int | None, typer.Option(min=2, help="Examples a step.", rich_help_panel=_PANEL)] = None
    learning_rate: Annotated[
        float | None, typer.Option(min=0, help="Start of the linear decay.", rich_help_panel=_PANEL)
    ] = None
    epochs: Annotated[float | None, typer.Option(min=0, help="Passes over the data.", rich_help_panel=_PANEL)] = None
    eval_steps: Annotated[int | None, typer.Option(min=1, help="Steps between two looks.", rich_help_panel=_PANEL)] = (
        None
    )
    temperature: Annotated[
        float | None, typer.Option(min=1e-4, help="Of the contrastive loss.", rich_help_panel=_PANEL)
    ] = None
    max_length: Annotated[
        int | None, typer.Option(min=3, help="Longest sentence in tokens.", rich_help_panel=_PANEL)
    ] = None
    prefix_length: Annotated[
        int | None, typer.Option(min=1, help="Length of a deep prefix.", rich_help_panel=_PANEL)
    ] = None
    dropout: Annotated[
        float | None,
        typer.Option(min=0, max=0.9, help="Of the backbone.", rich_help_panel=_PANEL),
    ] = None
    weight_decay: Annotated[float | None, typer.Option(min=0, help="AdamW's.", rich_help_panel=_PANEL)] = None
    seed: Annotated[int | None, typer.Option(min=0, help="Of everything random.", rich_help_panel=_PANEL)] = None

    def changes(self) -> dict[str, Any]:
        """Return what was given."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Training:
    """What is trained on what, and where it goes."""

    data: Annotated[
        str | None,
        typer.Option(help="Sentences, pairs or triplets (sent0, sent1, hard_neg): a file, or demo. Default: demo."),
    ] = None
    on: Annotated[str | None, typer.Option("--on", help="Development task. Default: demo:dev, or STS-B:dev.")] = None
    data_dir: Annotated[Path | None, typer.Option(help="SentEval folder of the development task.")] = None
    backbone: Annotated[str | None, typer.Option(help="Pre-trained model. Default: mini.")] = None
    name: Annotated[str | None, typer.Option(help="Name of the registry entry. Default: the method's.")] = None
    force: Annotated[bool, typer.Option("--force", help="Replace an entry of that name.")] = False
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run of that name.")] = False
    paper: Annotated[bool, typer.Option("--paper", help="The published settings, backbone and data.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the settings in force and stop.")] = False
    json_output: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False


def train(
    method: Annotated[str, typer.Option("--method", help="promptbert, dcpcse, optiprompt, scpcse, simcse.")],
    *,
    training: Training,
    settings: SettingsOptions,
    runtime: Runtime,
) -> None:
    """Train a sentence encoder; the numbers that are best on the development pairs become a model of your own."""
    _train(method, training, settings, runtime)


def optiprompt(*, training: Training, settings: SettingsOptions, runtime: Runtime) -> None:
    """Learn a template's words as vectors, backbone frozen (PromptBERT 4.2): `train --method optiprompt`."""
    _train("optiprompt", training, settings, runtime)


def _train(name: str, training: Training, changes: SettingsOptions, runtime: Runtime) -> None:
    from promptcli.methods import find_method

    method = find_method(name, supervised=False)
    data = training.data or (PAPER.corpus if training.paper else BARE.corpus)
    data_dir = data_folder(training.data_dir)
    on = training.on or default_development(data_dir, paper=training.paper)
    backbone = training.backbone or default_backbone(paper=training.paper)
    if training.dry_run:
        _dry_run(name, method, backbone, data, on, training, changes)
        return
    _settings(method, backbone, training, changes)  # what is not published is said before anything is read
    if data == PAPER.corpus and not Path(data).exists():
        raise NotFoundError(
            f"the papers' text {data} is not here; take {data}.txt of the hub's princeton-nlp/datasets-for-simcse and"
            " give it by --data FILE"
        )
    prepare(runtime)
    from promptcli.backbones.devices import choose_device, choose_dtype
    from promptcli.data.demo import SENTENCES
    from promptcli.data.examples import read_examples
    from promptcli.data.sts import DEMO
    from promptcli.sources import development_task
    from promptcli.training.loop import steps_of
    from promptcli.training.run import Run, execute, prepare_folder

    examples = read_examples(SENTENCES if data == DEMO else Path(data))
    method = find_method(name, supervised=examples.supervised)
    settings = _settings(method, backbone, training, changes)
    development = development_task(on, data_dir, offline=runtime.offline)
    tests = tuple(
        development_task(task, data_dir, offline=runtime.offline) for task in [on.removesuffix(":dev")] if task != on
    )
    registry = open_registry()
    entry_name = training.name or name
    registry.check_free(entry_name, force=training.force)
    if not training.data and not training.paper:
        note(
            f"assumed: {backbone}, {len(examples):,} demo sentences, chosen by {on}; the papers' setting: --paper",
            quiet=runtime.quiet,
        )
    device = choose_device(runtime.device)
    loaded = open_backbone(backbone, runtime, dtype="float32")
    run = Run(method, settings, examples, data, development, tests)
    steps = steps_of(settings, len(examples))
    folder = registry.run_folder(entry_name)
    prepare_folder(folder, run.identity(loaded), resume=training.resume)
    halves = "bfloat16" in str(choose_dtype(runtime.dtype, device))
    with progress(f"train {name}", steps, quiet=runtime.quiet) as advance:

        def told(look: "Look") -> None:
            loss = "" if look.loss is None else f"  loss {look.loss:.4f}"
            mark = " *" if look.best else ""
            note(f"step {look.step}/{steps}{loss}  {on} {look.value:.2f}{mark}", quiet=runtime.quiet)

        def report(step: int, loss: float) -> None:
            advance(1)
            advance.describe(f"loss {loss:.4f}")

        made = execute(
            run,
            loaded,
            name=entry_name,
            folder=folder,
            precision="bf16" if halves else "no",
            report=report,
            look=told,
        )
    registry.save(made.entry, force=training.force)
    shutil.rmtree(folder)
    _print(made, entry_name, as_json=training.json_output, quiet=runtime.quiet)


def _settings(method: "Method", backbone: str, training: Training, changes: SettingsOptions) -> "Settings":
    if training.paper and backbone not in method.paper:
        raise UsageError(
            f"--paper: no settings of {method.name} are published for backbone {backbone!r}; there are for:"
            f" {', '.join(method.paper)}"
        )
    base = method.paper[backbone] if training.paper else method.settings
    return base.replace(**changes.changes())


def _dry_run(
    name: str, method: "Method", backbone: str, data: str, on: str, training: Training, changes: SettingsOptions
) -> None:
    settings = _settings(method, backbone, training, changes)
    variant = method.variant("roberta" if "roberta" in backbone else "bert")
    shown = {
        "method": name,
        "source": method.source,
        "backbone": backbone,
        "data": data,
        "chosen_by": on,
        "views": [view.format(p=settings.prefix_length) for view in variant.views],
        "pooling": method.pooling,
        "learns": [*method.learns, "head"],
        "head": variant.head,
        "denoised": method.denoised,
        **dataclasses.asdict(settings),
    }
    if training.json_output:
        result_json(shown)
        return
    for key, value in shown.items():
        result(f"{key.replace('_', '-')} = {' | '.join(value) if isinstance(value, list) else value}")


def _print(made: "Result", name: str, *, as_json: bool, quiet: bool) -> None:
    rows = [
        {"task": after.column, "untrained": round(before.value, 2), "trained": round(after.value, 2)}
        for before, after in zip(made.untrained, made.scores, strict=True)
    ]
    if as_json:
        trained = made.trained
        result_json(
            {
                "model": name,
                "steps": trained.steps,
                "best_step": trained.best.step,
                "seconds": round(trained.seconds, 1),
                "better": made.better,
                "scores": rows,
            }
        )
    else:
        for row in rows:
            result(f"{row['task']}\tuntrained {row['untrained']:.2f}\ttrained {row['trained']:.2f}")
    if not made.better:
        note(
            "training made it no better than the untrained encoder on the development pairs; try other settings",
            quiet=quiet,
        )
    note(f"saved as model {name!r}; use it: promptcli embed FILE -m {name}", quiet=quiet)
