"""``deep-prefix:p``: p learned keys and values in front of those of every layer (DCPCSE, section 3,
and its code).
"""

from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from promptcli.backbones.kernels import dropout
from promptcli.backbones.states import Batch
from promptcli.encoder.components import BuildContext, Prompt
from promptcli.encoder.template import Template
from promptcli.errors import UsageError
from promptcli.recipe import SLOT

TENSOR = "deep-prefix.keys_values"  #: name of its one tensor
_SPREAD = 0.02  # standard deviation of the initial values, BERT's initializer_range


class DeepPrefix(Prompt):
    """Keys and values of every layer, one tensor (L, 2, h', p, d/h) for h' key heads.

    They are learned directly, without reparametrisation by a network. The tokens attend to the
    prefix, which has no hidden states that could be pooled. As in the published code the positions
    of the tokens start after it.
    """

    def __init__(self, context: BuildContext) -> None:
        shape = prefix_shape(context)
        owner = f"prompt '{context.spec}' (`train dcpcse`)"
        learned = context.tensors_of("", {TENSOR: shape}, owner, "train it first")
        super().__init__(context)
        self.shared = ()  # the prefix changes the keys and values of every token
        self.keys_values = learned[TENSOR].to(context.backbone.device)
        self.length = shape[3]
        self.spec = str(context.spec)
        self._dropout = 0.0

    @classmethod
    def read_template(cls, context: BuildContext) -> Template:
        return Template(SLOT, context.backbone.tokenizer)

    @classmethod
    def initial_tensors(
        cls, context: BuildContext, generator: torch.Generator
    ) -> dict[str, Tensor]:
        keys_values = torch.empty(prefix_shape(context)).normal_(0, _SPREAD, generator=generator)
        return {TENSOR: keys_values.to(context.backbone.device)}

    def attach(self, batch: Batch) -> Batch:
        """Return the batch with the prefix; in training each example gets its own dropout."""
        if not self._dropout:
            return replace(batch, prefix=tuple((layer[0], layer[1]) for layer in self.keys_values))
        n = batch.ids.size(0)
        copies = self.keys_values.unsqueeze(1).expand(-1, n, -1, -1, -1, -1)
        # (L, n, 2, h', p, d/h) -> twice (L, n, h', p, d/h)
        keys, values = dropout(copies, self._dropout).unbind(2)
        return replace(batch, prefix=tuple(zip(keys.unbind(), values.unbind(), strict=True)))

    def tensors(self) -> dict[str, Tensor]:
        return {TENSOR: self.keys_values.detach()}

    def set_dropout(self, probability: float) -> Self:
        self._dropout = probability
        return self


def prefix_shape(context: BuildContext) -> tuple[int, int, int, int, int]:
    """Return (layers, 2, key heads, p, width of a head) for the length p that the spec names."""
    length: int = context.spec["length"]
    backbone = context.backbone
    backbone.require_hook("a deep prefix")
    max_length = backbone.max_tokens - 3  # the shortest input has three: [CLS], a token, [SEP]
    if not 1 <= length <= max_length:
        raise UsageError(
            f"prefix length {length} is not allowed; with {backbone.name!r} it must be 1 to"
            f" {max_length}"
        )
    return (backbone.n_layers, 2, backbone.n_key_heads, length, backbone.head_width)
