"""The commands ``export``, ``push`` and ``pull``: an encoder as other programs load it; models to the hub and back."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.commands.models import method_line
from promptcli.cli.console import note, result, result_json
from promptcli.cli.options import Json
from promptcli.cli.signatures import Flag, command_of
from promptcli.errors import UsageError
from promptcli.models import exchange

if TYPE_CHECKING:
    from promptcli.models.entries import Entry
    from promptcli.models.forms import Exported
    from promptcli.models.hub import Pushed


@command_of(exchange.export, flags={"folder": "--output -o", "to": Flag("--to", metavar="TARGET", required=True)})
def export(
    export: "partial[Exported]",
    named: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.")] = None,
    json: Json = False,
) -> None:
    choice = export.keywords["encoder"]
    if named is not None and choice.model is not None:
        raise UsageError(f"{named!r} and --model {choice.model} both name an encoder; give one")
    made = export(encoder=dataclasses.replace(choice, model=choice.model or named))
    if json:
        result_json(made.to_dict())
        return
    for remark in made.notes:
        note(remark)
    compared = "" if made.cosine is None else f", lowest cosine {made.cosine:.7f} ({made.tool})"
    note(f"{made.target}: {made.bytes / 1e6:,.1f} MB in {made.folder}{compared}")
    result(made.load)


@command_of(exchange.push, flags={"encoder": "MODEL", "repo": "OWNER/NAME"})
def push(push: "partial[Pushed]", json: Json = False) -> None:
    _say_rule(push.keywords["repo"])
    made = push()
    if json:
        result_json(vars(made))
        return
    note(f"commit {made.commit}" if made.changed else f"nothing new: commit {made.commit}")
    result(made.url)


@command_of(exchange.pull, flags={"repo": "OWNER/NAME", "name": "--name"})
def pull(pull: "partial[Entry]", json: Json = False) -> None:
    repo, name = pull.keywords["repo"], pull.keywords["name"]
    _say_rule(repo)
    made = pull()
    commit = made.provenance["pulled"]["revision"]
    if json:
        pulled = {"repo": repo, "commit": commit, "fingerprint": made.fingerprint}
        result_json({"name": name, **pulled, "recipe": made.recipe.to_dict()})
        return
    note(f"{repo}@{commit}: {method_line(made.recipe)}")
    result(name)


def _say_rule(repo: str) -> None:
    if Path(repo).is_dir():
        note(f"{repo} means the hub's here; the folder of that name is left alone (promptcli models import reads it)")
