"""``token-prepending:[START-EXIT][;BLOCKS]:TEMPLATE``: causal models, whose sentence sees its own
summary (Token Prepending), or the summaries of its blocks (Hierarchical Token Prepending).
"""

import functools
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.published_backbones import published_name
from promptcli.backbones.states import Batch, Prepending, SoftTokens
from promptcli.encoder.batching import to_device
from promptcli.encoder.block_template import OF_BLOCK, BlockTemplate
from promptcli.encoder.context import BuildContext
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.encoder.template import Template
from promptcli.grammar import Pair
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
    2025), or with placeholders for each block of the text (Hierarchical Token Prepending,
    arXiv 2511.14868).

    Before each layer l with START <= l < EXIT (0-based) the placeholder's state is replaced by that
    of the last token, so that the sentence attends to it in spite of the causal mask. Those of a
    block get the state of the block's end, at the same time: one is in front of the block and
    one in front of the whole text, so that every token attends to the ends of all blocks. Nothing
    is learned: the placeholders' embeddings are drawn from N(0, 1), as in the published code, here
    always the same. The vector is read at the last token, with blocks as the mean of the
    sentence's own tokens, best of an intermediate layer (published: 27 of 32, or -2).
    """

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        context.require_causal("prompt 'token-prepending'")
        super().__init__(context)
        layers = context.spec["layers"]
        if layers is None:
            usual = (1, max(2, round(_SHARE * backbone.n_layers)))
            layers = Pair(*KNOWN_LAYERS.get(published_name(backbone) or "", usual))
        blocks = context.spec["blocks"]
        cut = "" if blocks is None else f";{blocks}"
        self.spec = f"token-prepending:{layers}{cut}:{self.template.text}"
        self.shared = self.template.prefix[: self.template.placeholder]
        if blocks is not None:
            self.beyond_graphs = "cuts each text into blocks"
        self._layers = context.range_of(layers, 0)
        self._backbone = backbone

    @classmethod
    def read_template(cls, context: BuildContext) -> Template:
        text = template_text(context.spec["text"], context.backbone.name)
        tokenizer = context.backbone.tokenizer
        blocks = context.spec["blocks"]
        if blocks is None:
            return Template(text, tokenizer, placeholder=True)
        return BlockTemplate(text, tokenizer, None if blocks == "sentences" else int(blocks))

    def attach(self, batch: Batch) -> Batch:
        if isinstance(self.template, BlockTemplate):
            return self._attach_blocks(batch, self.template)
        assert self.template.placeholder is not None
        shape, device = (len(batch.ids), 1), batch.ids.device
        positions = torch.full(shape, self.template.placeholder, device=device)
        prepending = Prepending(positions, (batch.lengths - 1).unsqueeze(1), self._layers)
        soft = SoftTokens(self._embeddings[:1], positions)
        return replace(batch, soft=soft, prepending=prepending)

    def _attach_blocks(self, batch: Batch, template: BlockTemplate) -> Batch:
        on_host = batch.host_ids()
        positions_on_host, sources = template.placeholders(on_host, batch.host_lengths())
        pad = self._backbone.tokenizer.pad
        device = batch.ids.device
        positions = to_device(positions_on_host, device)
        placed = batch.ids.gather(1, positions)
        own = self._backbone.word_embeddings[placed.clamp(min=0)].float()
        drawn = self._embeddings[(OF_BLOCK - placed).clamp(min=0)]
        vectors = torch.where(placed.unsqueeze(2) < 0, drawn, own)
        return replace(
            batch,
            ids=batch.ids.masked_fill(batch.ids < 0, pad),
            ids_on_host=np.where(on_host < 0, pad, on_host),
            soft=SoftTokens(vectors, positions),
            prepending=Prepending(positions, to_device(sources, device), self._layers),
        )

    @functools.cached_property
    def _embeddings(self) -> Tensor:
        """(2, e), in the order of ``OF_BLOCK`` and ``OF_TEXT``; the first is also that of the only
        placeholder.
        """
        generator = torch.Generator().manual_seed(0)
        width = self._backbone.word_embeddings.size(1)
        drawn = [torch.randn(1, width, generator=generator) for _ in range(2)]
        return torch.cat(drawn).to(self._backbone.device)
