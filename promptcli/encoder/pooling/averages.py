"""Weights that ask nothing of the model: ``avg``, ``max``, ``sqrt``, ``weighted``, ``from:K;A`` and ``A+B``."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from promptcli.backbones.states import Batch, HiddenStates
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling.weights import Weights, weighted_sum
from promptcli.errors import UsageError


class Average(Weights):
    """w_t = 1/T."""

    spec = "avg"
    averaged = slice(None)

    def __init__(self, context: BuildContext) -> None:
        context.no_argument(f"weights {self.spec!r} take")

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return the mean over real tokens, (n, d)."""
        real = batch.real().to(states.dtype)
        return weighted_sum(real, states) / batch.lengths.unsqueeze(1)


class Largest(Weights):
    """max_t x_t, dimension by dimension."""

    spec = "max"

    def __init__(self, context: BuildContext) -> None:
        context.no_argument(f"weights {self.spec!r} take")

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return (n, d)."""
        padding = ~batch.real().unsqueeze(2)
        return states.masked_fill(padding, float("-inf")).amax(dim=1)


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


class From(Weights):
    """The weights of another kind on the tokens from the k-th (0-based) on: what stands before them is not counted."""

    def __init__(self, first: int, weights: Weights) -> None:
        if isinstance(weights, Weighted):
            raise UsageError("weights 'weighted' (weightedmean) with include_prompt false are not read")
        self.spec = f"from:{first};{weights.spec}"
        self._first, self._weights = first, weights

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return (n, d)."""
        lengths = batch.host_lengths() - self._first
        rest = Batch(batch.ids[:, self._first :], batch.lengths - self._first, counts=lengths)
        return self._weights.pool(states[:, self._first :], rest, hidden)


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
