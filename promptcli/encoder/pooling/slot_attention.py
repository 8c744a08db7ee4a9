"""``slot-attention``: the tokens that the mask, or the last token, attends to most.

After the successor of Token Prepending's authors for causal models (SCSP, 2026). For a mask in a
template it is ours. Nothing is learned.
"""

import threading

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import LAST, Batch, HiddenStates, Needs
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling.weights import Weights, check_head, weighted_sum
from promptcli.errors import counted
from promptcli.grammar import decimal_text

ALPHA = 1.0  #: of a recipe that names none; published: 1 to 2.5


class SlotAttention(Weights):
    """w_j = 1/k for the k tokens with s_j > alpha / n, s_j the attention of the slot to token j.

    s_j is the maximum over all layers and heads, or of the one head of ``slot-attention:L-H``; n
    are the tokens of the input. The slot is the template's first mask, of a causal model the last
    token. A sentence without such a token gets the mean of all, and is counted.
    """

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        head = context.spec["head"]
        self.slot = slot_of(backbone)
        self._alpha = context.spec["alpha"]
        if self._alpha is None:
            self._alpha = ALPHA
        self._head: int | None = None
        name = "slot-attention"
        layers = range(backbone.n_layers)
        if head is not None:
            check_head(backbone, head)
            layers = range(head.first - 1, head.first)
            self._head = head.last - 1
            name = f"slot-attention:{head}"
        backbone.require_hook("slot-attention")
        self.spec = f"{name};{decimal_text(self._alpha)}"
        self.needs = Needs(rows=frozenset((layer, self.slot) for layer in layers))
        self._without = 0  #: sentences without a token above the threshold, since the last report
        self._lock = threading.Lock()

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        rows = [hidden.rows[wanted] for wanted in sorted(self.needs.rows)]
        if self._head is None:
            attention = torch.cat(rows, dim=1).amax(1)
        else:
            attention = rows[0][:, self._head]
        kept = kept_tokens(attention, batch, self._alpha)
        without = int((~kept.any(1)).sum())
        if without:
            with self._lock:
                self._without += without
        weights = kept_or_all(kept, batch).to(states.dtype)
        return weighted_sum(weights, states) / weights.sum(1, keepdim=True)

    def notes(self) -> list[str]:
        with self._lock:
            without, self._without = self._without, 0
        if not without:
            return []
        above = f"{self._alpha:g} / n of the slot's attention"
        return [f"{counted(without, 'sentence')} without a token above {above}; the mean is taken"]


def slot_of(backbone: Backbone) -> int:
    """Return the slot whose attention is read: the last token of a causal model, else the mask."""
    return LAST if backbone.causal else 1


def kept_tokens(attention: Tensor, batch: Batch, alpha: float) -> Tensor:
    """Return which tokens have more than alpha / n of the attention, bool.

    ``attention`` is (n, t), or (n, h, t) for several heads at once.
    """
    real = batch.real()
    threshold = alpha / batch.lengths.to(attention.dtype).unsqueeze(1)
    if attention.dim() > 2:
        real = real.unsqueeze(1)
        threshold = threshold.unsqueeze(1)
    return (attention > threshold) & real


def kept_or_all(kept: Tensor, batch: Batch) -> Tensor:
    """Return the kept tokens, (n, t) or (n, h, t), and all of an input that keeps none."""
    real = batch.real()
    if kept.dim() > 2:
        real = real.unsqueeze(1)
    return torch.where(kept.any(-1, keepdim=True), kept, real)
