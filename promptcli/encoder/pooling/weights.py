"""The base of pooling weights: how the states of a sentence's tokens become one vector."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.encoder.context import BuildContext


class Weights(ABC):
    """w_t of h = sum_t w_t x_t; most have nothing fitted and take sentences as they are."""

    spec: str  #: name and argument in full, as a recipe writes them
    needs = Needs()  #: what the weights themselves read (diagonals, or one slot)
    #: Name of the rewriting step, equal where the rewritten sentences are; None where nothing is rewritten.
    rewriting: str | None = None
    #: The tokens of an input that are plainly averaged; None where the weights are anything else.
    averaged: slice | None = None

    @classmethod
    def start(cls, context: BuildContext, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the numbers that learning starts from, by name; none where nothing is learned."""
        return {}

    @abstractmethod
    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return (n, d) from states (n, t, d)."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the fitted numbers by name; empty where nothing is fitted."""
        return {}

    def rewrite(self, pieces: Sequence[str], backbone: Backbone) -> list[list[int]]:
        """Return each sentence's token ids, without specials."""
        return backbone.tokenizer.encode(pieces)


def weighted_sum(weights: Tensor, states: Tensor) -> Tensor:
    """Return sum_t w_t x_t, (n, d), from weights (n, t) and states (n, t, d)."""
    return (weights.unsqueeze(1) @ states).squeeze(1)
