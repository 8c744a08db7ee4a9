"""``avg``: the mean over all tokens, [CLS] and [SEP] included, as in all three papers' code."""

from torch import Tensor

from promptcli.backbones.states import Batch, HiddenStates
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling.weights import Weights, weighted_sum


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
