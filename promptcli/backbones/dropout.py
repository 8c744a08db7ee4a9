"""Dropout on CPUs: random bits by the machine word, seeded by torch's own generator."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

# integers as wide as a number, by its bytes
_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_LEVELS = 2**16  # sixteen random bits a number: the probability is right to 1/131,072


class FastDropout(nn.Dropout):
    """``nn.Dropout``, five times as fast on a CPU; the same elsewhere."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with each number dropped with probability p and the rest scaled by 1 /
        (1 - p).
        """
        if not self.training:
            return input
        return dropout(input, self.p)


def is_quick(numbers: Tensor) -> bool:
    """Return whether this file computes a tensor's dropout: on a CPU.

    A compiled model uses torch's dropout, which its kernels contain.
    """
    return numbers.device.type == "cpu" and not torch.compiler.is_compiling()


def dropout(numbers: Tensor, probability: float, before: Tensor | None = None) -> Tensor:
    """Return ``numbers`` with dropout, plus ``before``."""
    if probability and is_quick(numbers):
        kept = _keep(numbers.shape, probability)
        scale = 1 / (1 - probability)
        masked: Tensor = _Masked.apply(numbers, kept, scale, before)  # type: ignore[no-untyped-call]
        return masked
    if probability:
        numbers = functional.dropout(numbers, probability)
    if before is not None:
        numbers = numbers + before
    return numbers


def dropped_copies(numbers: Tensor, count: int, probability: float) -> Tensor:
    """Return ``count`` copies (L, count, ...) of numbers (L, ...), each with its own dropout."""
    shape = (-1, count, *(-1 for _ in numbers.shape[1:]))
    if numbers.device.type != "cpu":
        return functional.dropout(numbers.unsqueeze(1).expand(shape), probability)
    copies = (numbers / (1 - probability)).unsqueeze(1).expand(shape)
    dropped: Tensor = _Masked.apply(copies, _keep(copies.shape, probability), 1, None)  # type: ignore[no-untyped-call]
    return dropped


class _Masked(torch.autograd.Function):
    """numbers x kept x scale, plus ``before``.

    Keeps a byte a number for the backward pass, not the numbers.
    """

    @staticmethod
    def forward(
        ctx: Any, numbers: Tensor, kept: Tensor, scale: float, before: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        ctx.dtype = numbers.dtype
        ctx.added = before is not None
        if before is None:
            return _scale_kept(numbers, kept, scale)
        return torch.add(before, _zero_dropped(numbers, _bits(kept, numbers)), alpha=scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, Tensor | None]:
        (kept,) = ctx.saved_tensors
        scaled = _scale_kept(gradients[0], kept, ctx.scale).to(ctx.dtype)  # rounded once
        if not ctx.added:
            return scaled, None, None, None
        return scaled, None, None, gradients[0]


def dropped_product(weights: Tensor, values: Tensor, probability: float) -> Tensor:
    """Return ``dropout(weights) @ values``, (..., t, s) by (..., s, d), on a CPU, without
    holding the former.
    """
    if not probability:
        return weights @ values
    product: Tensor = _MaskedProduct.apply(  # type: ignore[no-untyped-call]
        weights, values, _keep(weights.shape, probability), 1 / (1 - probability)
    )
    return product


class _MaskedProduct(torch.autograd.Function):
    """(weights x kept x scale) @ values.

    The softmax before it holds its weights anyway, so they cost nothing.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(weights, values, kept)
        ctx.scale = scale
        return _zero_dropped(weights, _bits(kept, weights)) @ (values * scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weights, values, kept = ctx.saved_tensors
        gradient = gradients[0] * ctx.scale
        bits = _bits(kept, weights)
        of_weights = _zero(gradient @ values.transpose(-1, -2), bits)
        return of_weights, _zero_dropped(weights, bits).transpose(-1, -2) @ gradient, None, None


def _bits(kept: Tensor, numbers: Tensor) -> Tensor:
    """Return a mask as integers as wide as the numbers, with all bits set for a number that is
    kept.
    """
    return kept.to(_WHOLE[numbers.element_size()])


def _zero_dropped(numbers: Tensor, bits: Tensor) -> Tensor:
    """Return the numbers, 0 if dropped: a bitwise product is several times as fast as one with
    bools.
    """
    return numbers.view(bits.dtype).bitwise_and(bits).view(numbers.dtype)


def _zero(numbers: Tensor, bits: Tensor) -> Tensor:
    """Zero the dropped numbers in place; nothing else uses the tensor."""
    numbers.view(bits.dtype).bitwise_and_(bits)
    return numbers


def _scale_kept(numbers: Tensor, kept: Tensor, scale: float) -> Tensor:
    """Return numbers x kept x scale."""
    return _zero(numbers.mul(scale), _bits(kept, numbers))


def _keep(shape: torch.Size, probability: float) -> Tensor:
    """Return whole numbers of that shape, -1 with probability 1 - p, else 0, a byte each."""
    count = shape.numel()
    seed = int(torch.randint(2**62, ()))
    words = np.random.Generator(np.random.SFC64(seed)).integers(
        0, 2**64 - 1, size=-(-count // 4), dtype=np.uint64, endpoint=True
    )
    kept: np.ndarray = words.view(np.uint16)[:count] >= round(probability * _LEVELS)
    return torch.from_numpy(kept.view(np.int8)).neg_().view(shape)


def install_fast_dropout(model: nn.Module) -> None:
    """Replace every dropout of a model by ``FastDropout``."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                replaced = FastDropout(child.p)
                replaced.train(child.training)
                setattr(module, name, replaced)
