"""Fitting what a learning-free recipe takes from sentences: TF-IDF weights and whitening. Knows no files."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.encoder import Encoder, build_encoder
from promptcli.encoding import Progress, silent
from promptcli.errors import UsageError
from promptcli.pooling.tfidf import TENSOR, fit_idf
from promptcli.recipe import Recipe, split_spec
from promptcli.transforms.whitening import fit_whitening

Fit = Callable[[Encoder, Sequence[str], Progress], dict[str, Tensor]]


def _tfidf(encoder: Encoder, sentences: Sequence[str], progress: Progress) -> dict[str, Tensor]:
    """Document frequencies over the model's own inputs, one sentence a document, specials included."""
    rows = encoder.inputs(sentences).rows
    progress(len(rows))
    return {TENSOR: fit_idf(rows, len(encoder.backbone.token_rows))}


def _whitening(encoder: Encoder, sentences: Sequence[str], progress: Progress) -> dict[str, Tensor]:
    """Mean and covariance of the sentences' vectors, a sentence counted as often as it occurs."""
    return fit_whitening(encoder.encode(sentences, progress=progress))


#: What can be fitted, by the name that a recipe gives it.
FITS: dict[str, Fit] = {"tfidf": _tfidf, "whitening": _whitening}


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A recipe and the numbers fitted for it.

    Attributes:
        encoder: Ready to use; ``tensors()`` are the fitted numbers.
        sentences: How many were fitted on.
    """

    encoder: Encoder
    sentences: int


def fit(
    recipe: Recipe,
    sentences: Sequence[str],
    *,
    progress: Progress = silent,
    backbone: Backbone | None = None,
    **options: Any,
) -> Fitted:
    """Fit whatever the recipe needs, in the order in which it is used.

    Args:
        recipe: With ``tfidf`` weights, a ``whitening`` transform, or both.
        sentences: n texts; blank ones are left out.
        progress: Called with the number of sentences newly done.
        backbone: An already loaded one to use; else the recipe's is loaded.
        options: Of ``build_encoder``: device, dtype, offline, announce.

    Raises:
        UsageError: The recipe has nothing to fit, or there are no sentences.
    """
    texts = [sentence for sentence in sentences if sentence.strip()]
    if not texts:
        raise UsageError("there is no sentence to fit on; give a file with one sentence a line")
    states, _, weights = recipe.pooling.partition("/")
    tensors: dict[str, Tensor] = {}
    fitted = 0
    if weights in FITS:
        before = recipe.replace(pooling=f"{states}/avg", transforms=(), denoise="none")
        plain = build_encoder(before, backbone=backbone, **options)
        tensors |= FITS[weights](plain, texts, progress)
        backbone, fitted = plain.backbone, fitted + 1
    for place, transform in enumerate(recipe.transforms):
        name = split_spec(transform)[0]
        if name in FITS:
            before = recipe.replace(transforms=recipe.transforms[:place], prompt=recipe.prompt, period=recipe.period)
            made = build_encoder(before, tensors=tensors, backbone=backbone, **options)
            tensors |= FITS[name](made, texts, progress)
            backbone, fitted = made.backbone, fitted + 1
    if not fitted:
        raise UsageError(
            f"the recipe has nothing to fit (pooling {recipe.pooling!r}, transforms {list(recipe.transforms)});"
            f" fitted are: {', '.join(FITS)}, e.g. --recipe whitening"
        )
    return Fitted(build_encoder(recipe, tensors=tensors, backbone=backbone, **options), len(texts))
