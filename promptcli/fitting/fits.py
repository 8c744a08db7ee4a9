"""Fitting what a learning-free recipe takes from sentences: TF-IDF weights, whitening, flow. Knows no files."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.encoder.encoder import Encoder, Progress, build_encoder, silent
from promptcli.encoder.pooling.tfidf import TENSOR, fit_idf, fit_word_idf
from promptcli.encoder.recipe import Recipe, split_spec
from promptcli.encoder.transforms.whitening import fit_whitening
from promptcli.errors import UsageError
from promptcli.fitting.flow_training import fit_flow


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


def _whitening(encoder: Encoder, sentences: Sequence[str], progress: Progress) -> dict[str, Tensor]:
    """Mean and covariance of the sentences' vectors, a sentence counted as often as it occurs."""
    return fit_whitening(encoder.encode(sentences, progress=progress))


def _flow(encoder: Encoder, sentences: Sequence[str], progress: Progress) -> dict[str, Tensor]:
    """Numbers of a flow trained on the sentences' vectors, a sentence seen as often as it occurs."""
    vectors = encoder.encode(sentences, progress=progress)
    return fit_flow(vectors, device=encoder.backbone.device, progress=progress)


#: What can be fitted: weights as a recipe writes them, transforms by name.
FITS: dict[str, Fitter] = {
    "tfidf": _document_frequencies(lambda rows, backbone: {TENSOR: fit_idf(rows, len(backbone.token_rows))}),
    "tfidf:word": _document_frequencies(fit_word_idf),
    "whitening": Fitter(_whitening),
    "flow": Fitter(_flow, passes=2),
}


@dataclasses.dataclass(frozen=True)
class FittedRecipe:
    """A recipe and the numbers fitted for it."""

    encoder: Encoder  #: ready to use; ``tensors()`` are the fitted numbers
    sentences: int  #: how many were fitted on


def plan_fits(recipe: Recipe) -> list[tuple[Fitter, Recipe]]:
    """Return what is to be fitted for a recipe, in order, each with the recipe of all that comes before it.

    Raises:
        UsageError: Nothing is.
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
    if not planned:
        raise UsageError(
            f"the recipe has nothing to fit (pooling {recipe.pooling!r}, transforms {list(recipe.transforms)});"
            f" fitted are: {', '.join(FITS)}, e.g. --recipe whitening"
        )
    return planned


def fit(
    recipe: Recipe,
    sentences: Sequence[str],
    *,
    progress: Progress = silent,
    backbone: Backbone | None = None,
    **options: Any,
) -> FittedRecipe:
    """Fit whatever the recipe needs, in the order in which it is used.

    Args:
        recipe: With ``tfidf`` weights, a ``whitening`` or ``flow`` transform, or several.
        sentences: n texts; blank ones are left out.
        progress: Called with the number of sentences newly done; adds up to n times the passes planned.
        backbone: An already loaded one to use; else the recipe's is loaded.
        options: Of ``build_encoder``: device, dtype, offline, announce.

    Raises:
        UsageError: The recipe has nothing to fit, or there are no sentences.
    """
    planned = plan_fits(recipe)
    texts = [sentence for sentence in sentences if sentence.strip()]
    if not texts:
        raise UsageError("there is no sentence to fit on; give a file with one sentence a line")
    tensors: dict[str, Tensor] = {}
    for one, before in planned:
        made = build_encoder(before, tensors=tensors, backbone=backbone, **options)
        tensors |= one.run(made, texts, progress)
        backbone = made.backbone
    return FittedRecipe(build_encoder(recipe, tensors=tensors, backbone=backbone, **options), len(texts))
