"""The command ``fit``: fits TF-IDF weights or transforms on sentences, and saves the model."""

from typing import Annotated

import typer

from promptcli import training
from promptcli.cli.console import half_interval, print_json, print_table, show
from promptcli.cli.options import (
    DataDir,
    Force,
    Json,
    ModelArgument,
    NewName,
    TextField,
    data_folder,
    takes_model,
    with_argument,
)
from promptcli.recipe import ModelChoice


@takes_model()
def fit(
    choice: ModelChoice,
    on: Annotated[
        str,
        typer.Option(
            help="Sentences: a file (of pairs both sides), a task (STS12, STS-B, ...), or demo."
        ),
    ],
    name: NewName,
    model_argument: ModelArgument = None,
    select: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Development pairs that choose the parameters of the last transform, if it is"
            " given without any (all-but-the-top, whitening, spectral, embed-filter):"
            " STS-B:dev, demo:dev, or a FILE of graded pairs; never a test set. All"
            " candidates are printed, and kept with the model.",
        ),
    ] = None,
    data_dir: DataDir = None,
    text_field: TextField = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Fit a recipe's TF-IDF weights or transforms on sentences."""
    from promptcli.models.loading import open_registry

    encoder = training.fit(
        with_argument(choice, model_argument),
        on,
        select=select,
        name=name,
        data_dir=data_folder(data_dir),
        text_field=text_field,
        force=force,
    )
    provenance = open_registry().load_manifest(name).provenance
    facts = {key: provenance[key] for key in ("fitted_on", "selected_on") if key in provenance}
    if json:
        print_json({"model": name, "recipe": encoder.recipe.to_dict(), **facts})
        return
    selection = facts.get("selected_on")
    if selection is not None:
        show(f"{selection['task']}, {selection['pairs']:,} pairs")
        show("Spearman x 100, ± half of the 95% interval")
        rows = []
        for row in (selection["without"], *selection["candidates"]):
            mark = "chosen" if row["transform"] == selection["chosen"] else ""
            rows.append([row["transform"], f"{row['value']:.2f}", half_interval(row["ci95"]), mark])
        print_table(["transform", "value", "", ""], rows)
