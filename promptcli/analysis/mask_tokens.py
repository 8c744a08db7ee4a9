"""The tokens that a backbone predicts at the mask, with and without template denoising (PromptBERT, table 7)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.head import MLMHead
from promptcli.encoder.denoising import Denoising
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.encoding import encode_together
from promptcli.errors import UsageError, unknown
from promptcli.recipe import Recipe


@dataclass(frozen=True)
class Guess:
    """One predicted token and its probability, softmax over the vocabulary."""

    token: str
    probability: float


@dataclass(frozen=True)
class MaskTokens:
    """The predictions for one sentence, most probable first."""

    sentence: str
    plain: list[Guess]  #: from h
    denoised: list[Guess]  #: without the template's bias h_hat
    truncated: bool  #: the sentence lost tokens to the longest input


#: Place of the bias -> head, h and h_hat, both (n, d) -> logits (n, v). PromptBERT does not name the place of its
#: denoised tokens; ``hidden``, the default, follows its section 4.3 to the letter.
PLACES: dict[str, Callable[[MLMHead, Tensor, Tensor], Tensor]] = {
    "hidden": lambda head, state, bias: head.to_logits(head.to_hidden(state - bias)),
    "head": lambda head, state, bias: head.to_logits(head.to_hidden(state) - head.to_hidden(bias)),
    "logits": lambda head, state, bias: head.to_logits(head.to_hidden(state)) - head.to_logits(head.to_hidden(bias)),
}


def mask_tokens(encoders: Sequence[Encoder], sentences: Sequence[str], *, top: int) -> list[list[MaskTokens]]:
    """Return ``predict_mask_tokens`` for each encoder's backbone and recipe."""
    return [predict_mask_tokens(encoder.backbone, encoder.recipe, sentences, count=top) for encoder in encoders]


def predict_mask_tokens(
    backbone: Backbone, recipe: Recipe, sentences: Sequence[str], *, count: int = 5
) -> list[MaskTokens]:
    """Return the ``count`` most probable tokens at the mask for n sentences.

    Of the recipe only prompt, period, max_length and denoise are read.
    """
    denoising = Denoising.from_spec(recipe.denoise)
    if denoising.place not in PLACES:
        raise unknown("denoise", recipe.denoise, PLACES)
    if not 1 <= count <= len(backbone.token_rows):
        raise UsageError(f"{count} tokens are not allowed; the vocabulary gives 1 to {len(backbone.token_rows)}")
    head = backbone.head
    plain = Encoder(recipe.replace(pooling="last/mask", transforms=(), denoise="none"), backbone, {})
    option = ":code" if denoising.raw_positions else ""
    denoised = Encoder(plain.recipe.replace(denoise=f"hidden{option}"), backbone, {})
    both = encode_together([plain, denoised], sentences)  # one pass serves both
    state, difference = (torch.from_numpy(encoded.vectors).to(backbone.device) for encoded in both)
    with torch.inference_mode():
        lists = [
            _best(backbone, head.to_logits(head.to_hidden(state)), count),
            _best(backbone, PLACES[denoising.place](head, state, state - difference), count),
        ]
    return [
        MaskTokens(sentence, plain_guesses, denoised_guesses, bool(cut))
        for sentence, plain_guesses, denoised_guesses, cut in zip(sentences, *lists, both[0].truncated, strict=True)
    ]


def _best(backbone: Backbone, logits: Tensor, count: int) -> list[list[Guess]]:
    probabilities, ids = logits.softmax(-1).topk(count, dim=-1)
    return [
        [Guess(backbone.tokenizer.text(token), value) for token, value in zip(tokens, values, strict=True)]
        for tokens, values in zip(ids.tolist(), probabilities.tolist(), strict=True)
    ]
