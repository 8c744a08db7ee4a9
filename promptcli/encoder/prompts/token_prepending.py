"""``token-prepending:[START-EXIT:]TEMPLATE``: causal models, whose sentence sees its own summary
(Token Prepending).
"""

import functools
from dataclasses import replace

import torch
from torch import Tensor

from promptcli.backbones.published_backbones import published_name
from promptcli.backbones.states import Batch, Prepending, SoftTokens
from promptcli.encoder.context import BuildContext
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.encoder.template import Template
from promptcli.errors import UsageError
from promptcli.grammar import LayerRange, TokenPrependingSpec
from promptcli.named_templates import template_text

#: Start and exit layer by ``published_name``, as published.
KNOWN_LAYERS: dict[str, tuple[int, int]] = {
    "Llama-2-7b-hf": (1, 7),
    "Llama-2-13b-hf": (1, 7),
    "Meta-Llama-3-8B": (1, 3),
    "Qwen2-7B": (1, 6),
    "gemma-2-9b": (1, 6),
}
_SHARE = 7 / 32  # exit layer by depth for other models: Llama-2-7B's


class TokenPrepending(Prompt):
    """A template with a placeholder token right before the piece that contains [X] (Fu et al., ACL
    2025).

    Before each layer l with START <= l < EXIT (0-based) the placeholder's state is replaced by that
    of the last token, so that the sentence attends to it in spite of the causal mask. Nothing is
    learned: the placeholder's embedding is drawn from N(0, 1), as in the published code, here
    always the same. The vector is read at the last token, best of an intermediate layer (published:
    27 of 32, or -2).
    """

    name = "token-prepending"

    def __init__(self, context: BuildContext[TokenPrependingSpec]) -> None:
        backbone = context.backbone
        context.require_causal("prompt 'token-prepending'")
        super().__init__(context)
        assert self.template.placeholder is not None
        layers = context.spec.layers
        if layers is None:
            usual = (1, max(2, round(_SHARE * backbone.n_layers)))
            layers = LayerRange(*KNOWN_LAYERS.get(published_name(backbone) or "", usual))
        first = layers.first
        exit_ = layers.last
        if not 0 <= first < exit_ <= backbone.n_layers:
            allowed = (
                f"0 <= START < EXIT <= {backbone.n_layers}, e.g. token-prepending:0-1:TEMPLATE"
            )
            raise UsageError(f"token-prepending:{first}-{exit_} is not allowed; give {allowed}")
        self.spec = str(TokenPrependingSpec(layers, self.template.text))
        self.shared = self.template.prefix[: self.template.placeholder]
        self._prepending = Prepending(self.template.placeholder, range(first, exit_))
        self._backbone = backbone

    @classmethod
    def read_template(cls, context: BuildContext[TokenPrependingSpec]) -> Template:
        text = template_text(context.spec.text, context.backbone.name)
        return Template(text, context.backbone.tokenizer, placeholder=True)

    def attach(self, batch: Batch) -> Batch:
        slots = torch.full((len(batch.ids), 1), self._prepending.slot, device=batch.ids.device)
        return replace(batch, soft=SoftTokens(self._embedding, slots), prepending=self._prepending)

    @functools.cached_property
    def _embedding(self) -> Tensor:
        drawn = torch.randn(
            1, self._backbone.token_rows.size(1), generator=torch.Generator().manual_seed(0)
        )
        return drawn.to(self._backbone.device)
