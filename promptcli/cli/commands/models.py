"""The commands ``models ...``, ``export``, ``push`` and ``pull``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcli.cli import console
from promptcli.cli.options import (
    Force,
    Json,
    ModelArgument,
    NewName,
    chosen_model,
    takes_model,
    with_argument,
)
from promptcli.models.entries import SHIPPED_MODELS, TENSORS, Entry
from promptcli.recipe import LISTED, RECIPES, ModelChoice, Recipe

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a model.")]
Repo = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository of the hub.")]


def method_line(recipe: Recipe) -> str:
    """Return the prompt, pooling and transforms of a recipe in one line, with denoising if any."""
    transforms = " ".join(recipe.transforms) or "-"
    line = f"{recipe.prompt} | {recipe.pooling} | {transforms}"
    if recipe.denoise != "none":
        line += f" | denoise {recipe.denoise}"
    return line


def list_models(
    recipes: Annotated[
        bool,
        typer.Option(
            "--recipes",
            help="List the named recipes instead. --json prints all of them, with complete"
            " prompts.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """List the models: those shipped with promptcli and those you saved."""
    if recipes:
        if json:
            rows = [{"name": name, **recipe.to_dict()} for name, recipe in RECIPES.items()]
            console.print_json(rows)
            return
        lines = [(name, method_line(RECIPES[name])) for name in LISTED]
        console.print_table(["name", "method"], lines)
        unlisted_count = len(RECIPES) - len(LISTED)
        console.note(
            f"{unlisted_count} further recipes of causal models: --json, and docs/causal.md"
        )
        return
    from promptcli.models import loading

    rows = list(map(_row, loading.list_models()))
    if json:
        console.print_json(rows)
        return
    headers = ["name", "trained", "method", "score", "backbone", "width", "origin", "created"]
    cells = []
    for row in rows:
        row |= {"score": _score(row["score"]), "created": row["created"][:10]}  # the day
        cells.append([_cell(row[header]) for header in headers])
    console.print_table(headers, cells)


def show(
    name: Name,
    all: Annotated[
        bool, typer.Option("--all", help="Show every field, not only those that fit on a screen.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a model: its recipe, where it came from, and its scores."""
    from promptcli.models.loading import open_registry

    entry = open_registry().load_manifest(name)
    fields = {
        **_row(entry),
        "recipe": entry.recipe.to_dict(),
        "tensors": TENSORS in entry.files,
        "prompts": dict(entry.prompts.texts),
        "promptcli": entry.promptcli,
        "provenance": entry.provenance,
        "scores": entry.scores,
    }
    del fields["score"]  # ``scores`` begins with it
    if json:
        console.print_json(fields)
    elif all:
        scores = {str(number): score for number, score in enumerate(entry.scores, 1)}
        _print_fields({**fields, "scores": scores})
    else:
        _print_fields({**fields, **_short_fields(entry)})
        console.note("all fields: --all or --json")


def _short_fields(entry: Entry) -> dict[str, Any]:
    """Return the longer fields of a model in a few lines each."""
    recipe = entry.recipe.to_dict().items()
    provenance = {}
    for key, value in entry.provenance.items():
        if not isinstance(value, dict | list):
            provenance[key] = value
    if trained := entry.provenance.get("trained"):
        source = trained.get("source") or "data of its own"
        provenance["trained"] = f"{trained['method']} on {source}"
    return {
        "recipe": {key: value for key, value in recipe if value not in (None, [], "none")},
        "prompts": list(entry.prompts.texts),
        "provenance": provenance,
        "scores": [_score(score) for score in entry.scores],
    }


def remove(name: Name) -> None:
    """Delete a model you saved."""
    from promptcli.models.loading import open_registry

    open_registry().remove(name)
    console.note(f"removed model {name}")


