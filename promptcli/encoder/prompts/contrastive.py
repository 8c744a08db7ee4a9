"""``contrastive:[LAYER:C[:norm]:]TEMPLATE || AUXILIARY``: causal models, the irrelevant information
subtracted.
"""

import functools
from dataclasses import replace

import numpy as np
import torch

from promptcli.backbones.published_backbones import published_name
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import LAST, Batch, Contrast, Needs, SharedTokens
from promptcli.encoder.batching import make_batch
from promptcli.encoder.context import BuildContext
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.errors import UsageError
from promptcli.grammar import decimal_text
from promptcli.recipe import SLOT

#: Layer and C by the last part of a model's name, as published.
KNOWN_SETTINGS: dict[str, tuple[int, float]] = {
    "Llama-2-7b-hf": (4, 0.5),
    "Meta-Llama-3-8B": (6, 0.25),
}
# layer by depth, and C, for other models: Llama-2-7B's
_SHARE = 4 / 32
_FACTOR = 0.5


class Contrastive(Prompt):
    """Contrastive Prompting: a template, and one for irrelevant information.

    From Cheng et al., ACL 2025, long papers.

    At one layer (0-based) the last token's input of the attention's output projection, A, becomes C
    (A - B), or C (A - B) |A| / |A - B| with ``norm``; B is the same of the auxiliary prompt, whose
    pass ends there. Both prompts are words, or ``token-prepending``. Nothing is learned.
    """

    beyond_graphs = "runs a second input beside each one"

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        context.require_causal("prompt 'contrastive'")
        self._main: Prompt
        self._auxiliary: Prompt
        self._main, self._auxiliary = context.parts
        self.template = self._main.template
        self.shared = self._main.shared
        pair = [self.template, self._auxiliary.template]
        are_plain = all(each.copies == 1 and not each.has_blocks for each in pair)
        alike = self.template.touching == self._auxiliary.template.touching
        if not are_plain or not alike:
            raise UsageError(
                f"prompt 'contrastive' takes two templates with one {SLOT} each, the same"
                f" characters right around it and no blocks, not {self.template.text!r} and"
                f" {self._auxiliary.spec!r}"
            )
        self.layer: int = context.spec["layer"]  #: (0-based) at which it subtracts
        self.factor: float = context.spec["factor"]  #: C
        if self.layer is None:
            usual = (round(_SHARE * backbone.n_layers), _FACTOR)
            self.layer, self.factor = KNOWN_SETTINGS.get(published_name(backbone) or "", usual)
        if self.layer >= backbone.n_layers:
            raise UsageError(
                f"contrastive:{self.layer} does not exist; {backbone.name!r} has 0 to"
                f" {backbone.n_layers - 1}"
            )
        self._norm = context.spec["norm"] is not None  # the length is kept
        self.settings = self._settings(self.layer, self.factor)  #: the spec without the templates
        self.spec = self.with_subtraction(self.layer, self.factor)
        self._backbone = backbone

    def with_subtraction(self, layer: int, factor: float) -> str:
        """Return the spec with another layer and C."""
        return f"{self._settings(layer, factor)}:{self._main.spec} || {self._auxiliary.spec}"

    def _settings(self, layer: int, factor: float) -> str:
        norm = ":norm" if self._norm else ""
        return f"contrastive:{layer}:{decimal_text(factor)}{norm}"

    def attach(self, batch: Batch) -> Batch:
        """Return the batch with the auxiliary's mixtures of the same sentences, computed up to the
        layer.
        """
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
        own = self.template
        other = self._auxiliary.template
        limit = backbone.max_tokens - other.outside
        ids, lengths = batch.host_ids(), batch.host_lengths()
        own_inputs = RaggedIds(ids[np.arange(ids.shape[1]) < lengths[:, None]], lengths)
        pieces = own_inputs.within(slice(len(own.prefix), -len(own.suffix)))
        pieces = pieces.first(pieces.lengths.clip(max=limit))
        inputs = pieces.between(other.prefix, other.suffix)
        made = make_batch(
            inputs, None, backbone.tokenizer.pad, backbone.device, backbone.max_tokens
        )
        if len(inputs) > 1 and not torch.is_grad_enabled() and backbone.sees_all(made.ids.size(1)):
            made = replace(made, shared=self._shared_tokens)
        return self._auxiliary.attach(made)

    @functools.cached_property
    def _shared_tokens(self) -> SharedTokens | None:
        needs = Needs(attended=frozenset({self.layer}), slot=LAST)
        return self._backbone.shared_tokens(self._auxiliary.shared, needs, 0)
