"""Options of `promptcli train` and `promptcli optiprompt`, in groups. Part of the entrance."""

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcli.errors import UsageError, unknown
from promptcli.training.methods import METHODS
from promptcli.training.methods.method import OWN, VALUES, Method, TrainingSettings

#: Settings that are no axis of a sweep, and what to give instead.
_UNSWEPT = {"seed": "--seeds N", "template": "--template, a run for each"}
_PANEL, _OWN, _MANY = "Settings (in force: --dry-run)", "Settings of single methods", "Several runs"


def _option(text: str, *names: str, panel: str = _PANEL, **bounds: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **bounds)


@dataclass(frozen=True)
class SettingsOptions:
    """Changes of a method's settings."""

    batch_size: Annotated[int | None, _option("Examples a step.", min=2)] = None
    learning_rate: Annotated[float | None, _option("Start of the linear decay.", min=0)] = None
    epochs: Annotated[float | None, _option("Passes over the data.", min=0)] = None
    eval_steps: Annotated[int | None, _option("Steps between two development scores.", min=1)] = None
    temperature: Annotated[float | None, _option("Of the contrastive loss.", min=1e-4)] = None
    max_length: Annotated[int | None, _option("Longest sentence in tokens.", min=3)] = None
    dropout: Annotated[float | None, _option("Of the backbone: it makes the second view.", min=0, max=0.9)] = None
    weight_decay: Annotated[float | None, _option("AdamW's.", min=0)] = None
    seed: Annotated[int | None, _option("Of everything random.", min=0)] = None
    mask_duplicates: Annotated[
        bool | None,
        _option(
            "Equal sentences of a batch are no negatives of one another.", "--mask-duplicates/--no-mask-duplicates"
        ),
    ] = None
    chunk_tokens: Annotated[int | None, _option("Padded tokens of one forward pass; 0: by device.", min=0)] = None
    gradient_caching: Annotated[
        bool | None,
        _option(
            "Hold one pass's activations at a time: batches beyond memory.", "--gradient-caching/--no-gradient-caching"
        ),
    ] = None
    prefix_length: Annotated[int | None, _option("dcpcse: length of the prefix.", panel=_OWN, min=1)] = None
    mlm_weight: Annotated[
        float | None, _option("dcpcse, simcse: weight of a masked-LM loss.", panel=_OWN, min=0, max=1)
    ] = None
    mlm_head: Annotated[
        str | None, _option("dcpcse, simcse: trained (the code) or frozen (the paper).", panel=_OWN)
    ] = None
    template: Annotated[
        list[str] | None,
        _option(
            "promptbert, optiprompt, scpcse: template with [X] and [MASK], or a named one; given twice: one for each"
            " view.",
            panel=_OWN,
        ),
    ] = None
    two_templates: Annotated[
        bool | None,
        _option("promptbert: one template for each view.", "--two-templates/--same-template", panel=_OWN),
    ] = None
    denoising: Annotated[
        bool | None, _option("promptbert: template denoising.", "--denoising/--no-denoising", panel=_OWN)
    ] = None
    bias_positions: Annotated[str | None, _option("promptbert: paper, or code (off by 2 for RoBERTa).", panel=_OWN)] = (
        None
    )
    slots: Annotated[str | None, _option("optiprompt: position, or lookup as in the code.", panel=_OWN)] = None
    selection: Annotated[
        str | None,
        _option("promptbert, optiprompt: development score as at test, or as in the code.", panel=_OWN),
    ] = None

    def changes(self, method: Method) -> dict[str, Any]:
        """Return what was given.

        Raises:
            UsageError: A setting that the method does not read, or a value that is not allowed.
        """
        given = {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, [])}
        if "template" in given:
            given["template"] = tuple(given["template"])
            if len(given["template"]) > 2:
                raise UsageError(f"--template is given {len(given['template'])} times; there are two views")
        for name, value in given.items():
            check_setting(method, name, value)
        return given


