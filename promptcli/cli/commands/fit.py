"""``promptcli fit``: fit a recipe's TF-IDF weights or transforms on sentences, into a registry entry."""

from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli import options
from promptcli.cli.commands.search_poolings import print_task
from promptcli.cli.console import half_interval, note, progress, result_json, result_table
from promptcli.cli.opening import chosen_entry, configure_libraries, open_development_set, open_registry, sentences_of
from promptcli.cli.options import ModelChoice, Runtime

if TYPE_CHECKING:
    from promptcli.fitting.fits import Selection


def fit(
    on: Annotated[
        str,
        typer.Option(
            help="Sentences: a file (of pairs, such as sent0,sent1 or premise,hypothesis: both sides), a task (STS12,"
            " STS-B, ...; all its splits: STS-B:all, SICK-R:all), or `demo`."
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the registry entry to make.")],
    select: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Choose the numbers of the last transform by development pairs: STS-B:dev, demo:dev, or a FILE of"
            " graded pairs; never a test set.",
        ),
    ] = None,
    data_dir: options.DataDir = None,
    text_field: options.SentenceField = None,
    force: options.Force = False,
    json: options.Json = False,
    *,
    choice: ModelChoice,
    runtime: Runtime,
) -> None:
    """Fit a recipe (e.g. --recipe whitening, flow, first-last-tfidf) and save it as a model.

    A task stands for its own test sentences, both sides of every pair; STS-B:all and SICK-R:all for those of all
    splits. With STS12 to STS16 they are the whitening paper's target setting; its other one is a file of NLI pairs.
    Figures of a model fitted on a task have seen the task's text, though never its scores.

    With --select a transform given without numbers (--transform all-but-the-top, whitening, spectral, embed-filter)
    gets those that are best on the pairs; every candidate is printed, and kept with the model.
    """
    configure_libraries(runtime)
    from promptcli.evaluation.evaluator import distinct_sentences
    from promptcli.fitting.fits import check_selection, plan_fits
    from promptcli.fitting.fits import fit as fit_recipe
    from promptcli.registry.registry import Entry

    registry = open_registry()
    registry.check_free(name, force=force)
    chosen = chosen_entry(choice)
    pairs = None if select is None else open_development_set(select, data_dir, runtime)
    if pairs is not None:
        check_selection(chosen.recipe, pairs)
    passes = sum(one.passes for one, _ in plan_fits(chosen.recipe, choosing=pairs is not None))
    sentences = sentences_of(on, data_dir, runtime, text_field=text_field)
    work = passes * len(sentences) + (0 if pairs is None else len(distinct_sentences([pairs])))
    with progress("fit", work) as advance:
        fitted = fit_recipe(
            chosen.recipe,
            sentences,
            choose_by=pairs,
            progress=advance,
            device=runtime.device,
            dtype="stored" if runtime.dtype == "auto" else runtime.dtype,
            offline=runtime.offline,
        )
    encoder = fitted.encoder
    about = {"fitted_on": {"source": on, "sentences": fitted.sentences}, **fitted.selected_on}
    provenance = {**encoder.provenance, "width": encoder.width, **about}
    registry.save(Entry(name, encoder.recipe, encoder.tensors(), provenance), force=force)
    note(f"fitted on {fitted.sentences:,} sentences of {on}; saved as model {name!r}")
    if json:
        result_json({"model": name, "recipe": encoder.recipe.to_dict(), **about})
    elif fitted.selection is not None:
        _print_selection(fitted.selection)


def _print_selection(found: "Selection") -> None:
    """Print every candidate, the recipe without the transform first."""
    print_task(found.task)
    rows = [
        [row.transform, f"{row.value:.2f}", half_interval(row.ci95), "chosen" if row is found.chosen else ""]
        for row in (found.without, *found.candidates)
    ]
    result_table(["transform", "value", "", ""], rows)
