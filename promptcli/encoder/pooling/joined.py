"""``sqrt``, ``weighted`` and ``A+B``: the remaining ways in which sentence-transformers pools tokens."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from promptcli.backbones.states import Batch, HiddenStates
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling.weights import Weights, weighted_sum


class SquareRoot(Weights):
    """w_t = 1/sqrt(T)."""

    spec = "sqrt"

    def __init__(self, context: BuildContext) -> None:
        context.no_argument("weights 'sqrt' take")

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return the sum over real tokens over the square root of their number, (n, d)."""
        return weighted_sum(batch.real().to(states.dtype), states) / batch.lengths.unsqueeze(1).sqrt()


class Weighted(Weights):
    """w_t = t / (1 + ... + T), later tokens more (Muennighoff 2022)."""

    spec = "weighted"

    def __init__(self, context: BuildContext) -> None:
        context.no_argument("weights 'weighted' take")

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return the mean weighted by position, (n, d)."""
        places = torch.arange(1, states.size(1) + 1, device=states.device)
        weights = (batch.real() * places).to(states.dtype)
        return weighted_sum(weights, states) / weights.sum(1, keepdim=True)


class Joined(Weights):
    """Several vectors side by side, (n, k d)."""

    def __init__(self, parts: Sequence[Weights]) -> None:
        self.parts = parts
        self.spec = "+".join(part.spec for part in parts)
        if any(part.rewriting for part in parts):
            raise ValueError("weights that rewrite sentences cannot be joined")
        self.needs = replace(parts[0].needs, slot=None)

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return the parts' vectors in their order."""
        return torch.cat([part.pool(states, batch, hidden) for part in self.parts], dim=1)
