"""The commands ``export``, ``push`` and ``pull``: an encoder as other programs load it; models to the hub and back."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli.commands.models import method_line
from promptcli.cli.console import note, result, result_json
from promptcli.cli.options import Force, Json, ModelOptions, choice_of
from promptcli.errors import UsageError

Repo = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="A repository of the hub.")]


def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to be made.", metavar="FOLDER")],
    to: Annotated[
        str,
        typer.Option(help="sentence-transformers, onnx, openvino, model2vec, peft or merged.", metavar="TARGET"),
    ],
    named: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.")] = None,
    base: Annotated[
        str | None, typer.Option(help="peft: OWNER/NAME of the hub to write down as the base, @REVISION after it.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="onnx: also 8-bit weights, with the loss they cost.")] = False,
    force: Force = False,
    json: Json = False,
    *,
    model: ModelOptions,
) -> None:
    """Write an encoder as another program loads it, in float32, and compare that program's vectors with its own.

    A folder is written only if it holds the encoder exactly (every cosine at least 0.99999); else the reason is said.
    onnx, openvino: the whole encoder as one graph; peft: a deep prefix or a LoRA; model2vec: a static recipe as a table
    of words; merged: a tuned backbone as a plain checkpoint.
    """
    from promptcli.models import exchange

    if named is not None and model.model is not None:
        raise UsageError(f"{named!r} and --model {model.model} both name an encoder; give one")
    choice = dataclasses.replace(model, model=model.model or named).choice()
    made = exchange.export(choice, output, to, base=base, int8=int8, force=force)
    if json:
        result_json(made.to_dict())
        return
    for remark in made.notes:
        note(remark)
    compared = "" if made.cosine is None else f", lowest cosine {made.cosine:.7f} ({made.tool})"
    note(f"{made.target}: {made.bytes / 1e6:,.1f} MB in {made.folder}{compared}")
    result(made.load)


def push(
    model: Annotated[str, typer.Argument(help="Name of a model or recipe, or a folder.")],
    repo: Repo,
    private: Annotated[bool, typer.Option("--private", help="Only its owner may see the repository.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="The branch, made where it is not there. Default: the main one.")
    ] = None,
    json: Json = False,
) -> None:
    """Send a model to the Hugging Face hub in one commit: card, recipe, learned numbers.

    A backbone of the hub is named by id and revision; any other is sent, too. Sent again, the same model makes no new
    commit; the files of an earlier one are replaced, the card too, and files of your own are left alone. The token is
    that of `hf auth login` or $HF_TOKEN.
    """
    from promptcli.models import exchange

    _say_rule(repo)
    made = exchange.push(choice_of(model), repo, private=private, revision=revision)
    if json:
        result_json(made.to_dict())
        return
    note(f"commit {made.commit}" if made.changed else f"nothing new: commit {made.commit}")
    result(made.url)


def pull(
    repo: Repo,
    name: Annotated[str, typer.Option(help="Name of the model to make.")],
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit. Default: the main branch.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Download a model that was pushed to the hub: the same encoder, by its fingerprint; no code in it is run."""
    from promptcli.models import exchange

    _say_rule(repo)
    made = exchange.pull(repo, name, revision=revision, force=force)
    if json:
        result_json(made.to_dict())
        return
    note(f"{repo}@{made.commit}: {method_line(made.entry.recipe)}")
    result(name)


def _say_rule(repo: str) -> None:
    if Path(repo).is_dir():
        note(f"{repo} means the hub's here; the folder of that name is left alone (promptcli models import reads it)")
