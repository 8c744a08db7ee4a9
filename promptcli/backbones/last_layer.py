"""The last layer at one position per sentence: a pooling that reads one token needs one query, not t.

For families with BERT's floor plan. Keys and values still come from every token.
"""

from typing import Any

import torch
from torch import Tensor

from promptcli.backbones.seam import SeamCall, attend, with_prefix


def compute_last_layer_at_slots(model: Any) -> None:
    """Let the model take ``slots`` (n,): the last layer then returns (n, 1, d), the states at those positions."""
    layer = model.encoder.layer[-1]
    whole = layer.forward

    def forward(
        hidden: Tensor, attention_mask: Tensor | None = None, *rest: Any, slots: Tensor | None = None, **options: Any
    ) -> Any:
        if slots is None:
            return whole(hidden, attention_mask, *rest, **options)
        return _at_slots(layer, hidden, attention_mask, slots, options.get("seam"))

    layer.forward = forward


def _at_slots(layer: Any, hidden: Tensor, mask: Tensor | None, slots: Tensor, seam: SeamCall | None) -> Tensor:
    """Return the layer's output at ``slots``, (n, 1, d), from hidden states (n, t, d)."""
    rows = torch.arange(hidden.size(0), device=hidden.device)
    at_slot = hidden[rows, slots].unsqueeze(1)
    attention = layer.attention.self

    def by_heads(states: Tensor) -> Tensor:
        return states.view(*states.shape[:-1], -1, attention.attention_head_size).transpose(1, 2)

    if mask is not None:
        mask = mask.expand(hidden.size(0), -1, -1, -1)[:, :, :1]  # padding masks keys: every query's row is the same
    keys, values = by_heads(attention.key(hidden)), by_heads(attention.value(hidden))
    if seam is not None and seam.prefix is not None:
        keys, values, mask = with_prefix(seam.prefix[-1], keys, values, mask)
    probability = attention.dropout.p if layer.training else 0.0
    context = attend(by_heads(attention.query(at_slot)), keys, values, mask, probability, attention.scaling)
    attended = layer.attention.output(context.transpose(1, 2).flatten(2), at_slot)
    output: Tensor = layer.output(layer.intermediate(attended), attended)
    return output
