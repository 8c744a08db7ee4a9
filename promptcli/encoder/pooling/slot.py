"""``cls``, ``mask``, ``mask:k`` and ``last-token``: the state at one position of the input."""

import torch
from torch import Tensor

from promptcli.backbones.families import FAMILIES
from promptcli.backbones.states import LAST, Batch, HiddenStates, Needs, slot_positions
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling.weights import Weights
from promptcli.errors import UsageError, WrongKindError


class AtSlot(Weights):
    """The state at one position of the input."""

    slot: int  #: 0 for [CLS], k for the k-th mask, ``LAST``

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return (n, d)."""
        if hidden.slot is not None:
            return states[:, 0]
        return states[torch.arange(states.size(0), device=states.device), slot_positions(batch, self.slot)]


class Cls(AtSlot):
    """The raw state of the first special token (SimCSE's cls_before_pooler)."""

    spec = "cls"
    slot = 0
    needs = Needs(slot=0)

    def __init__(self, context: BuildContext) -> None:
        context.no_argument("weights 'cls' take")
        if context.backbone.causal:
            raise WrongKindError(
                f"weights 'cls' read the first token, which sees nothing of the sentence in backbone"
                f" {context.backbone.name!r}, a causal one; take last-token, e.g. --model prompteol"
            )


class Mask(AtSlot):
    """h_[MASK], eq. 2 of PromptBERT; ``mask:k`` reads the k-th mask of a template that has several."""

    def __init__(self, context: BuildContext) -> None:
        argument = context.argument or "1"
        if not argument.isdecimal() or int(argument) < 1:
            raise UsageError(f"weights 'mask:{argument}' are not known; give mask, or mask:K for the K-th mask, from 1")
        self.slot = int(argument)
        self.spec = "mask" if self.slot == 1 else f"mask:{self.slot}"
        self.needs = Needs(slot=self.slot)


class LastToken(AtSlot):
    """The state of the input's last token, which in causal models has seen all others (PromptEOL)."""

    spec = "last-token"
    slot = LAST
    needs = Needs(slot=LAST)

    def __init__(self, context: BuildContext) -> None:
        context.no_argument("weights 'last-token' take")


def causal_families() -> list[str]:
    """Return the names of the causal families."""
    return [name for name, family in FAMILIES.items() if family.causal]
