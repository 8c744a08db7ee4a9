"""Dropout on CPUs: random bits by the machine word, seeded by torch's own generator.

On AMD's processors torch draws one number after the other, which costs a tenth of a training step.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

_LEVELS = 2**16  # sixteen random bits a number: the probability is right to 1/131,072


class FastDropout(nn.Dropout):
    """``nn.Dropout`` by ``dropout``."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with dropout in training, else unchanged."""
        return dropout(input, self.p) if self.training else input


def is_quick(numbers: Tensor) -> bool:
    """Return whether this file draws a tensor's dropout: on a CPU.

    A compiled model uses torch's dropout, which its kernels contain.
    """
    return numbers.device.type == "cpu" and not torch.compiler.is_compiling()


def dropout(numbers: Tensor, probability: float) -> Tensor:
    """Return the numbers, each 0 with a probability p, the rest scaled by 1 / (1 - p)."""
    if not probability:
        return numbers
    if not is_quick(numbers):
        return functional.dropout(numbers, probability)
    count = numbers.numel()
    seed = int(torch.randint(2**62, ()))
    words = np.random.Generator(np.random.SFC64(seed)).integers(
        0, 2**64 - 1, size=-(-count // 4), dtype=np.uint64, endpoint=True
    )
    kept: np.ndarray = words.view(np.uint16)[:count] >= round(probability * _LEVELS)
    mask = torch.from_numpy(kept.view(np.int8)).view(numbers.shape)
    return (numbers * mask).mul_(1 / (1 - probability))


def install_fast_dropout(model: nn.Module) -> None:
    """Replace every dropout of a model by ``FastDropout``."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = FastDropout
