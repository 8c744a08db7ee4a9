"""``topk-tokens:k``: the sentence as a mixture of the k tokens that the masked-LM head predicts (PromptBERT eq. 3)."""

from torch import Tensor

from promptcli.encoder.context import BuildContext
from promptcli.encoder.transforms.transform import Transform
from promptcli.errors import UsageError

_PUBLISHED_K = 200  # PromptBERT 4.1


class TopKTokens(Transform):
    """h = sum_v W_v p_v / sum_v p_v over the k most probable tokens v; W the word-embedding matrix."""

    def __init__(self, context: BuildContext) -> None:
        k = context.count("topk-tokens", default=_PUBLISHED_K)
        assert k is not None
        rows = context.backbone.token_rows
        if k > len(rows):
            raise UsageError(f"transform 'topk-tokens:{k}' is not allowed; the vocabulary has {len(rows)} tokens")
        self.spec = f"topk-tokens:{k}"
        self.takes = context.backbone.last_width
        self._k = k
        self._rows = rows
        head = context.backbone.head
        self.stages = [("head", head.to_hidden), ("logits", head.to_logits), ("vector", self._mix)]

    def _mix(self, logits: Tensor) -> Tensor:
        """Return (n, d) from logits (n, v): softmax over the whole vocabulary, then the k best, renormalised."""
        best, tokens = logits.softmax(-1).topk(self._k, dim=-1)
        return (best.unsqueeze(1) @ self._rows[tokens].float()).squeeze(1) / best.sum(-1, keepdim=True)
