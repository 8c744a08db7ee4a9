"""The command ``export``: an encoder as other programs load it."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.console import note, result, result_json
from promptcli.cli.opening import chosen_entry, configure_libraries, open_registry
from promptcli.cli.options import Force, Json, ModelChoice, Runtime
from promptcli.encoder.recipe import RECIPES
from promptcli.errors import UsageError, unknown

if TYPE_CHECKING:
    from promptcli.registry.registry import Entry

#: The names of the table of targets, which is read after torch is needed.
TARGETS = ("sentence-transformers", "onnx", "openvino", "model2vec", "peft", "merged")

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="Entry or alias of the registry, or a named recipe; without it --recipe and its options say what.",
    ),
]


def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to be made.", metavar="FOLDER")],
    to: Annotated[str, typer.Option(help=f"{', '.join(TARGETS)}.", metavar="TARGET")],
    named: Model = None,
    base: Annotated[
        str | None, typer.Option(help="peft: OWNER/NAME of the hub to write down as the base, @REVISION after it.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="onnx: also 8-bit weights, with the loss they cost.")] = False,
    force: Force = False,
    json: Json = False,
    *,
    choice: ModelChoice,
    runtime: Runtime,
) -> None:
    """Write an encoder as another program loads it, in float32, and compare that program's vectors with its own.

    A folder is written only if it holds the encoder exactly (every cosine at least 0.99999); else the reason is said.
    onnx, openvino: the whole encoder as one graph; peft: a deep prefix or a LoRA; model2vec: a static recipe as a table
    of words; merged: a tuned backbone as a plain checkpoint.
    """
    configure_libraries(runtime)
    if to not in TARGETS:
        raise unknown("target", to, TARGETS)
    from promptcli.interchange.export import export as export_entry
    from promptcli.interchange.target import Choices

    entry = named_entry(named, choice)
    choices = Choices(base, int8)
    made = export_entry(entry, to, output, choices=choices, offline=runtime.offline, force=force, announce=note)
    if json:
        result_json(made.to_dict())
        return
    for remark in made.notes:
        note(remark)
    compared = "" if made.cosine is None else f", lowest cosine {made.cosine:.7f} ({made.tool})"
    note(f"{made.target}: {made.bytes / 1e6:,.1f} MB in {made.folder}{compared}")
    result(made.load)


def named_entry(model: str | None, choice: ModelChoice) -> "Entry":
    """Return the entry that an argument or the options name.

    Raises:
        UsageError: Both name one.
    """
    if model is None:
        return chosen_entry(choice)
    if choice.model or choice.recipe:
        raise UsageError(f"{model!r} and --model or --recipe both name an encoder; give one")
    registry = open_registry()
    known = model in RECIPES and model not in (*registry.names(), *registry.aliases())
    return chosen_entry(dataclasses.replace(choice, model=None if known else model, recipe=model if known else None))
