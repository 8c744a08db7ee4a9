"""``max``: the largest value of each dimension over all tokens, [CLS] and [SEP] included (DefSent)."""

from torch import Tensor

from promptcli.backbones.states import Batch, HiddenStates
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling.weights import Weights


class Largest(Weights):
    """max_t x_t, dimension by dimension."""

    spec = "max"

    def __init__(self, context: BuildContext) -> None:
        context.no_argument(f"weights {self.spec!r} take")

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return (n, d)."""
        padding = ~batch.real().unsqueeze(2)
        return states.masked_fill(padding, float("-inf")).amax(dim=1)
