"""Prompts for causal models; nothing is learned.

``contrastive:[LAYER:C[:norm]:]TEMPLATE || AUXILIARY``: the irrelevant information is subtracted.
``kv:[START-EXIT;BIAS:]TEMPLATE``: every token also attends to the last token (KV-Embedding).
``reversed:PROMPT``: the words of the sentence in reverse order (ReverseEOL).
"""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from promptcli.backbones.published_backbones import published_name
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import (
    LAST,
    Batch,
    Contrast,
    Needs,
    Rerouting,
    SharedTokens,
)
from promptcli.encoder.batching import make_batch
from promptcli.encoder.components import BuildContext, Prompt
from promptcli.encoder.template import END_MARKS
from promptcli.errors import UsageError
from promptcli.grammar import Pair, decimal_text
from promptcli.notes import note
from promptcli.recipe import SLOT

#: Layer and C by ``published_name``, as published.
KNOWN_SETTINGS: dict[str, tuple[int, float]] = {
    "Llama-2-7b-hf": (4, 0.5),
    "Meta-Llama-3-8B": (6, 0.25),
}
# for other models, the layer as a share of the depth, and C: Llama-2-7B's
_LAYER_SHARE = 4 / 32
_FACTOR = 0.5


class Contrastive(Prompt):
    """Contrastive Prompting: a template, and a second one for irrelevant information (Cheng et al.,
    ACL 2025, long papers).

    A is the input of the attention's output projection at the last token, in one layer (0-based).
    It becomes C (A - B), or C (A - B) |A| / |A - B| with ``norm``. B is the same input for the
    auxiliary prompt, whose pass ends in that layer. Both prompts are words, or
    ``token-prepending``. Nothing is learned.
    """

    graph_obstacle = "runs a second input beside each one"

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        context.require_causal("prompt 'contrastive'")
        self._main: Prompt
        self._auxiliary: Prompt
        self._main, self._auxiliary = context.prompts
        self.template = self._main.template
        self.shared = self._main.shared
        templates = [self.template, self._auxiliary.template]
        are_plain = all(each.copies == 1 and not each.has_blocks for each in templates)
        if not are_plain or templates[0].touching != templates[1].touching:
            raise UsageError(
                f"prompt 'contrastive' needs two templates with one {SLOT} each, the same"
                f" characters right around it and no blocks, not {self.template.text!r} and"
                f" {self._auxiliary.spec!r}"
            )
        self.layer: int = context.spec["layer"]  #: (0-based) at which it subtracts
        self.factor: float = context.spec["factor"]  #: C
        if self.layer is None:
            usual = (round(_LAYER_SHARE * backbone.n_layers), _FACTOR)
            self.layer, self.factor = KNOWN_SETTINGS.get(published_name(backbone) or "", usual)
        if self.layer >= backbone.n_layers:
            raise UsageError(
                f"contrastive:{self.layer} does not exist; {backbone.name!r} has 0 to"
                f" {backbone.n_layers - 1}"
            )
        self._norm = context.spec["norm"] is not None  # whether A - B gets the length of A
        self.settings = self._settings(self.layer, self.factor)  #: the spec without the templates
        self.spec = self.with_subtraction(self.layer, self.factor)
        self._backbone = backbone

    def with_subtraction(self, layer: int, factor: float) -> str:
        """Return the spec for another layer and C."""
        return f"{self._settings(layer, factor)}:{self._main.spec} || {self._auxiliary.spec}"

    def _settings(self, layer: int, factor: float) -> str:
        norm = ":norm" if self._norm else ""
        return f"contrastive:{layer}:{decimal_text(factor)}{norm}"

    def attach(self, batch: Batch) -> Batch:
        """Return the batch with B for the same sentences."""
        if batch.position_ids is not None:
            raise UsageError(
                "template denoising is not for prompt 'contrastive'; leave denoise out"
            )
        mixtures = self._backbone.mixture(self._auxiliary_batch(batch), self.layer)
        return replace(
            self._main.attach(batch),
            contrast=Contrast(self.layer, self.factor, self._norm, mixtures),
        )

    def _auxiliary_batch(self, batch: Batch) -> Batch:
        """Return the batch's sentences in the auxiliary template."""
        backbone = self._backbone
        main, auxiliary = self.template, self._auxiliary.template
        limit = backbone.max_tokens - auxiliary.tokens_outside_pieces
        ids, lengths = batch.host_ids(), batch.host_lengths()
        inputs = RaggedIds(ids[np.arange(ids.shape[1]) < lengths[:, None]], lengths)
        starts = inputs.starts + len(main.prefix)
        pieces = inputs.take_ranges(starts, (lengths - main.tokens_outside_pieces).clip(0, limit))
        inputs = pieces.surround(auxiliary.prefix, auxiliary.suffix)
        pad = backbone.tokenizer.pad
        batch = make_batch(inputs, None, pad, backbone.device, backbone.max_tokens)
        if (
            len(inputs) > 1
            and not torch.is_grad_enabled()
            and backbone.last_token_sees_first(batch.ids.size(1))
        ):
            batch = replace(batch, shared=self._shared_tokens)
        return self._auxiliary.attach(batch)

    @functools.cached_property
    def _shared_tokens(self) -> SharedTokens | None:
        needs = Needs(attention_outputs=frozenset({self.layer}), slot=LAST)
        return self._backbone.shared_tokens(self._auxiliary.shared, needs, 0)


_BIAS = 1.0  #: published


class KVEmbedding(Prompt):
    """A template in a model whose layers hand on the last token's key and value.

    Layer l with START <= l < EXIT (0-based) gets, in front of its keys and values, those of the
    last token in layer l - 1. Every token attends to them, with BIAS added to the score, so that
    even the first token sees the complete sentence. Nothing is learned.
    """

    graph_obstacle = "hands keys and values from layer to layer"

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        context.require_causal("prompt 'kv'")
        backbone.require_hook("prompt 'kv'")
        super().__init__(context)
        # we do not know the paper's choice: the first half is the best of five on SmolLM2-135M
        layers = context.spec["layers"] or Pair(1, max(2, backbone.n_layers // 2))
        bias = _BIAS if context.spec["bias"] is None else context.spec["bias"]
        self.spec = f"kv:{layers};{decimal_text(bias)}:{self.template.text}"
        self.shared = ()  # the last token changes all others
        self._rerouting = Rerouting(context.range_of(layers, 1), bias)

    def attach(self, batch: Batch) -> Batch:
        return replace(batch, rerouting=self._rerouting)


class ReversedWords(Prompt):
    """A prompt of words, or ``token-prepending``, around the reversed sentence.

    It is half of a mean, ``mean:PROMPT || reversed:PROMPT``. In a causal model a token sees the
    tokens before it; in the reversed sentence it sees the others. Nothing is learned.
    """

    def __init__(self, context: BuildContext) -> None:
        [inner] = context.prompts
        self.template = inner.template
        self.shared = inner.shared
        self.spec = f"reversed:{inner.spec}"
        self._inner: Prompt = inner
        if not context.backbone.causal:
            note("prompt 'reversed' is for causal models; no paper has tried it on others")

    def rewrite(self, sentences: Sequence[str]) -> list[str]:
        return [reversed_words(sentence) for sentence in sentences]

    def attach(self, batch: Batch) -> Batch:
        return self._inner.attach(batch)


def reversed_words(sentence: str) -> str:
    """Return the words in reverse order; an end mark stays at the end."""
    text = sentence.strip()
    end = ""
    if text.endswith(END_MARKS):
        text, end = text[:-1], text[-1]
    return " ".join(reversed(text.split())) + end
