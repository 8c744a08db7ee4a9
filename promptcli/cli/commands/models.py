"""The commands ``models list``, ``show``, ``import`` and ``remove``.

``export``; ``push`` and ``pull``.
"""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli import models as library
from promptcli.cli import console
from promptcli.cli.options import RECIPE, Json
from promptcli.cli.signatures import Flag, command_of
from promptcli.errors import CheckFailedError, UsageError
from promptcli.models.entries import TENSORS, Entry
from promptcli.recipe import RECIPES, Recipe

if TYPE_CHECKING:
    from promptcli.models.hub import Pushed
    from promptcli.models.registry import Registry
    from promptcli.models.sentence_transformers_format import Exported

Name = Annotated[str, typer.Argument(help="Name of a model.")]


def method_line(recipe: Recipe) -> str:
    """Return a recipe's prompt, pooling and transforms in one line, and denoising if any."""
    denoise = [] if recipe.denoise == "none" else [f"denoise {recipe.denoise}"]
    return " | ".join([recipe.prompt, recipe.pooling, " ".join(recipe.transforms) or "-", *denoise])


def list_models(
    recipes: Annotated[
        bool, typer.Option("--recipes", help="The named recipes of the papers instead.")
    ] = False,
    json: Json = False,
) -> None:
    """List the models: those shipped with promptcli and those you saved."""
    if recipes:
        rows = [{"name": name, **recipe.to_dict()} for name, recipe in RECIPES.items()]
        heads = ["name", "prompt", "pooling", "transforms", "denoise"]
    else:
        rows = _models()
        heads = ["name", "method", "score", "backbone", "width", "origin", "created"]
    if json:
        console.result_json(rows)
        return
    console.result_table(heads, [[_listed(head, row[head]) for head in heads] for row in rows])


def _models() -> list[dict[str, Any]]:
    registry, rows = _registry(), []
    for name in registry.names():
        try:
            rows.append(_row(registry.card(name)))
        except CheckFailedError as error:  # one damaged entry does not hide the others
            console.note(str(error))
    return rows


