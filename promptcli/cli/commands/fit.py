"""``promptcli fit``: fit a recipe's TF-IDF weights or transforms on sentences, into a model."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.commands.searching import print_task
from promptcli.cli.console import half_interval, result_json, result_table
from promptcli.cli.options import DataDir, Force, Json, ModelOptions, Runtime, SentenceField, data_folder

if TYPE_CHECKING:
    from promptcli.training.fits import Selection


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
    runtime: Runtime,
) -> None:
    """Fit a recipe (e.g. --model whitening, flow, first-last-tfidf) and save it as a model.

    A task stands for its own test sentences, both sides of every pair; STS-B:all and SICK-R:all for those of all
    splits. With STS12 to STS16 they are the whitening paper's target setting; its other one is a file of NLI pairs.
    Figures of a model fitted on a task have seen the task's text, though never its scores.

    With --select a transform given without numbers (--transform all-but-the-top, whitening, spectral, embed-filter)
    gets those that are best on the pairs; every candidate is printed, and kept with the model.
    """
    from promptcli.training.fit import fit_recipe

    options: dict[str, Any] = {"select": select, "data_dir": data_folder(data_dir), "text_field": text_field}
    made = fit_recipe(model.choice(), on, name=name, force=force, **options, **runtime.where)
    if json:
        about = {"fitted_on": {"source": on, "sentences": made.sentences}, **made.selected_on}
        result_json({"model": name, "recipe": made.encoder.recipe.to_dict(), **about})
    elif made.selection is not None:
        _print_selection(made.selection)


def _print_selection(found: "Selection") -> None:
    """Print every candidate, the recipe without the transform first."""
    print_task(found.task)
    rows = [
        [row.transform, f"{row.value:.2f}", half_interval(row.ci95), "chosen" if row is found.chosen else ""]
        for row in (found.without, *found.candidates)
    ]
    result_table(["transform", "value", "", ""], rows)
