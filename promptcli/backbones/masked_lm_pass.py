"""The forward pass of a BERT in training, on copies of its weights in the precision of the matrix products.

One cast a weight and step, where autocast casts around every operation; queries, keys and values from one product;
dropout by the fast path. The result is transformers' own.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.backbones.dropout import dropout, dropped_product


@dataclass(frozen=True)
class Chunks:
    """What one pass reads."""

    ids: Tensor  #: (n, t)
    positions: Tensor  #: (n, t) place of each token in the position table
    real: Tensor | None  #: (n, t) bool, not padding; None where there is no padding


def hidden_states(bert: Any, chunks: Chunks, places: Tensor, dtype: torch.dtype, probability: float) -> Tensor:
    """Return the last layer's states at some places, (k, d), in ``dtype``.

    Args:
        bert: A ``transformers`` BertModel; its parameters get the gradients.
        chunks: The inputs.
        places: (k,) numbered in the flattened ids; after the last attention nothing else is computed.
        dtype: Of all products and states.
        probability: Of dropout, on states and attention.
    """
    table = bert.embeddings
    summed = (
        functional.embedding(chunks.ids, table.word_embeddings.weight)
        + functional.embedding(chunks.positions, table.position_embeddings.weight)
        + table.token_type_embeddings.weight[0]
    )
    states = dropout(_norm(table.LayerNorm, summed.to(dtype)), probability)
    heads: int = bert.config.num_attention_heads
    blocked = None
    if chunks.real is not None:
        blocked = torch.zeros(chunks.real.shape, dtype=dtype, device=states.device)
        blocked = blocked.masked_fill_(~chunks.real, torch.finfo(dtype).min)[:, None, None, :]
    for layer in bert.encoder.layer:
        mixed = _attention(layer.attention.self, states, heads, blocked, probability)
        if layer is bert.encoder.layer[-1]:
            mixed, states = mixed.flatten(0, 1)[places], states.flatten(0, 1)[places]
        out = layer.attention.output
        states = _norm(out.LayerNorm, states + dropout(_linear(out.dense, mixed), probability))
        inner = functional.gelu(_linear(layer.intermediate.dense, states))
        out = layer.output
        states = _norm(out.LayerNorm, states + dropout(_linear(out.dense, inner), probability))
    return states


def head_states(transform: Any, states: Tensor) -> Tensor:
    """Return what the decoder reads, (k, d), from states of the places to predict, (k, d)."""
    return _norm(transform.LayerNorm, functional.gelu(_linear(transform.dense, states)))


def _linear(module: nn.Linear, states: Tensor) -> Tensor:
    return functional.linear(states, module.weight.to(states.dtype), module.bias.to(states.dtype))


def _norm(module: nn.LayerNorm, states: Tensor) -> Tensor:
    weight, bias = module.weight.to(states.dtype), module.bias.to(states.dtype)
    return functional.layer_norm(states, module.normalized_shape, weight, bias, module.eps)


def _attention(module: Any, states: Tensor, heads: int, blocked: Tensor | None, probability: float) -> Tensor:
    """Return the heads' mixtures side by side, (n, t, d)."""
    n, t, d = states.shape
    three = (module.query, module.key, module.value)
    weight = torch.cat([part.weight for part in three]).to(states.dtype)
    bias = torch.cat([part.bias for part in three]).to(states.dtype)
    together = functional.linear(states, weight, bias).view(n, t, 3, heads, d // heads)
    queries, keys, values = together.permute(2, 0, 3, 1, 4).contiguous().unbind()
    if states.device.type != "cpu":
        mixed = functional.scaled_dot_product_attention(queries, keys, values, blocked, probability)
    else:  # plain products beat the fused kernel's backward pass
        scores = (queries * (d // heads) ** -0.5) @ keys.transpose(-1, -2)
        if blocked is not None:
            scores = scores + blocked
        weights = scores.softmax(dim=-1)
        mixed = dropped_product(weights, values, probability) if probability else weights @ values
    return mixed.transpose(1, 2).reshape(n, t, d)
