"""Weights by the model's own attention; nothing is learned.

``ditto:l-h``: tokens weighted by the diagonal of one attention head (Ditto, section 2).
``slot-attention``: the tokens that the mask, or the last token, attends to most. For causal models
it follows Token Prepending's authors (SCSP, 2026); for a mask in a template it is our own.
"""

import shlex

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.published_backbones import published_name
from promptcli.backbones.states import LAST, Batch, HiddenStates, Needs
from promptcli.encoder.components import BuildContext, Weights
from promptcli.encoder.pooling.weights import Mean, weighted_sum
from promptcli.errors import UsageError, with_count
from promptcli.grammar import Pair, decimal_text, parse_weights

#: Best heads on the STS-B development set by ``published_name``: the paper's (Ditto, table 2 and
#: figure 2), and ours for ``mini-bert``.
KNOWN_HEADS: dict[str, str] = {
    "mini-bert": "1-6",
    "bert-base-uncased": "1-10",
    "roberta-base": "1-5",
    "electra-base-discriminator": "1-11",
    "bert-base-nli-stsb-mean-tokens": "3-7",
}
ALPHA = 1.0  #: alpha of a recipe that does not give it; published: 1 to 2.5


def _indices(backbone: Backbone, head: Pair) -> tuple[int, int]:
    """Return the 0-based layer and head of a ``LAYER-HEAD``; refuse a head that does not exist."""
    if not (1 <= head.first <= backbone.n_layers and 1 <= head.last <= backbone.n_heads):
        last_head = f"{backbone.n_layers}-{backbone.n_heads}"
        raise UsageError(
            f"head '{head}' does not exist; {backbone.name!r} has 1-1 to {last_head} (layer-head,"
            " 1-based)"
        )
    return head.first - 1, head.last - 1


class Ditto(Weights):
    """w_t = A^{l,h}_{tt}, also for special tokens and the template's words.

    As in the published code the weights are not renormalised: a cosine does not depend on their
    scale.
    """

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        head = context.spec["head"]
        published_head = KNOWN_HEADS.get(published_name(backbone) or "")
        if head is None and published_head is not None:
            head = parse_weights(f"ditto:{published_head}")["head"]
        if head is None:
            search = f"`promptcli ditto-search --model {shlex.quote(backbone.name)}` finds one"
            raise UsageError(
                f"no head is known for backbone {backbone.name!r}: {search}; or give"
                " ditto:LAYER-HEAD"
            )
        self._layer, self._head = _indices(backbone, head)
        backbone.require_hook("Ditto")
        self.spec = f"ditto:{head}"
        self.needs = Needs(diagonals=frozenset({self._layer}))

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        diagonal = hidden.diagonals[self._layer][:, self._head]
        return weighted_sum(diagonal.masked_fill(~batch.real(), 0.0), states)


class SlotAttention(Mean):
    """w_j = 1/k for the k tokens with s_j > alpha / n, s_j the attention of the slot to token j.

    s_j is the maximum over all layers and heads, or over the one head of ``slot-attention:L-H``; n
    is the number of the input's tokens. The slot is the template's first mask, in a causal model
    the last token. A sentence without such a token gets the mean of all tokens; a note counts these
    sentences.
    """

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        head = context.spec["head"]
        alpha = context.spec["alpha"]
        self._alpha: float = ALPHA if alpha is None else alpha
        name = "slot-attention"
        layers = range(backbone.n_layers)
        self._heads = slice(None)
        if head is not None:
            layer, number = _indices(backbone, head)
            layers = range(layer, layer + 1)
            self._heads = slice(number, number + 1)
            name = f"slot-attention:{head}"
        backbone.require_hook("slot-attention")
        self.spec = f"{name};{decimal_text(self._alpha)}"
        self.needs = Needs(attention_rows=frozenset((layer, slot_of(backbone)) for layer in layers))
        #: For each batch since the last note, the number of sentences without such a token.
        self._without: list[int] = []

    def weigh(self, batch: Batch, hidden: HiddenStates) -> Tensor:
        rows = sorted(self.needs.attention_rows)
        of_layers = torch.cat([hidden.attention_rows[row] for row in rows], dim=1)
        attention = of_layers[:, self._heads].amax(1)
        is_above = tokens_above(attention, batch, self._alpha)
        self._without.append(int((~is_above.any(1)).sum()))
        return kept_or_all(is_above, batch)

    def notes(self) -> list[str]:
        without, self._without = sum(self._without), []
        if not without:
            return []
        above = f"{self._alpha:g} / n of the slot's attention"
        return [
            f"{with_count(without, 'sentence')} without a token above {above}; the mean is taken"
        ]


def slot_of(backbone: Backbone) -> int:
    """Return the slot whose attention is read: the last token of a causal model, else the mask."""
    return LAST if backbone.causal else 1


def tokens_above(attention: Tensor, batch: Batch, alpha: float) -> Tensor:
    """Return which tokens have more attention than alpha / length of the input, bool.

    ``attention`` is (n, t), or (n, h, t) for several heads at once; the result has its shape.
    """
    threshold = alpha / batch.lengths.to(attention.dtype)
    of_input = (-1, *[1] * (attention.dim() - 1))
    return (attention > threshold.view(of_input)) & _real(attention, batch)


def kept_or_all(selected: Tensor, batch: Batch) -> Tensor:
    """Return ``selected``, (n, t) or (n, h, t), with all tokens of an input that selects none."""
    return torch.where(selected.any(-1, keepdim=True), selected, _real(selected, batch))


def _real(of_tokens: Tensor, batch: Batch) -> Tensor:
    real = batch.real()
    return real.unsqueeze(1) if of_tokens.dim() > 2 else real
