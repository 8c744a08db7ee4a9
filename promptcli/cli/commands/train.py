"""`promptcli train`: a method on a backbone, into a model of your own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import note, result, result_json, result_table, value_typed
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
from promptcli.cli.pictures.plots import BLUE, RED, check_picture, drawing
from promptcli.errors import UsageError
from promptcli.training.methods import METHODS, all_settings, find_method, forms

if TYPE_CHECKING:
    from promptcli.training.train import Trained

#: Heads and rows.
_Table = tuple[Sequence[str], Sequence[Sequence[str]]]
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
        bool,
        typer.Option(
            "--supervised", help="Refuse data without pairs or triplets, which are recognised by their columns."
        ),
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
    trackers: Annotated[
        list[str] | None,
        typer.Option("--report-to", help="Tracker of accelerate: tensorboard, wandb, ...; repeatable."),
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


def train(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD", help=f"{', '.join(METHODS)}. Also what follows --sweep.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="The same as the first word.")] = None,
    *,
    training: TrainingOptions,
    settings: SettingsOptions,
    runtime: Runtime,
) -> None:
    """Train a sentence encoder; the checkpoint that is best on the development pairs is saved as a model."""
    swept = words or []
    if method is None and swept and "=" not in swept[0]:
        method, *swept = swept
    if not method:
        raise UsageError(f"which method? e.g. `promptcli train simcse`; methods: {', '.join(METHODS)}")
    if training.plot is not None:
        check_picture(training.plot, force=training.force)
    from promptcli.training.train import train as train_encoder
    from promptcli.training.train import training_settings

    data, name, sweep = training.data or [], training.name or method, _swept(training.sweep, swept)
    options: dict[str, Any] = {
        "data": [Path(one) for one in data] if len(data) > 1 else data[0] if data else None,
        "backbone": training.backbone or (None if training.start or training.paper else default_backbone()),
        **{field: getattr(training, field) for field in ("start", "supervised", "paper", "on")},
        **{"data_dir": data_folder(training.data_dir), **settings.changes()},
    }
    if training.dry_run:
        _print_settings(training_settings(method, **options), as_json=training.json_output)
        return
    trained = train_encoder(
        method,
        **options,
        name=name,
        tests=training.test or (),
        seeds=training.seeds,
        sweep=sweep,
        resume=training.resume,
        force=training.force,
        trackers=training.trackers or (),
        device=runtime.device,
        dtype=runtime.dtype,
    )
    if not trained.is_main:
        return
    _print_results(trained, name, as_json=training.json_output)
    if training.plot is not None:
        _draw(training.plot, trained, f"{method} on {trained.entry.recipe.backbone}")
        note(f"drawn to {training.plot}")


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


def _print_settings(shown: dict[str, object], *, as_json: bool) -> None:
    """Print what a run would do."""
    if as_json:
        result_json(shown)
        return
    for key, value in shown.items():
        if key not in ("recipe", "template"):  # views show them
            result(f"{key.replace('_', '-')} = {' | '.join(value) if isinstance(value, list) else value_typed(value)}")


def _print_results(trained: "Trained", name: str, *, as_json: bool) -> None:
    """Print the figures of all runs: one run's before and after, several runs' mean and spread."""
    runs, best = trained.runs, trained.best
    if as_json:
        result_json({"model": name, **trained.to_dict()})
    else:
        result_table(*(_spread(trained) if len(runs) > 1 else _before_and_after(trained)))
        if best.nearest_words:
            result("")
            words = [(one.word, " ".join(one.nearest)) for one in best.nearest_words]
            result_table(("word", "nearest to its vector"), words)
    worse = sum(not row.better for row in runs)
    if worse:
        which = "training" if len(runs) == 1 else f"{worse} of {len(runs)} runs"
        note(
            f"{which} made it no better than the untrained encoder on the development pairs; the best numbers seen are"
            " kept, the start among them: try another --learning-rate or more --epochs"
        )
    state = "saved as" if trained.made else "already there, unchanged:"
    note(f"{state} model {name!r}; use it: promptcli embed FILE -m {name}")


def _before_and_after(trained: "Trained") -> _Table:
    rows = [(task, f"{before:.2f}", f"{trained.scores[task]:.2f}") for task, before in trained.untrained.items()]
    return ("task", "untrained", "trained"), rows


def _spread(trained: "Trained") -> _Table:
    settings = [name.replace("_", "-") for name in trained.runs[0].changes]
    rows = []
    for one in trained.summary:
        figures = [trained.untrained[one.task], one.mean, one.std, one.min, one.max]
        rows.append((*map(str, one.changes.values()), one.task, *(f"{x:.2f}" for x in figures), str(one.seeds)))
    return (*settings, "task", "untrained", "mean", "std", "min", "max", "seeds"), rows


def _draw(path: Path, trained: "Trained", title: str) -> None:
    """Draw one run's loss and development score by step, or of a sweep the score by the first swept setting."""
    on = next(iter(trained.scores))
    with drawing(path, 8, 4.5, dpi=120) as figure:
        axes = figure.subplots()
        axes.set_title(title)
        if trained.runs[0].changes:
            _draw_sweep(axes, trained, on)
        else:
            _draw_curve(axes, trained, on)


def _draw_curve(axes: Any, trained: "Trained", on: str) -> None:
    curve = trained.curve
    axes.plot([score.step for score in curve], [score.value for score in curve], "o-", color=BLUE, label=on)
    best = [score for score in curve if score.best][-1]
    axes.plot(best.step, best.value, "*", color=BLUE, markersize=14, label="kept")
    axes.set(xlabel="step", ylabel=f"Spearman x 100, {on}")
    losses = [score for score in curve if score.loss is not None]
    other = axes.twinx()
    other.plot([score.step for score in losses], [score.loss for score in losses], "--", color=RED, label="loss")
    other.set_ylabel("loss")
    handles = [line for axis in (axes, other) for line in axis.get_lines()]
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _draw_sweep(axes: Any, trained: "Trained", on: str) -> None:
    name, *others = trained.runs[0].changes
    lines: dict[str, list[tuple[str, float, float]]] = {}
    for summary in (summary for summary in trained.summary if summary.task == on):
        rest = ", ".join(f"{other.replace('_', '-')} {summary.changes[other]}" for other in others)
        lines.setdefault(rest, []).append((str(summary.changes[name]), summary.mean, summary.std))
    markers = "osD^vPX*"
    for number, (label, points) in enumerate(lines.items()):
        at, means, spreads = zip(*points, strict=True)
        axes.errorbar(at, means, spreads, marker=markers[number % len(markers)], capsize=3, label=label or None)
    axes.axhline(trained.runs[0].untrained[on], color="0.5", linestyle=":", label="untrained")
    axes.set(xlabel=name.replace("_", " "), ylabel=f"Spearman x 100, {on}")
    axes.legend()
