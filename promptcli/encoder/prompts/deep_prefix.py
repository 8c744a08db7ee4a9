"""``deep-prefix:p``: p learned keys and values in front of every layer's own (DCPCSE, section 3, and its code)."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.dropout import dropout
from promptcli.backbones.states import Batch
from promptcli.errors import UsageError

#: Name of its one tensor.
TENSOR = "deep-prefix.keys_values"
_SPREAD = 0.02  # standard deviation of the start, BERT's initializer_range


class DeepPrefix:
    """Keys and values of every layer, one tensor (L, 2, h, p, d/h); keys and values are independent.

    The prefix has no outputs. As in the published code the tokens' positions start behind it.

    Attributes:
        numbers: The tensor.
        dropout: Probability of dropping a number, drawn for every example; 0 unless training.
    """

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers
        self.dropout = 0.0

    @classmethod
    def of(cls, argument: str, backbone: Backbone, tensors: Mapping[str, Tensor]) -> "DeepPrefix":
        """Return the learned prefix of that length.

        Raises:
            UsageError: No whole number, a backbone whose attention is closed, or a prefix that was not learned or does
                not fit the backbone.
        """
        shape = prefix_shape(argument, backbone)
        if TENSOR not in tensors:
            raise UsageError(
                f"prompt 'deep-prefix:{argument}' is learned and no numbers for it are there; train it first:"
                " `promptcli train --method dcpcse`"
            )
        numbers = tensors[TENSOR]
        if tuple(numbers.shape) != shape:
            raise UsageError(
                f"the prefix has shape {tuple(numbers.shape)}, backbone {backbone.name!r} with p = {argument} takes"
                f" {shape}"
            )
        return cls(numbers.to(backbone.device))

    @property
    def length(self) -> int:
        """P."""
        return int(self.numbers.size(3))

    def attach(self, batch: Batch) -> Batch:
        """Return the batch with the prefix; while training each example gets dropout of its own."""
        if not self.dropout:
            return replace(batch, prefix=tuple((layer[0], layer[1]) for layer in self.numbers))
        rows = self.numbers.unsqueeze(1).expand(-1, batch.ids.size(0), -1, -1, -1, -1)  # (L, n, 2, h, p, d/h)
        dropped = dropout(rows, self.dropout)
        return replace(batch, prefix=tuple((layer[:, 0], layer[:, 1]) for layer in dropped))

    def tensors(self) -> dict[str, Tensor]:
        """Return the one tensor."""
        return {TENSOR: self.numbers.detach()}


def prefix_shape(argument: str, backbone: Backbone) -> tuple[int, int, int, int, int]:
    """Return (L, 2, h, p, d/h) for the length p that a spec names.

    Raises:
        UsageError: No whole number above 0, no room for a sentence behind it, or a backbone whose attention is closed.
    """
    backbone.require_seam("a deep prefix")
    if not argument.isdecimal() or not 1 <= int(argument) <= backbone.max_tokens - 3:
        raise UsageError(
            f"prefix length {argument!r} is not allowed; backbone {backbone.name!r} takes 1 to"
            f" {backbone.max_tokens - 3}, its positions less a shortest input"
        )
    return (backbone.n_layers, 2, backbone.n_heads, int(argument), backbone.width // backbone.n_heads)


def start_prefix(argument: str, backbone: Backbone, generator: torch.Generator) -> Tensor:
    """Return where a prefix starts learning: N(0, 0.02)."""
    shape = prefix_shape(argument, backbone)
    return torch.empty(shape).normal_(0, _SPREAD, generator=generator).to(backbone.device)
