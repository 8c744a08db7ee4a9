"""``promptcli fit``: fit a recipe's TF-IDF weights or transforms on sentences, into a model."""

from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.commands.searching import print_task
from promptcli.cli.console import half_interval, result_json, result_table
from promptcli.cli.options import DataDir, Force, Json, ModelOptions, SentenceField, data_folder

if TYPE_CHECKING:
    from promptcli.training.fit import Selection


def fit(
    on: Annotated[
        str,
        typer.Option(
            help="Sentences: a file (of pairs, such as sent0,sent1 or premise,hypothesis: both sides), a task (STS12,"
            " STS-B, ...; all its splits: STS-B:all, SICK-R:all), or `demo`."
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the model to make.")],
    select: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Choose the numbers of the last transform by development pairs: STS-B:dev, demo:dev, or a FILE of"
            " graded pairs; never a test set.",
        ),
    ] = None,
    data_dir: DataDir = None,
    text_field: SentenceField = None,
    force: Force = False,
    json: Json = False,
    *,
    model: ModelOptions,
) -> None:
    """Fit a recipe (e.g. --model whitening, flow, first-last-tfidf) and save it as a model.

    A task names its test sentences, both sides of every pair; STS-B:all and SICK-R:all those of all splits. With
    STS12 to STS16 they are the whitening paper's target setting; its other one is a file of NLI pairs. A model fitted
    on a task has seen the task's text, though never its scores.

    With --select a transform given without numbers (--transform all-but-the-top, whitening, spectral, embed-filter)
    gets the numbers that are best on the pairs; every candidate is printed, and kept with the model.
    """
    from promptcli.training.fit import fitted

    folder = data_folder(data_dir)
    result = fitted(model.choice(), on, select=select, name=name, data_dir=folder, text_field=text_field, force=force)
    if json:
        result_json({"model": name, "recipe": result.encoder.recipe.to_dict(), **result.provenance})
    elif result.selection is not None:
        _print_selection(result.selection)


def _print_selection(selection: "Selection") -> None:
    """Print every candidate, the recipe without the transform first."""
    print_task(selection.task)
    rows = [
        [row.transform, f"{row.value:.2f}", half_interval(row.ci95), "chosen" if row is selection.chosen else ""]
        for row in (selection.without, *selection.candidates)
    ]
    result_table(["transform", "value", "", ""], rows)
