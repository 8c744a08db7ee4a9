"""The commands ``export``, ``push`` and ``pull``: an encoder as other programs load it; models to the hub and back."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.commands.models import method_line
from promptcli.cli.console import note, result, result_json
from promptcli.cli.opening import chosen_entry, configure_libraries, open_registry
from promptcli.cli.options import Force, Json, ModelChoice, Runtime
from promptcli.errors import UsageError, unknown
from promptcli.recipe import RECIPES

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
    made = export_entry(entry, to, output, choices=choices, offline=runtime.offline, force=force)
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


Repo = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="A repository of the hub.")]


def push(
    model: Annotated[str, typer.Argument(help="Entry or alias of the registry, or a named recipe.")],
    repo: Repo,
    private: Annotated[bool, typer.Option("--private", help="Only its owner may see the repository.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="The branch, made where it is not there. Default: the main one.")
    ] = None,
    json: Json = False,
    *,
    runtime: Runtime,
) -> None:
    """Send a model to the Hugging Face hub in one commit: card, recipe, learned numbers.

    A backbone of the hub is named by id and revision; any other is sent, too. Sent again, the same model makes no new
    commit; the files of an earlier one are replaced, the card too, and files of your own are left alone. The token is
    that of `hf auth login` or $HF_TOKEN.
    """
    configure_libraries(runtime)
    from promptcli.interchange import hub

    _say_rule(repo)
    made = hub.push(
        hub.client(),
        named_entry(model, ModelChoice()),
        repo,
        private=private,
        revision=revision,
        offline=runtime.offline,
    )
    if json:
        result_json(made.to_dict())
        return
    note(f"commit {made.commit}" if made.changed else f"nothing new: commit {made.commit}")
    result(made.url)


def pull(
    repo: Repo,
    name: Annotated[str, typer.Option(help="Name of the registry entry to make.")],
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit. Default: the main branch.")] = None,
    force: Force = False,
    json: Json = False,
    *,
    runtime: Runtime,
) -> None:
    """Save as a model what `push` sent to the hub: the same encoder, by its fingerprint; nothing in it is run."""
    configure_libraries(runtime)
    from promptcli.interchange import hub

    _say_rule(repo)
    made = hub.pull(
        hub.client(),
        open_registry(),
        repo,
        name,
        revision=revision,
        offline=runtime.offline,
        force=force,
    )
    if json:
        result_json(made.to_dict())
        return
    note(f"{repo}@{made.commit}: {method_line(made.entry.recipe)}")
    result(name)


def _say_rule(repo: str) -> None:
    if Path(repo).is_dir():
        rule = (
            f"{repo} is the hub's here; the folder of that name is left alone (promptcli models import takes folders)"
        )
        note(rule)
