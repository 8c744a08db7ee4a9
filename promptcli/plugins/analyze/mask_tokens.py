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
from promptcli.grammar import PLACES


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


def mask_tokens(
    encoders: Sequence[TorchEncoder], sentences: Sequence[str], *, top: int
) -> list[list[MaskTokens]]:
    """Return the ``top`` most probable tokens at the mask of each sentence, by encoder.

    Only an encoder's backbone and its recipe's prompt, period, max_length and denoise are used.
    PromptBERT does not say where the bias is subtracted for tokens; the default, ``hidden``,
    follows its section 4.3 to the letter.
    """
    results = []
    for encoder in encoders:
        backbone, recipe = encoder.backbone, encoder.recipe
        if recipe.parts.denoise.name not in PLACES:
            raise errors.unknown_name_error("denoise", recipe.denoise, PLACES)
        size = len(backbone.word_embeddings)
        if not 1 <= top <= size:
            raise UsageError(f"{top} tokens are not allowed; the vocabulary gives 1 to {size}")
        variants = []
        for denoise in ("none", recipe.denoise):
            mixture = recipe.replace(
                pooling="last/mask", transforms=(f"topk-tokens:{top}",), denoise=denoise
            )
            variant = TorchEncoder(mixture, backbone, {})
            variant.stages.pop()  # without the mixture of tokens, the vectors are logits
            variants.append(variant)
        plain, denoised = encode_together(variants, sentences)  # one pass for both
        predictions = zip(
            sentences,
            _best(backbone, plain.vectors, top),
            _best(backbone, denoised.vectors, top),
            plain.truncated.astype(bool).tolist(),
            strict=True,
        )
        results.append([MaskTokens(*prediction) for prediction in predictions])
    return results


def _best(backbone: Backbone, logits: NDArray[Any], top: int) -> list[list[Guess]]:
    """Return the ``top`` most probable tokens of each row of logits (n, v)."""
    probabilities, ids = torch.from_numpy(logits).softmax(-1).topk(top, dim=-1)
    guesses = []
    for ids_of_row, probabilities_of_row in zip(ids.tolist(), probabilities.tolist(), strict=True):
        texts = map(backbone.tokenizer.text, ids_of_row)
        guesses.append(list(map(Guess, texts, probabilities_of_row)))
    return guesses