def show(
    name: Name,
    runs: Annotated[
        bool, typer.Option("--runs", help="The runs of its training instead: settings, scores.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a model: its recipe, where it came from, and its scores."""
    card = _registry().card(name)
    if runs:
        _show_runs(card, as_json=json)
        return
    row = _row(card)
    del row["score"]  # it is among the scores
    shown = {
        **row,
        "recipe": card.recipe.to_dict(),
        "tensors": TENSORS in card.files,
        "prompts": dict(card.prompts.texts),
        "promptcli": card.promptcli,
        "provenance": card.provenance,
        "scores": card.scores,
    }
    if json:
        console.result_json(shown)
    else:
        prompts = {name: repr(text) for name, text in card.prompts.texts.items()}  # spaces count
        scores = {str(number): score for number, score in enumerate(card.scores, 1)}
        _print_fields(shown | {"prompts": prompts, "scores": scores})


def _show_runs(card: Entry, *, as_json: bool) -> None:
    """Print a row for each run of ``train --seeds`` or ``--sweep``: what was changed, and the
    scores by task.
    """
    runs = card.provenance.get("trained", {}).get("runs")
    if not runs:
        raise UsageError(
            f"model {card.name!r} is not of several runs; `promptcli models show {card.name}` has"
            " its scores"
        )
    if as_json:
        console.result_json(runs)
        return
    changed = [field.replace("_", "-") for field in runs[0]["changes"]]
    tasks = [score["task"] for score in runs[0]["scores"]]
    rows = []
    for run in runs:
        scores = [f"{score['trained']:.2f}" for score in run["scores"]]
        steps = f"{run['best_step']} of {run['steps']}"
        rows.append(
            [*map(str, run["changes"].values()), *scores, steps, "*" if run["chosen"] else ""]
        )
    console.result_table([*changed, *tasks, "best step", "chosen"], rows)


def remove(name: Name) -> None:
    """Delete a model you saved."""
    _registry().remove(name)
    console.note(f"removed model {name}")


@command_of(library.import_model, flags={"name": "--name", "changes": RECIPE})
def import_model(import_model: "partial[Entry]", json: Json = False) -> None:
    made = import_model()
    kind = made.provenance["imported"]["kind"]
    if json:
        console.result_json({"name": made.name, "kind": kind, "recipe": made.recipe.to_dict()})
        return
    console.note(f"{kind}: {method_line(made.recipe)}")
    console.result(made.name)


@command_of(
    library.export,
    flags={"folder": "--output -o", "to": Flag("--to", metavar="TARGET", required=True)},
)
def export(
    export: "partial[Exported]",
    named: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.")
    ] = None,
    json: Json = False,
) -> None:
    choice = export.keywords["encoder"]
    if named is not None and choice.model is not None:
        raise UsageError(f"{named!r} and --model {choice.model} both name an encoder; give one")
    made = export(encoder=dataclasses.replace(choice, model=choice.model or named))
    if json:
        console.result_json({**vars(made), "folder": str(made.folder)})
        return
    for remark in made.notes:
        console.note(remark)
    compared = "" if made.cosine is None else f", lowest cosine {made.cosine:.7f} ({made.tool})"
    console.note(f"{made.target}: {made.bytes / 1e6:,.1f} MB in {made.folder}{compared}")
    console.result(made.load)


@command_of(library.push, flags={"encoder": "MODEL", "repo": "OWNER/NAME"})
def push(push: "partial[Pushed]", json: Json = False) -> None:
    made = push()
    if json:
        console.result_json(vars(made))
        return
    console.note(f"commit {made.commit}" if made.changed else f"nothing new: commit {made.commit}")
    console.result(made.url)


@command_of(library.pull, flags={"repo": "OWNER/NAME", "name": "--name"})
def pull(pull: "partial[Entry]", json: Json = False) -> None:
    repo, name = pull.keywords["repo"], pull.keywords["name"]
    made = pull()
    commit = made.provenance["pulled"]["revision"]
    if json:
        pulled = {"repo": repo, "commit": commit, "fingerprint": made.fingerprint}
        console.result_json({"name": name, **pulled, "recipe": made.recipe.to_dict()})
        return
    console.note(f"{repo}@{commit}: {method_line(made.recipe)}")
    console.result(name)


def _registry() -> "Registry":
    from promptcli.models.loading import open_registry

    return open_registry()


def _row(card: Entry) -> dict[str, Any]:
    from promptcli.models.registry import SHIPPED

    return {
        "name": card.name,
        "origin": "shipped" if card.name in SHIPPED else "saved",
        "method": method_line(card.recipe),
        "score": card.scores[0] if card.scores else None,
        "backbone": card.recipe.backbone,
        "width": card.provenance.get("width"),
        "created": card.created,
    }


def _listed(head: str, value: Any) -> str:
    """Return a field of a model as a cell of the list, which has less room than the model's own
    page.
    """
    if head == "created":
        return _cell(value)[:10]  # the day
    if head == "score" and value is not None:
        split = value.get("split", "test")
        task = value.get("task", "") if split == "test" else f"{value.get('task', '')}:{split}"
        number = value.get("value")
        return f"{number:.2f} {task}".strip() if isinstance(number, float | int) else _cell(None)
    return _cell(value)


def _print_fields(fields: dict[str, Any], indent: str = "") -> None:
    width = max(map(len, fields))
    for name, value in fields.items():
        if isinstance(value, dict) and value:
            console.result(f"{indent}{name}:")
            _print_fields(value, f"{indent}  ")
        else:
            console.result_lines(f"{indent}{name:<{width}}  ", _cell(value))


def _cell(value: Any) -> str:
    if isinstance(value, list):  # rows of a table are only shown by --json
        tabular = any(isinstance(row, dict) for row in value)
        return f"{len(value)} rows" if tabular else " ".join(map(str, value)) or "-"
    return "-" if value in (None, {}) else str(value)