@takes_model("model", "dim")
def import_model(
    choice: ModelChoice,
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A folder or a hub id, which may end in @REVISION."),
    ],
    name: NewName,
    convert: Annotated[
        bool,
        typer.Option(
            "--convert",
            help="Convert pickled weights to safetensors, in a process that reads only tensors.",
        ),
    ] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Import a model trained elsewhere into the registry; its recipe is recognised from its files.

    Supported: checkpoints of SimCSE, PromptBERT and PromCSE, models of sentence-transformers and
    model2vec, peft's prefix tuning and LoRA, plain language models.
    """
    from promptcli.models.importing import import_model

    entry = import_model(source, name, convert=convert, force=force, **choice.changes)
    kind = entry.provenance["imported"]["kind"]
    if json:
        console.print_json({"name": entry.name, "kind": kind, "recipe": entry.recipe.to_dict()})
        return
    console.note(f"{kind}: {method_line(entry.recipe)}")
    console.print_line(entry.name)


@takes_model()
def export(
    choice: ModelChoice,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
    to: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help="`sentence-transformers`; `onnx` or `openvino`: the encoder as one graph;"
            " `model2vec`: a static recipe as a table of words; `peft`: a deep prefix or a LoRA;"
            " `merged`: a tuned backbone as a plain checkpoint.",
        ),
    ],
    model_argument: ModelArgument = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="For peft: hub id of the base model, which is recorded, e.g. OWNER/NAME@REVISION."
        ),
    ] = None,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="For onnx: also write 8-bit weights, and measure their loss."),
    ] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write an encoder for another program, in float32, and compare the vectors of both.

    The folder is written only if it reproduces the encoder: every cosine is at least 0.99999.
    """
    from promptcli.models.exporting import export

    choice = with_argument(choice, model_argument)
    exported = export(choice, output, to, base=base, int8=int8, force=force)
    if json:
        console.print_json({**vars(exported), "folder": str(exported.folder)})
        return
    for message in exported.notes:
        console.note(message)
    summary = f"{exported.target}: {exported.bytes / 1e6:,.1f} MB in {exported.folder}"
    if exported.cosine is not None:
        summary += f", lowest cosine {exported.cosine:.7f} ({exported.tool})"
    console.note(summary)
    console.print_line(exported.load)


def push(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Name of a model or recipe, or a folder.")
    ],
    repo: Repo,
    private: Annotated[
        bool, typer.Option("--private", help="Create the repository as private.")
    ] = False,
    json: Json = False,
) -> None:
    """Send a model to the Hugging Face hub in one commit: card, recipe, learned tensors.

    A backbone from the hub is only named, with its revision; any other is uploaded. If the same
    model is sent again, no commit is made. A changed model replaces its earlier files; other files
    in the repository stay. The token comes from `hf auth login` or $HF_TOKEN.
    """
    from promptcli.models.hub import push

    pushed = push(chosen_model(model), repo, private=private)
    if json:
        console.print_json(vars(pushed))
        return
    unchanged = "" if pushed.changed else "nothing new: "
    console.note(f"{unchanged}commit {pushed.commit}")
    console.print_line(pushed.url)


def pull(
    repo: Repo,
    name: NewName,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit. Default: the main branch.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Save a model that was pushed to the hub, and check its files.

    It runs no code from the hub.
    """
    from promptcli.models.hub import pull

    entry = pull(repo, name, revision=revision, force=force)
    commit = entry.provenance["pulled"]["revision"]
    if json:
        console.print_json(
            {
                "name": name,
                "repo": repo,
                "commit": commit,
                "fingerprint": entry.fingerprint,
                "recipe": entry.recipe.to_dict(),
            }
        )
        return
    console.note(f"{repo}@{commit}: {method_line(entry.recipe)}")
    console.print_line(name)


def _row(entry: Entry) -> dict[str, Any]:
    """Return the fields of a model that the list shows."""
    return {
        "name": entry.name,
        "origin": "shipped" if entry.name in SHIPPED_MODELS else "saved",
        "trained": entry.provenance.get("trained", {}).get("method"),
        "method": method_line(entry.recipe),
        "score": entry.scores[0] if entry.scores else None,
        "backbone": entry.recipe.backbone,
        "width": entry.provenance.get("width"),
        "created": entry.created,
    }


def _score(score: Mapping[str, Any] | None) -> str | None:
    """Return a score in short form: ``85.35 STS-B:dev``."""
    value = score and score.get("value")
    if score is None or not isinstance(value, float | int):
        return None
    split = score.get("split", "test")
    return f"{value:.2f} {score.get('task', '')}{'' if split == 'test' else f':{split}'}".strip()


def _print_fields(fields: Mapping[str, Any], indent: str = "") -> None:
    width = max(map(len, fields))
    for name, value in fields.items():
        if isinstance(value, dict) and value:
            console.print_line(f"{indent}{name}:")
            _print_fields(value, f"{indent}  ")
        else:
            console.print_marked(f"{indent}{name:<{width}}  ", _cell(value))


def _cell(value: Any) -> str:
    """Return a field of a model as text; of a list of records, only their number."""
    if value in (None, "", {}, []):
        return "-"
    if not isinstance(value, list):
        return str(value)
    if any(isinstance(row, dict) for row in value):
        return f"{len(value)} rows"
    return " ".join(map(str, value))
