"""The commands ``push`` and ``pull``: models to the Hugging Face hub and back."""

from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli.commands.export import named_entry
from promptcli.cli.commands.models import method_line
from promptcli.cli.console import note, result, result_json
from promptcli.cli.opening import configure_libraries, open_registry
from promptcli.cli.options import Force, Json, ModelChoice, Runtime

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
        announce=note,
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
        announce=note,
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
