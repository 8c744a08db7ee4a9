"""Weights that need nothing from the model but the tokens' states."""

import functools
import operator
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from promptcli.backbones.states import LAST, Batch, HiddenStates, Needs, slot_positions
from promptcli.encoder.components import BuildContext, Weights
from promptcli.errors import UsageError, WrongKindError


def weighted_sum(weights: Tensor, states: Tensor) -> Tensor:
    """Return sum_t w_t x_t, (n, d), from weights (n, t) and states (n, t, d)."""
    return (weights.unsqueeze(1) @ states).squeeze(1)


class Mean(Weights):
    """sum_t w_t x_t / sum_t w_t."""

    @abstractmethod
    def weigh(self, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return w, (n, t)."""

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        weights = self.weigh(batch, hidden).to(states.dtype)
        return weighted_sum(weights, states) / weights.sum(1, keepdim=True)


class Average(Weights):
    """``avg``: w_t = 1/T over real tokens."""

    spec = "avg"
    averaged: slice | None = slice(None)

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        # not a ``Mean``: autocast would sum its weights, and divide by the sum, in float32
        total = weighted_sum(batch.real().to(states.dtype), states)
        return total / batch.lengths.unsqueeze(1)


class Weighted(Mean):
    """``weighted``: w_t = t / (1 + ... + T), later tokens more (Muennighoff 2022)."""

    spec = "weighted"

    def weigh(self, batch: Batch, hidden: HiddenStates) -> Tensor:
        places = torch.arange(1, batch.ids.size(1) + 1, device=batch.ids.device)
        return batch.real() * places


class SquareRoot(Weights):
    """``sqrt``: w_t = 1/sqrt(T)."""

    spec = "sqrt"

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        total = weighted_sum(batch.real().to(states.dtype), states)
        return total / batch.lengths.unsqueeze(1).sqrt()


class Maximum(Weights):
    """``max``: max_t x_t, dimension by dimension."""

    spec = "max"

    def read(self, batch: Batch) -> Tensor:
        """Return the mask (n, t) of the tokens that are read."""
        return batch.real()

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        return states.masked_fill(~self.read(batch).unsqueeze(2), float("-inf")).amax(dim=1)


class FromToken(Weights):
    """Other weights, applied as if the tokens from the k-th (0-based) on were the input."""

    def __init__(self, first: int, weights: Weights) -> None:
        needs = weights.needs
        # these need all tokens, or a position that is counted from the first one
        needs_all = needs.diagonals or needs.attention_rows or (needs.slot or 0) > 0
        if needs_all or isinstance(weights, Weighted):
            raise UsageError(
                f"weights {weights.spec} with include_prompt false cannot be used; use avg, or a"
                " model with include_prompt true"
            )
        self.spec = f"from:{first};{weights.spec}"
        self._first = first
        self._weights = weights

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        lengths = batch.host_lengths() - self._first
        later_tokens = Batch(
            batch.ids[:, self._first :], batch.lengths - self._first, lengths_on_host=lengths
        )
        return self._weights.pool(states[:, self._first :], later_tokens, hidden)


class SideBySide(Weights):
    """Several vectors side by side, (n, k d)."""

    def __init__(self, members: Sequence[Weights]) -> None:
        self._members = members
        self.spec = "+".join(weights.spec for weights in members)
        self.reads_content_only = any(weights.reads_content_only for weights in members)
        if any(weights.rewriting for weights in members):
            raise ValueError("weights that rewrite sentences cannot be joined")
        needs = functools.reduce(operator.or_, (weights.needs for weights in members))
        self.needs = replace(needs, slot=None)

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        return torch.cat([weights.pool(states, batch, hidden) for weights in self._members], dim=1)


def state_at(slot: int, states: Tensor, batch: Batch) -> Tensor:
    """Return the states (n, d) at a slot of each input."""
    inputs = torch.arange(states.size(0), device=states.device)
    return states[inputs, slot_positions(batch, slot)]


class AtSlot(Weights):
    """The state at one position of the input, ``needs.slot``."""

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        if hidden.slot is not None:
            return states[:, 0]
        assert self.needs.slot is not None
        return state_at(self.needs.slot, states, batch)


class Cls(AtSlot):
    """The raw state of the first special token (SimCSE's cls_before_pooler)."""

    spec = "cls"
    needs = Needs(slot=0)

    def __init__(self, context: BuildContext) -> None:
        super().__init__(context)
        if context.backbone.causal:
            name = context.backbone.name
            raise WrongKindError(
                f"weights 'cls' read the first token, which sees only itself in {name!r}; use"
                " last-token"
            )


class Mask(AtSlot):
    """h_[MASK], eq. 2 of PromptBERT; ``mask:k`` reads the k-th mask of a template that has
    several.
    """

    def __init__(self, context: BuildContext) -> None:
        slot = context.spec["slot"] or 1
        self.spec = "mask" if slot == 1 else f"mask:{slot}"
        self.needs = Needs(slot=slot)


class LastToken(AtSlot):
    """The state of the input's last token; in causal models it has seen all others (PromptEOL)."""

    spec = "last-token"
    needs = Needs(slot=LAST)


class LastAndMean(Average):
    """``last-and-mean``: half the last token's state, half the mean of all (KV-Embedding)."""

    spec = "last-and-mean"
    averaged = None

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        return (state_at(LAST, states, batch) + super().pool(states, batch, hidden)) / 2
