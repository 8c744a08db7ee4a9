"""``promptcli fit``: fit a recipe's TF-IDF weights, whitening or flow on sentences, into a registry entry."""

from typing import Annotated

import typer

from promptcli.cli import options
from promptcli.cli.console import note, progress
from promptcli.cli.opening import announcer, chosen_entry, configure_libraries, open_registry, sentences_of
from promptcli.cli.options import ModelChoice, Runtime


def fit(
    on: Annotated[
        str,
        typer.Option(
            "--on",
            help="Sentences: a file (of pairs, such as sent0,sent1 or premise,hypothesis: both sides), a task (STS12,"
            " STS-B, ...; all its splits: STS-B:all, SICK-R:all), or `demo`.",
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="Name of the registry entry to make.")],
    data_dir: options.DataDir = None,
    text_field: options.SentenceField = None,
    force: options.Force = False,
    *,
    choice: ModelChoice,
    runtime: Runtime,
) -> None:
    """Fit a recipe (e.g. --recipe whitening, flow, first-last-tfidf) and save it as a model.

    A task stands for its own test sentences, both sides of every pair; STS-B:all and SICK-R:all for those of all
    splits. With STS12 to STS16 they are the whitening paper's target setting; its other one is a file of NLI pairs.
    Figures of a model fitted on a task have seen the task's text, though never its scores.
    """
    configure_libraries(runtime)
    from promptcli.fitting.fits import fit as fit_recipe
    from promptcli.fitting.fits import plan_fits
    from promptcli.registry.registry import Entry

    registry = open_registry()
    registry.check_free(name, force=force)
    chosen = chosen_entry(choice)
    passes = sum(one.passes for one, _ in plan_fits(chosen.recipe))
    sentences = sentences_of(on, data_dir, runtime, text_field=text_field)
    with progress("fit", passes * len(sentences), quiet=runtime.quiet) as advance:
        fitted = fit_recipe(
            chosen.recipe,
            sentences,
            progress=advance,
            device=runtime.device,
            dtype="float32" if runtime.dtype == "auto" else runtime.dtype,
            offline=runtime.offline,
            announce=announcer(runtime),
        )
    encoder = fitted.encoder
    provenance = {
        **encoder.provenance,
        "width": encoder.width,
        "fitted_on": {"source": on, "sentences": fitted.sentences},
    }
    registry.save(Entry(name, encoder.recipe, encoder.tensors(), provenance), force=force)
    note(f"fitted on {fitted.sentences:,} sentences of {on}; saved as model {name!r}", quiet=runtime.quiet)
