"""Fitting what a learning-free recipe takes from sentences: TF-IDF weights and transforms. Knows no files."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder, Progress, build_encoder, silent
from promptcli.encoder.pooling.tfidf import TENSOR, fit_idf, fit_word_idf
from promptcli.encoder.transforms.all_but_the_top import fit_all_but_the_top
from promptcli.encoder.transforms.spectral import fit_spectral
from promptcli.encoder.transforms.whitening import fit_whitening
from promptcli.errors import UsageError
from promptcli.fitting.flow_training import fit_flow
from promptcli.fitting.selection import Selection, check_selection, select
from promptcli.recipe import Recipe, split_spec


@dataclasses.dataclass(frozen=True)
class Fitter:
    """One thing that can be fitted."""

    #: An encoder of all that comes before it, n sentences and a progress callback -> the fitted numbers.
    run: Callable[[Encoder, Sequence[str], Progress], dict[str, Tensor]]
    passes: int = 1  #: how often ``run`` goes over the sentences: its progress adds up to n times that


def _document_frequencies(count: Callable[[list[list[int]], Backbone], dict[str, Tensor]]) -> Fitter:
    """Return what counts in the model's own inputs, one sentence a document, specials included."""

    def run(encoder: Encoder, sentences: Sequence[str], progress: Progress) -> dict[str, Tensor]:
        rows = encoder.inputs(sentences).rows
        progress(len(rows))
        return count(rows, encoder.backbone)

    return Fitter(run)


def _of_vectors(fit_numbers: Callable[[np.ndarray], dict[str, Tensor]]) -> Fitter:
    """Return what is fitted to the vectors (n, d), a sentence counted as often as it occurs."""

    def run(encoder: Encoder, sentences: Sequence[str], progress: Progress) -> dict[str, Tensor]:
        return fit_numbers(encoder.encode(sentences, progress=progress))

    return Fitter(run)


def _flow(encoder: Encoder, sentences: Sequence[str], progress: Progress) -> dict[str, Tensor]:
    """Numbers of a flow trained on the sentences' vectors, a sentence seen as often as it occurs."""
    vectors = encoder.encode(sentences, progress=progress)
    return fit_flow(vectors, device=encoder.backbone.device, progress=progress)


#: What can be fitted: weights as a recipe writes them, transforms by name.
FITS: dict[str, Fitter] = {
    "tfidf": _document_frequencies(lambda rows, backbone: {TENSOR: fit_idf(rows, len(backbone.token_rows))}),
    "tfidf:word": _document_frequencies(fit_word_idf),
    "whitening": _of_vectors(fit_whitening),
    "all-but-the-top": _of_vectors(fit_all_but_the_top),
    "spectral": _of_vectors(fit_spectral),
    "flow": Fitter(_flow, passes=2),
}


@dataclasses.dataclass(frozen=True)
class FittedRecipe:
    """A recipe and the numbers fitted for it."""

    encoder: Encoder  #: ready to use; ``tensors()`` are the fitted numbers
    sentences: int  #: how many were fitted on
    selection: Selection | None = None  #: of the last transform's numbers, where they were chosen

    @property
    def selected_on(self) -> dict[str, Any]:
        """The selection as an entry's provenance holds it, under its key; nothing where there was none."""
        return {} if self.selection is None else {"selected_on": self.selection.to_dict()}


def plan_fits(recipe: Recipe, *, choosing: bool = False) -> list[tuple[Fitter, Recipe]]:
    """Return what is to be fitted for a recipe, in order, each with the recipe of all that comes before it.

    Args:
        recipe: Of the encoder to make.
        choosing: Numbers are chosen, which is reason enough to do without anything to fit.

    Raises:
        UsageError: There is nothing.
    """
    states, _, weights = recipe.pooling.partition("/")
    planned = []
    if weights in FITS:
        planned.append((FITS[weights], recipe.replace(pooling=f"{states}/avg", transforms=(), denoise="none")))
    for place, transform in enumerate(recipe.transforms):
        name = split_spec(transform)[0]
        if name in FITS:
            before = recipe.replace(transforms=recipe.transforms[:place])
            planned.append((FITS[name], before))
    if not planned and not choosing:
        raise UsageError(
            f"the recipe has nothing to fit (pooling {recipe.pooling!r}, transforms {list(recipe.transforms)});"
            f" fitted are: {', '.join(FITS)}, e.g. --recipe whitening"
        )
    return planned


def fit(
    recipe: Recipe,
    sentences: Sequence[str],
    *,
    choose_by: STSTask | None = None,
    progress: Progress = silent,
    backbone: Backbone | None = None,
    **options: Any,
) -> FittedRecipe:
    """Fit whatever the recipe needs, in the order in which it is used.

    Args:
        recipe: With ``tfidf`` weights, a ``whitening``, ``flow``, ... transform, or several.
        sentences: n texts; blank ones are left out.
        choose_by: Development pairs by which the numbers of the last transform are chosen; it then names none.
        progress: Called with the number of sentences newly done; adds up to n times the passes planned, and to the
            distinct sentences of the pairs.
        backbone: An already loaded one to use; else the recipe's is loaded.
        options: Of ``build_encoder``: device, dtype, offline, announce.

    Raises:
        UsageError: The recipe has nothing to fit or to choose, or there are no sentences.
    """
    chosen_name = None if choose_by is None else check_selection(recipe, choose_by)
    planned = plan_fits(recipe, choosing=choose_by is not None)
    texts = [sentence for sentence in sentences if sentence.strip()]
    if not texts:
        raise UsageError("there is no sentence to fit on; give a file with one sentence a line")
    tensors: dict[str, Tensor] = {}
    for one, before in planned:
        made = build_encoder(before, tensors=tensors, backbone=backbone, **options)
        tensors |= one.run(made, texts, progress)
        backbone = made.backbone
    selection = None
    if choose_by is not None and chosen_name is not None:
        without = recipe.replace(transforms=recipe.transforms[:-1])
        made = build_encoder(without, tensors=tensors, backbone=backbone, **options)
        backbone = made.backbone
        selection = select(made, chosen_name, tensors, choose_by, progress)
        recipe = recipe.replace(transforms=(*without.transforms, selection.chosen.transform))
    encoder = build_encoder(recipe, tensors=tensors, backbone=backbone, **options)
    return FittedRecipe(encoder, len(texts), selection)
