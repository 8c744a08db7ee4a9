"""A backbone's predictions at the mask, with and without template denoising (PromptBERT, table
7).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from promptcli import errors
from promptcli.backbones.backbone import Backbone
from promptcli.encoder.encoder import TorchEncoder, encode_together
from promptcli.errors import UsageError
from promptcli.recipe import Recipe


@dataclass(frozen=True)
class Guess:
    """A predicted token and its probability, a softmax over the vocabulary."""

    token: str
    probability: float


@dataclass(frozen=True)
class MaskTokens:
    """The predictions for one sentence, most probable first."""

    sentence: str
    plain: list[Guess]  #: from h
    denoised: list[Guess]  #: without the template's bias h_hat
    truncated: bool  #: whether the sentence was cut to the longest input


#: Places of the bias. PromptBERT does not name its place for denoised tokens; ``hidden``, the
#: default, follows its section 4.3 to the letter.
PLACES = ("hidden", "head", "logits")


def mask_tokens(
    encoders: Sequence[TorchEncoder], sentences: Sequence[str], *, top: int
) -> list[list[MaskTokens]]:
    """Return ``predict_mask_tokens`` for each encoder's backbone and recipe."""
    return [
        predict_mask_tokens(encoder.backbone, encoder.recipe, sentences, count=top)
        for encoder in encoders
    ]


def predict_mask_tokens(
    backbone: Backbone, recipe: Recipe, sentences: Sequence[str], *, count: int = 5
) -> list[MaskTokens]:
    """Return the ``count`` most probable tokens at the mask for n sentences.

    Only the recipe's prompt, period, max_length and denoise are read.
    """
    place = recipe.parts.denoise.name
    if place not in PLACES:
        raise errors.unknown("denoise", recipe.denoise, PLACES)
    most = len(backbone.word_embeddings)
    if not 1 <= count <= most:
        raise UsageError(f"{count} tokens are not allowed; the vocabulary gives 1 to {most}")
    encoders = []
    for denoise in ("none", recipe.denoise):
        mixed = recipe.replace(
            pooling="last/mask", transforms=(f"topk-tokens:{count}",), denoise=denoise
        )
        encoder = TorchEncoder(mixed, backbone, {})
        encoder.stages.pop()  # drops the mixture of tokens: the vectors are then logits
        encoders.append(encoder)
    plain, denoised = encode_together(encoders, sentences)  # one pass for both
    of_sentences = zip(
        sentences,
        _best(backbone, plain.vectors, count),
        _best(backbone, denoised.vectors, count),
        plain.truncated.astype(bool).tolist(),
        strict=True,
    )
    return [MaskTokens(*of_sentence) for of_sentence in of_sentences]


def _best(backbone: Backbone, logits: NDArray[Any], count: int) -> list[list[Guess]]:
    """Return the ``count`` most probable tokens of each row of logits (n, v)."""
    probabilities, ids = torch.from_numpy(logits).softmax(-1).topk(count, dim=-1)
    rows = zip(ids.tolist(), probabilities.tolist(), strict=True)
    text = backbone.tokenizer.text
    return [[Guess(text(token), value) for token, value in zip(*row, strict=True)] for row in rows]
