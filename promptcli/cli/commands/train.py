"""`promptcli train`: a method on a backbone, into a model of your own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcli.cli.commands.train_report import draw, print_results, print_settings
from promptcli.cli.console import note
from promptcli.cli.options import (
    DataDir,
    FieldOptions,
    Force,
    Json,
    Runtime,
    Section,
    data_folder,
    default_backbone,
    option_in,
    options_of,
    parsed,
    set_help,
)
from promptcli.cli.pictures.plots import check_picture
from promptcli.errors import UsageError
from promptcli.training.methods import METHODS, all_settings, find_method, forms

_many_option = option_in("Several runs")
#: Settings that are no axis of a sweep, and what to give instead.
_UNSWEPT = {"seed": "--seeds N", "template": "--prompt, a run for each"}

_AllSettings = all_settings()
#: Settings of many methods, which have options of their own.
_OWN = ("batch_size", "learning_rate", "epochs", "steps", "max_length", "temperature", "template", "seed")


@options_of(_AllSettings, panel="Settings (all: train METHOD --help)", flags={"template": "--prompt"}, only=_OWN)
class SettingsOptions(FieldOptions):
    """Changes of a method's settings."""


@dataclass(frozen=True)
class TrainingOptions:
    """What is trained on what, and where it goes."""

    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Sentences, pairs or triplets (sent0, sent1, hard_neg), labelled pairs (premise, hypothesis, label;"
            " sbert, consert), graded pairs (sentence1, sentence2, score; sbert-regression), definitions (word,"
            " definition; defsent): a file, demo, wiki1m_for_simcse, nli_for_simcse; repeatable, pairs and triplets"
            " may stand together, and hard_neg may be blank. Default: demo."
        ),
    ] = None
    supervised: Annotated[
        bool, typer.Option("--supervised", help="Pairs or triplets are wanted; they are known by their columns.")
    ] = False
    on: Annotated[
        str | None, typer.Option(help="Development task, or FILE of graded pairs. Default: demo:dev, or STS-B:dev.")
    ] = None
    test: Annotated[
        list[str] | None, typer.Option(help="Task scored at the end; repeatable. Default: the test of --on.")
    ] = None
    data_dir: DataDir = None
    backbone: Annotated[str | None, typer.Option(help="Pre-trained model. Default: mini-bert.")] = None
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="MODEL", help="Model of yours whose tuned backbone the run starts from."),
    ] = None
    name: Annotated[str | None, typer.Option(help="Name of the registry entry. Default: the method's.")] = None
    force: Force = False
    resume: Annotated[bool, typer.Option("--resume", help="Resume the unfinished run of that name.")] = False
    paper: Annotated[bool, typer.Option("--paper", help="The published settings, backbone and data.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the settings in force and stop.")] = False
    plot: Annotated[
        Path | None, typer.Option(help="Draw the curve, or the sweep, into a .png or .svg file (needs matplotlib).")
    ] = None
    report_to: Annotated[
        list[str] | None, typer.Option(help="Tracker of accelerate: tensorboard, wandb, ...; repeatable.")
    ] = None
    json_output: Json = False
    seeds: Annotated[int | None, _many_option(min=1, max=1000, help="Run N seeds, 0, 1, ...: mean and spread.")] = None
    sweep: Annotated[
        str | None,
        _many_option(
            metavar="SETTING=V,V ...",
            help="Run every combination, e.g. `--sweep batch-size=64,128 learning-rate=3e-3,1e-2`.",
        ),
    ] = None


Words = Annotated[
    list[str] | None, typer.Argument(metavar="METHOD", help=f"{', '.join(METHODS)}. Also what follows --sweep.")
]


def train(
    words: Words = None,
    method: Annotated[str | None, typer.Option(help="The same as the first word.")] = None,
    *,
    training: TrainingOptions,
    settings: SettingsOptions,
    runtime: Runtime,
) -> None:
    """Train a sentence encoder; the numbers that are best on the development pairs become a model of your own."""
    first, *rest = [*(words or []), ""]
    if method is None and first and "=" not in first:
        method, words = first, rest[:-1]
    if method is None:
        raise UsageError(f"which method? e.g. `promptcli train simcse`; methods: {', '.join(METHODS)}")
    _train(method, training, settings, words or [], runtime)


def settings_in_force(words: Sequence[str]) -> Section:
    """Return the settings of the method on the command line; without one, the main settings of every method."""
    for word in words:
        if word in METHODS:
            own = find_method(word, supervised=METHODS[word][0] is None).small
            return set_help(own, f"Settings of {word} by --set, and their values for mini-bert", leave_out=_OWN)
    rows = []
    for method in forms():
        names = ["batch_size", "learning_rate", "epochs"]
        names += [name for name in method.small.own() if name == "prefix_length"]
        small, base = (
            ", ".join(f"{getattr(settings, name):g}" for name in names)
            for settings in (method.small, method.settings("bert-base-uncased", 0))
        )
        form = " supervised" if method is METHODS[method.name][1] and METHODS[method.name][0] else ""
        rows.append((f"{method.name}{form}", f"{small}; {base}"))
    return "Batch size, learning rate, epochs: mini-bert; bert-base-uncased", rows


def _train(
    name: str, training: TrainingOptions, settings: SettingsOptions, words: Sequence[str], runtime: Runtime
) -> None:
    if training.plot is not None:
        check_picture(training.plot, force=training.force)
    from promptcli.api.training import train as train_encoder

    data_dir, data, dry_run = data_folder(training.data_dir), training.data or [], training.dry_run
    options: dict[str, Any] = {
        "data": [Path(one) for one in data] if len(data) > 1 else data[0] if data else None,
        "backbone": training.backbone or (None if training.start or training.paper else default_backbone()),
        **{field: getattr(training, field) for field in ("start", "supervised", "paper", "on", "seeds")},
        **{"tests": training.test or (), "data_dir": data_dir, "sweep": _swept(training.sweep, words)},
        **settings.changes(),
    }
    if dry_run:
        print_settings(train_encoder(name, **options, dry_run=True), as_json=training.json_output)
        return
    model = training.name or name
    trained = train_encoder(
        name,
        **options,
        name=model,
        resume=training.resume,
        force=training.force,
        trackers=training.report_to or (),
        device=runtime.device,
        dtype=runtime.dtype,
    )
    if not trained.is_main:
        return
    print_results(trained, model, as_json=training.json_output)
    if training.plot is not None:
        draw(training.plot, trained, f"{name} on {trained.entry.recipe.backbone}")
        note(f"drawn to {training.plot}")


def _swept(sweep: str | None, words: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values to try by setting.

    Raises:
        UsageError: No such setting, no value of its type, or values without --sweep.
    """
    if words and sweep is None:
        raise UsageError(f"{words[0]!r} is not expected here; settings to try come after --sweep")
    parts = [*(sweep or "").split(), *words]
    for name, instead in _UNSWEPT.items():
        if any(part.startswith(f"{name}=") for part in parts):
            raise UsageError(f"--sweep does not take {name}; give {instead}")
    return parsed(_AllSettings, parts, "--sweep", many=True)
