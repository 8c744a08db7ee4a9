"""``kv:[START-EXIT;BIAS:]TEMPLATE``: every token attends to the last one, too (KV-Embedding)."""

from dataclasses import replace

from promptcli.backbones.states import Batch, Rerouting
from promptcli.encoder.context import BuildContext
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.grammar import Pair, decimal_text

_BIAS = 1.0  #: published


class KVEmbedding(Prompt):
    """A template in a model whose layers pass the last token's key and value on.

    In each layer l with START <= l < EXIT (0-based) the key and value that the last token has in
    layer l - 1 come before all others. Every token attends to them, BIAS is added to their
    scores, and so the whole sentence is seen from its first token on. Nothing is learned.
    """

    beyond_graphs = "hands keys and values from layer to layer"

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        context.require_causal("prompt 'kv'")
        backbone.require_hook("prompt 'kv'")
        super().__init__(context)
        # the paper's own choice was not seen: the first half is the best of five on SmolLM2-135M
        layers = context.spec["layers"] or Pair(1, max(2, backbone.n_layers // 2))
        bias = _BIAS if context.spec["bias"] is None else context.spec["bias"]
        self.spec = f"kv:{layers};{decimal_text(bias)}:{self.template.text}"
        self.shared = ()  # the last token changes all others
        self._rerouting = Rerouting(context.range_of(layers, 1), bias)

    def attach(self, batch: Batch) -> Batch:
        return replace(batch, rerouting=self._rerouting)
