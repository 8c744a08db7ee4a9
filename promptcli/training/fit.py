"""Fitting recipes on sentences."""

from pathlib import Path

from promptcli.data.given import check_texts
from promptcli.data.sources import development_task, fitting_sentences
from promptcli.encoder.encoder import Encoder
from promptcli.evaluation.evaluator import distinct_sentences
from promptcli.models.loading import Model, Sentences, entry_of, open_registry, register
from promptcli.notes import note, working
from promptcli.settings import BARE
from promptcli.training import fits
from promptcli.training.fits import FittedRecipe


def fit(
    recipe: Model,
    on: Sentences = BARE.corpus,
    *,
    select: str | Path | None = None,
    name: str | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    dtype: str = "stored",
    force: bool = False,
) -> Encoder:
    """Return the encoder of a recipe with TF-IDF weights or a transform fitted on sentences.

    Args:
        recipe: A named one (``whitening``, ``flow``, ``first-last-tfidf``), a ``Recipe``, or what else ``load`` takes.
        on: Sentences, or what names them: ``demo``, a task, a file.
        select: Development pairs by which the numbers of the last transform are chosen, which then has none:
            ``STS-B:dev``, ``demo:dev``, or a file of graded pairs.
        name: Save it in the registry under this name.
        data_dir: SentEval folder of a task.
        device: See ``load``.
        dtype: See ``load``.
        force: Replace an entry of that name.

    Raises:
        UsageError: The recipe has nothing to fit, there are too few sentences, or a test set is to choose.

    Example:
        >>> import promptcli as pc
        >>> pc.fit("first-last-tfidf", on=["A cat sleeps.", "A dog runs."]).recipe.pooling
        'first-last/tfidf'
    """
    options = {"device": device, "dtype": dtype}
    return fit_recipe(recipe, on, select=select, name=name, data_dir=data_dir, force=force, **options).encoder


def fit_recipe(
    recipe: Model,
    on: Sentences = BARE.corpus,
    *,
    select: str | Path | None = None,
    name: str | None = None,
    data_dir: str | Path | None = None,
    text_field: str | None = None,
    device: str = "auto",
    dtype: str = "stored",
    force: bool = False,
) -> FittedRecipe:
    """Fit as ``fit`` does; return with the encoder how its numbers were chosen. ``text_field``: of a file."""
    if name is not None:
        open_registry().check_free(name, force=force)
    folder = None if data_dir is None else Path(data_dir)
    chosen = entry_of(recipe).recipe
    pairs = None if select is None else development_task(str(select), folder)
    if pairs is not None:
        fits.check_selection(chosen, pairs)
    passes = sum(one.passes for one, _ in fits.plan_fits(chosen, choosing=pairs is not None))
    if isinstance(on, str | Path):
        source, sentences = str(on), fitting_sentences(str(on), folder, text_field=text_field)
    else:
        source, sentences = "a list", check_texts(on)
    work = passes * len(sentences) + (0 if pairs is None else len(distinct_sentences([pairs])))
    with working("fit", work) as advance:
        made = fits.fit(chosen, sentences, choose_by=pairs, progress=advance, device=device, dtype=dtype)
    if name is not None:
        fitted_on = {"source": source, "sentences": made.sentences}
        register(made.encoder, name, force=force, fitted_on=fitted_on, **made.selected_on)
        note(f"fitted on {made.sentences:,} sentences of {source}; saved as model {name!r}")
    return made
