"""Fit a recipe on sentences, into a model."""

from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.data.senteval import tasks_from
from promptcli.recipe import Choice

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder
    from promptcli.models.loading import Model, Sentences


def fit(
    recipe: "Model",
    on: "Sentences" = "demo",
    *,
    select: str | Path | None = None,
    name: str | None = None,
    data_dir: str | Path | None = None,
    text_field: str | None = None,
    force: bool = False,
) -> "Encoder":
    """Fit a recipe's TF-IDF weights or transforms on sentences.

    A task names its test sentences, both sides of every pair; STS-B:all and SICK-R:all those of all
    splits. With STS12 to STS16 they are the whitening paper's target setting; its other one is a
    file of NLI pairs. A model fitted on a task has seen the task's text, though never its scores.

    Args:
        recipe: A named one (``whitening``, ``flow``, ``first-last-tfidf``), a ``Recipe``, or what
            else ``load`` takes.
        on: Sentences: a file (of pairs, such as sent0,sent1 or premise,hypothesis: both sides), a
            task (STS12, STS-B, ...), ``demo``, or a list.
        select: Development pairs that choose the parameters of the last transform, if it is given
            without (all-but-the-top, whitening, spectral, embed-filter): STS-B:dev, demo:dev, or a
            FILE of graded pairs; never a test set. All candidates are printed, and kept with the
            model.
        name: Name of the model to save.
        data_dir: SentEval folder of the tasks.
        text_field: Column of the sentence. Default: `text`, else `sentence`, else the only one.
        force: Replace a model of that name.

    Raises:
        UsageError: The recipe has nothing to fit, there are too few sentences, or ``select`` is a
            test set.

    Example:
        >>> import promptcli as pc
        >>> pc.fit("first-last-tfidf", on=["A cat sleeps.", "A dog runs."]).recipe.pooling
        'first-last/tfidf'
    """
    from promptcli.data.given import check_texts
    from promptcli.data.sources import development_task, fitting_sentences
    from promptcli.models.loading import entry_of, open_registry, register
    from promptcli.notes import note
    from promptcli.training.fits import fit_recipe

    with tasks_from(data_dir):
        if name is not None:
            open_registry().check_free(name, force=force)
        wanted = entry_of(recipe).recipe
        where = recipe if isinstance(recipe, Choice) else Choice()
        pairs = None
        if select is not None:
            pairs = development_task(str(select))
        if isinstance(on, str | Path):
            source = str(on)
            sentences = fitting_sentences(str(on), text_field=text_field)
        else:
            source = "a list"
            sentences = list(check_texts(on))
        dtype = where.dtype or "stored"
        fitted = fit_recipe(
            wanted, sentences, choose_by=pairs, source=source, device=where.device, dtype=dtype
        )
        if name is not None:
            register(fitted.encoder, name, force=force, **fitted.provenance)
            count = fitted.provenance["fitted_on"]["sentences"]
            note(f"fitted on {count:,} sentences of {source}; saved as model {name!r}")
        return fitted.encoder
