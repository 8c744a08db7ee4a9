"""The one seam into transformers: an attention function of our own, registered by name, that serves every method.

A ``SeamCall`` travels with one forward pass as the keyword argument ``seam`` of the model: it carries deep prefixes in
and attention diagonals, or whole matrices, out. Layers are numbered by counting calls, because ALBERT shares one module
among its layers and DistilBERT's modules carry no number. Knows nothing of recipes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from promptcli.backbones import dropout as quick

NAME = "promptcli"


@dataclass
class SeamCall:
    """What one forward pass carries to and from the attention of every layer."""

    #: Per layer the prefix keys and values, each (h, p, d/h) or (n, h, p, d/h), as in DCPCSE; None for none.
    prefix: Sequence[tuple[Tensor, Tensor]] | None = None
    diagonal_layers: Collection[int] = ()  #: layers (0-based) whose diagonal is wanted
    #: Layer -> (n, h, t) float32, a_ii of the post-softmax attention matrix (Ditto); filled.
    diagonals: dict[int, Tensor] = field(default_factory=dict)
    matrix_layers: Collection[int] = ()  #: layers (0-based) whose whole matrix is wanted
    #: Layer -> (n, h, t, t) float32, post-softmax; filled. With a prefix its columns come first.
    matrices: dict[int, Tensor] = field(default_factory=dict)
    calls: int = 0  #: layers that have come by

    def next_layer(self) -> int:
        """Return the number (0-based) of the layer that is calling."""
        self.calls += 1
        return self.calls - 1


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    seam: SeamCall | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend with the fused kernels; put the layer's prefix in front of keys and values, and read the diagonal.

    Args:
        module: The calling attention module (unused: layers are counted).
        query: (n, h, t, d/h).
        key: (n, h, t, d/h).
        value: (n, h, t, d/h).
        attention_mask: (n, 1, t, t), boolean (True = attend) or additive; None where nothing is masked.
        scaling: Factor of the dot products; None means (d/h)^-1/2.
        dropout: Probability of attention dropout.
        seam: The pass's own call; None for plain attention.

    Returns:
        (n, t, h, d/h), and None in place of the attention matrix, which goes into the call where it wants it.
    """
    scale = query.size(-1) ** -0.5 if scaling is None else scaling
    layer = seam.next_layer() if seam is not None else 0
    wants_diagonal = seam is not None and layer in seam.diagonal_layers
    own = (query.float() * key.float()).sum(-1) * scale if wants_diagonal else None
    if seam is not None and seam.prefix is not None:
        key, value, attention_mask = with_prefix(seam.prefix[layer], key, value, attention_mask)
    if seam is not None and layer in seam.matrix_layers:
        seam.matrices[layer] = _scores(query, key, attention_mask, scale).softmax(-1)
    if seam is None or own is None:
        output = attend(query, key, value, attention_mask, dropout, scale)
    else:
        output, logsumexp = _attend_with_logsumexp(query, key, value, attention_mask, scale)
        # a_ii = exp(q_i . k_i * scale) / sum_j exp(q_i . k_j * scale)
        seam.diagonals[layer] = (own - logsumexp).exp()
    return output.transpose(1, 2).contiguous(), None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, probability: float, scale: float) -> Tensor:
    """Return the attention's output (n, h, t, d/h), with dropout of that probability."""
    if not (probability and query.device.type == "cpu"):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=probability, scale=scale
        )
    # with dropout the library falls back to these products, and draws its numbers one after the other
    weights = _scores(query, key, mask, scale).softmax(-1).to(value.dtype)
    return quick.dropped_product(weights, value, probability)


def with_prefix(
    prefix: tuple[Tensor, Tensor], key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Put a prefix in front of keys and values (n, h, t, d/h), and widen the mask by it."""
    n = key.size(0)
    keys, values = (part.expand(n, *part.shape[-3:]).to(key.dtype) for part in prefix)
    if mask is not None:
        mask = functional.pad(mask, (keys.size(-2), 0), value=True if mask.dtype == torch.bool else 0.0)
    return torch.cat([keys, key], -2), torch.cat([values, value], -2), mask


def _attend_with_logsumexp(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output (n, h, t, d/h) and the logsumexp over keys (n, h, t) float32 of one fused attention."""
    if mask is not None:
        mask = _additive(mask, query.dtype).expand(query.size(0), 1, query.size(2), key.size(2))
    kernel = _KERNELS.get(query.device.type, _plain)
    output, logsumexp = kernel(query, key, value, mask, scale)
    return output, logsumexp[..., : query.size(2)].float()


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    # half the lowest number: padding that may attend to nothing (sliding windows) must not overflow to NaN
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min / 2)


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return the scaled and masked dot products, (n, h, t, t) float32."""
    scores = (query @ key.transpose(-1, -2)).float() * scale
    return scores if mask is None else scores + _additive(mask, scores.dtype)


def _cpu(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, False, attn_mask=mask, scale=scale
    )
    return result


def _cuda(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    bias = None
    if mask is not None:  # the kernel wants rows that start at multiples of 16 elements
        width = key.size(2)
        aligned = functional.pad(mask, (0, -width % 16))[..., :width]
        bias = aligned.expand(query.size(0), query.size(1), query.size(2), width)
    output, logsumexp, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, 0.0, False, scale=scale
    )
    return output, logsumexp


def _plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Any other device: one layer's matrix is made and let go."""
    scores = _scores(query, key, mask, scale)
    return scores.softmax(-1).to(value.dtype) @ value, scores.logsumexp(-1)


_KERNELS = {"cpu": _cpu, "cuda": _cuda}

AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
