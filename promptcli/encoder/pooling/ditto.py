"""``ditto:l-h``: tokens weighted by the diagonal of one attention head (Ditto, section 2).

Nothing is learned.
"""

import shlex

from torch import Tensor

from promptcli.backbones.published_backbones import published_name
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling.weights import Weights, check_head, weighted_sum
from promptcli.errors import UsageError
from promptcli.grammar import parse_weights

#: Best heads on the STS-B development set by ``published_name``: the paper's (Ditto, table 2 and
#: figure 2), and ours for ``mini-bert``.
KNOWN_HEADS: dict[str, str] = {
    "mini-bert": "1-6",
    "bert-base-uncased": "1-10",
    "roberta-base": "1-5",
    "electra-base-discriminator": "1-11",
    "bert-base-nli-stsb-mean-tokens": "3-7",
}


class Ditto(Weights):
    """w_t = A^{l,h}_{tt}, special tokens and a template's included.

    They are not renormalised, as in the published code: a cosine does not depend on the scale.
    """

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        head = context.spec["head"]
        known = KNOWN_HEADS.get(published_name(backbone) or "")
        if head is None and known is not None:
            head = parse_weights(f"ditto:{known}")["head"]
        if head is None:
            search = f"`promptcli ditto-search --model {shlex.quote(backbone.name)}` finds one"
            raise UsageError(
                f"no head is known for backbone {backbone.name!r}: {search}; or give"
                " ditto:LAYER-HEAD"
            )
        check_head(backbone, head)
        backbone.require_hook("Ditto")
        self.spec = f"ditto:{head}"
        self._layer = head.first - 1
        self._head = head.last - 1
        self.needs = Needs(diagonals=frozenset({self._layer}))

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        diagonal = hidden.diagonals[self._layer][:, self._head]
        return weighted_sum(diagonal.masked_fill(~batch.real(), 0.0), states)
