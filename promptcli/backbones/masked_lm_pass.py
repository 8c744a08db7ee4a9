"""The forward pass of a BERT in training, on copies of its weights in the precision of the matrix products.

One cast a weight and step, where autocast casts around every operation; queries, keys and values from one product;
dropout by the fast path. The result is transformers' own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.backbones.dropout import Dropout
from promptcli.backbones.language_model import padded, row_sum

#: Attention is computed for a multiple of so many tokens: a processor takes as many numbers at a time.
_KEYS = 16


@dataclass(frozen=True)
class Chunks:
    """What one pass reads."""

    ids: Tensor  #: (n, t)
    positions: Tensor  #: (n, t) place of each token in the position table
    real: Tensor | None  #: (n, t) bool, not padding; None where there is no padding


def hidden_states(bert: Any, chunks: Chunks, places: Tensor, dtype: torch.dtype, drop: Dropout) -> Tensor:
    """Return the last layer's states at some places, (k, d), in ``dtype``.

    Args:
        bert: A ``transformers`` BertModel; its parameters get the gradients.
        chunks: The inputs.
        places: (k,) numbered in the flattened ids; after the last attention nothing else is computed.
        dtype: Of all products and states.
        drop: Dropout of states and attention.
    """
    table = bert.embeddings
    ids, positions = (padded(numbers.flatten()) for numbers in (chunks.ids, chunks.positions))
    summed = (
        functional.embedding(ids, table.word_embeddings.weight)
        + functional.embedding(positions, table.position_embeddings.weight)
        + table.token_type_embeddings.weight[0]
    )
    states = drop(_norm(table.LayerNorm, summed.to(dtype)))
    blocked = None
    beyond = -chunks.ids.size(1) % _KEYS
    if beyond or chunks.real is not None:
        real = torch.ones_like(chunks.ids, dtype=torch.bool) if chunks.real is None else chunks.real
        blocked = torch.zeros(real.size(0), real.size(1) + beyond, dtype=dtype, device=states.device)
        blocked = blocked.masked_fill_(~functional.pad(real, (0, beyond)), torch.finfo(dtype).min)[:, None, None, :]
    for layer in bert.encoder.layer:
        mixed = _attention(layer.attention.self, states, chunks.ids.shape, blocked, drop)
        if layer is bert.encoder.layer[-1]:
            mixed, states = mixed[places], states[places]
        out = layer.attention.output
        states = _norm(out.LayerNorm, states + drop(_linear(out.dense, mixed)))
        inner = functional.gelu(_linear(layer.intermediate.dense, states))
        out = layer.output
        states = _norm(out.LayerNorm, states + drop(_linear(out.dense, inner)))
    return states


def head_states(transform: Any, states: Tensor) -> Tensor:
    """Return what the decoder reads, (k, d), from states of the places to predict, (k, d)."""
    return _norm(transform.LayerNorm, functional.gelu(_linear(transform.dense, states)))


def _linear(module: nn.Linear, states: Tensor) -> Tensor:
    return _product(states, module.weight.to(states.dtype), module.bias.to(states.dtype))


def _product(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return states @ weight.T + bias."""
    if states.device.type != "cpu" or len(bias) <= states.size(1):
        return functional.linear(states, weight, bias)
    made: Tensor = _WideLinear.apply(states, weight, bias)  # type: ignore[no-untyped-call]
    return made


class _WideLinear(torch.autograd.Function):
    """A linear map to more numbers than it reads, on a processor."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(states, weight)
        return functional.linear(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states, weight = ctx.saved_tensors
        (gradient,) = gradients
        return gradient @ weight, gradient.T @ states, row_sum(gradient)


def _norm(module: nn.LayerNorm, states: Tensor) -> Tensor:
    weight, bias = module.weight.to(states.dtype), module.bias.to(states.dtype)
    return functional.layer_norm(states, module.normalized_shape, weight, bias, module.eps)


def _attention(module: Any, states: Tensor, shape: Sequence[int], blocked: Tensor | None, drop: Dropout) -> Tensor:
    """Return the heads' mixtures side by side, (r, d) with zeros after n t rows, from states (r, d) and n, t."""
    (n, t), d, heads = shape, states.size(1), module.num_attention_heads
    scale = (d // heads) ** -0.5  # of the scores
    three = [(module.query, scale), (module.key, 1.0), (module.value, 1.0)]
    weight = torch.cat([part.weight * factor for part, factor in three]).to(states.dtype)
    bias = torch.cat([part.bias * factor for part, factor in three]).to(states.dtype)
    together = _product(states, weight, bias)
    queries, keys, values = _SplitHeads.apply(together, n, t, heads)  # type: ignore[no-untyped-call]
    if states.device.type != "cpu":
        mixed = functional.scaled_dot_product_attention(queries, keys, values, blocked, drop.probability, scale=1.0)
    else:  # plain products beat the fused kernel's backward pass
        scores = queries @ keys.transpose(-1, -2)
        if blocked is not None:
            scores += blocked
        mixed = drop.product(scores.softmax(dim=-1), values)
    joined: Tensor = _MergeHeads.apply(mixed, t, len(states))  # type: ignore[no-untyped-call]
    return joined


def _to_heads(rows: Tensor, n: int, t: int, heads: int) -> Tensor:
    """Return (n, h, T, d/h), zeros after t tokens, from rows (at least n t, d); T is a multiple of ``_KEYS``."""
    made = rows.new_empty(n, heads, t + -t % _KEYS, rows.size(1) // heads)
    made[:, :, :t] = rows[: n * t].view(n, t, heads, -1).transpose(1, 2)
    made[:, :, t:] = 0
    return made


def _to_rows(by_heads: Tensor, t: int, rows: Tensor) -> None:
    """Write the first t tokens of (n, h, T, d/h) into rows (r, d), zeros after them."""
    n, heads = by_heads.shape[:2]
    rows[: n * t].view(n, t, heads, -1).copy_(by_heads[:, :, :t].transpose(1, 2))
    rows[n * t :] = 0


class _SplitHeads(torch.autograd.Function):
    """(r, 3 d) to queries, keys and values, (n, h, T, d/h) each; both ways every number is copied once."""

    @staticmethod
    def forward(ctx: Any, together: Tensor, n: int, t: int, heads: int) -> tuple[Tensor, ...]:
        ctx.shape, ctx.t = together.shape, t
        return tuple(_to_heads(part, n, t, heads) for part in together.chunk(3, dim=1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        together = gradients[0].new_empty(ctx.shape)
        for part, gradient in zip(together.chunk(3, dim=1), gradients, strict=True):
            _to_rows(gradient, ctx.t, part)
        return together, None, None, None


class _MergeHeads(torch.autograd.Function):
    """(n, h, T, d/h) to (r, d)."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, t: int, count: int) -> Tensor:
        ctx.shape = mixed.size(0), t, mixed.size(1)
        rows = mixed.new_empty(count, mixed.size(1) * mixed.size(3))
        _to_rows(mixed, t, rows)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _to_heads(gradients[0], *ctx.shape), None, None
