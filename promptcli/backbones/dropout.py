"""Dropout on processors: random bits drawn by the machine word, since torch draws one number after the other there.

The masks follow from torch's own generator, so seeds, and passes that are computed again, behave as with torch's.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers as wide as a number, by its bytes
_LEVELS = 2**16  # sixteen random bits a number: the probability is right to 1/131,072


class FastDropout(nn.Dropout):
    """``nn.Dropout``, five times as fast on a processor; the same elsewhere."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with each number dropped with probability p, the others scaled by 1 / (1 - p)."""
        return dropout(input, self.p) if self.training else input


def dropout(numbers: Tensor, probability: float) -> Tensor:
    """Return ``numbers`` with dropout."""
    if not probability:
        return numbers
    if numbers.device.type != "cpu":
        return functional.dropout(numbers, probability)
    dropped: Tensor = _Masked.apply(  # type: ignore[no-untyped-call]
        numbers, _keep(numbers.shape, probability), 1 / (1 - probability)
    )
    return dropped


class _Masked(torch.autograd.Function):
    """numbers x kept x scale; holds a byte a number for the backward pass, where a product would hold the number."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return _zero(numbers.mul(scale), kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return _zero(gradients[0].mul(ctx.scale), kept), None, None


def dropped_product(weights: Tensor, values: Tensor, probability: float) -> Tensor:
    """Return ``dropout(weights, probability) @ values``, (..., t, s) by (..., s, d), on a processor.

    The weights after dropout are not held for the backward pass.
    """
    product: Tensor = _MaskedProduct.apply(  # type: ignore[no-untyped-call]
        weights, values, _keep(weights.shape, probability), 1 / (1 - probability)
    )
    return product


class _MaskedProduct(torch.autograd.Function):
    """(weights x kept x scale) @ values; the softmax before it holds its weights anyway, so they cost nothing."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(weights, values, kept)
        ctx.scale = scale
        return _zero(weights.clone(), kept) @ (values * scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weights, values, kept = ctx.saved_tensors
        gradient = gradients[0] * ctx.scale
        of_weights = _zero(gradient @ values.transpose(-1, -2), kept)
        return of_weights, _zero(weights.clone(), kept).transpose(-1, -2) @ gradient, None, None


def _zero(numbers: Tensor, kept: Tensor) -> Tensor:
    """Set what is not kept to 0, in place: as a bitwise product with 0 or -1, several times as fast as by bools."""
    whole = _WHOLE[numbers.element_size()]
    numbers.view(whole).bitwise_and_(kept.to(whole).neg_())
    return numbers


def _keep(shape: torch.Size, probability: float) -> Tensor:
    """Return bools of that shape, True with probability 1 - p."""
    count = shape.numel()
    seed = int(torch.randint(2**62, ()))
    words = np.random.Generator(np.random.SFC64(seed)).integers(
        0, 2**64 - 1, size=-(-count // 4), dtype=np.uint64, endpoint=True
    )
    kept: np.ndarray = words.view(np.uint16)[:count] >= round(probability * _LEVELS)
    return torch.from_numpy(kept).view(shape)


def install_fast_dropout(model: nn.Module) -> None:
    """Put ``FastDropout`` in the place of every dropout of a model."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                replaced = FastDropout(child.p)
                replaced.train(child.training)
                setattr(module, name, replaced)