@dataclass(frozen=True)
class TrainingOptions:
    """What is trained on what, and where it goes."""

    data: Annotated[
        str | None,
        typer.Option(
            help="Sentences, pairs or triplets (sent0, sent1, hard_neg): a file, demo, wiki1m_for_simcse,"
            " nli_for_simcse. Default: demo."
        ),
    ] = None
    supervised: Annotated[
        bool, typer.Option("--supervised", help="Pairs or triplets are wanted; they are known by their columns.")
    ] = False
    on: Annotated[str | None, typer.Option("--on", help="Development task. Default: demo:dev, or STS-B:dev.")] = None
    test: Annotated[
        list[str] | None,
        typer.Option(help="Task scored at the end; repeatable. Default: the test of --on.", show_default=False),
    ] = None
    data_dir: Annotated[Path | None, typer.Option(help="SentEval folder of the development task.")] = None
    backbone: Annotated[str | None, typer.Option(help="Pre-trained model. Default: mini.")] = None
    name: Annotated[str | None, typer.Option(help="Name of the registry entry. Default: the method's.")] = None
    force: Annotated[bool, typer.Option("--force", help="Replace an entry or a picture of that name.")] = False
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run of that name.")] = False
    paper: Annotated[bool, typer.Option("--paper", help="The published settings, backbone and data.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the settings in force and stop.")] = False
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the curve, or the sweep, into a .png or .svg file (needs matplotlib)."),
    ] = None
    report_to: Annotated[
        list[str] | None,
        typer.Option(help="Tracker of accelerate: tensorboard, wandb, ...; repeatable.", show_default=False),
    ] = None
    json_output: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False


@dataclass(frozen=True)
class SeveralRuns:
    """Several runs instead of one."""

    seeds: Annotated[
        int | None, typer.Option(min=1, help="Run so many seeds, 0, 1, ...: mean and spread.", rich_help_panel=_MANY)
    ] = None
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="SETTING=V,V ...",
            help="Run every combination, e.g. `--sweep batch-size=64,128 learning-rate=3e-3,1e-2`.",
            rich_help_panel=_MANY,
        ),
    ] = None
    more: Annotated[list[str] | None, typer.Argument(metavar="[SETTING=V,V]...", hidden=True)] = None

    def swept(self, method: Method) -> dict[str, list[Any]]:
        """Return the values to try by setting.

        Raises:
            UsageError: No such setting, no value of its type, or values without --sweep.
        """
        if self.more and self.sweep is None:
            raise UsageError(f"{self.more[0]!r} is not expected here; settings to try stand behind --sweep")
        found: dict[str, list[Any]] = {}
        for part in [*(self.sweep or "").split(), *(self.more or [])]:
            name, separator, values = part.partition("=")
            name = name.replace("-", "_")
            if not separator or not values:
                raise UsageError(f"--sweep takes SETTING=V,V as in learning-rate=3e-3,1e-2; got {part!r}")
            if name in _UNSWEPT:
                raise UsageError(f"--sweep does not take {name}; give {_UNSWEPT[name]}")
            found[name] = [_parsed(method, name, value) for value in values.split(",")]
        return found


def settings_in_force() -> str:
    """Return, method by method, the main settings for small backbones and for BERT-base, for the help text."""
    lines = ["In force where no option says otherwise (other backbones, all settings: --dry-run):"]
    for method in (form for pair in METHODS.values() for form in pair if form is not None):
        names = ["batch_size", "learning_rate", "epochs", *(name for name in method.reads if name == "prefix_length")]
        small, base = (
            ", ".join(f"{getattr(settings, name):g}" for name in names)
            for settings in (method.small, method.settings("bert-base-uncased", 0))
        )
        labels = ", ".join(name.replace("_", "-") for name in names)
        form = " supervised" if method.keeps_head else ""
        lines.append(f"{method.name}{form} ({labels}): mini {small}; bert-base-uncased {base}")
    return "\n\n".join(lines)


def check_setting(method: Method, name: str, value: object) -> None:
    """Refuse a setting that the method does not read, and a value that its closed list does not hold.

    Raises:
        UsageError: It is so.
    """
    option = name.replace("_", "-")
    if name in OWN and name not in method.reads:
        own = ", ".join(f"--{other.replace('_', '-')}" for other in method.reads) or "none"
        raise UsageError(f"method {method.name} has no setting {option}; of its own it has: {own}")
    if name in VALUES and value not in VALUES[name]:
        raise unknown(option, str(value), VALUES[name])


def _parsed(method: Method, name: str, text: str) -> Any:
    kinds = typing.get_type_hints(TrainingSettings)
    if name not in kinds:
        raise unknown("setting", name.replace("_", "-"), [other.replace("_", "-") for other in kinds])
    kind = kinds[name]
    flags = {"true": True, "false": False}
    try:
        value = flags[text] if kind is bool else kind(text)
    except (KeyError, ValueError):
        allowed = "true or false" if kind is bool else f"a number such as {getattr(TrainingSettings(), name)}"
        raise UsageError(f"--sweep {name.replace('_', '-')}: {text!r} is no value; it takes {allowed}") from None
    check_setting(method, name, value)
    return value
