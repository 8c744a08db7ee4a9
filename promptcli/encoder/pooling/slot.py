"""``cls`` and ``mask``: the state at one position (SimCSE's cls_before_pooler; PromptBERT eq. 2)."""

import torch
from torch import Tensor

from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling.weights import PlainWeights


class Cls(PlainWeights):
    """The raw state of the first special token."""

    spec = "cls"
    needs = Needs(slot="cls")

    def __init__(self, context: BuildContext) -> None:
        context.no_argument(f"weights {self.spec!r} take")

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return (n, d)."""
        return states[:, 0 if hidden.slot else batch.cls_slot]


class Mask(PlainWeights):
    """h_[MASK], eq. 2 of PromptBERT."""

    spec = "mask"
    needs = Needs(slot="mask")

    def __init__(self, context: BuildContext) -> None:
        context.no_argument(f"weights {self.spec!r} take")

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return (n, d)."""
        if hidden.slot:
            return states[:, 0]
        assert batch.mask_slots is not None
        return states[torch.arange(states.size(0), device=states.device), batch.mask_slots]
