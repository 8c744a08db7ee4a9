"""The pooling middle, as in `--pooling last/middle`."""

import torch

from promptcli.encoder.components import Weights
from promptcli.encoder.pooling.content import ContentTokens


class Middle(Weights):
    """The mean over the middle half of a sentence's own tokens, without those of its prompt."""

    spec = "middle"
    reads_content_only = True

    def __init__(self, context):
        super().__init__(context)
        self.content = ContentTokens(context.own_template(), context.backbone.tokenizer)

    def pool(self, states, batch, hidden):  # (n, t, d) -> (n, d)
        own = self.content.mask(batch)
        # a blank sentence has none: all of its tokens count
        own = torch.where(own.any(dim=1, keepdim=True), own, batch.real())
        count = own.sum(dim=1, keepdim=True)
        cut = count // 4
        place = own.cumsum(dim=1) - 1  # of each own token among them
        middle = own & (place >= cut) & (place < count - cut)
        weights = middle.unsqueeze(-1)
        return (states * weights).sum(dim=1) / weights.sum(dim=1)
