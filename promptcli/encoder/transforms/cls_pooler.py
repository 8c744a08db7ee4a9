"""``cls-pooler``: the pre-trained pooler, tanh(W x + b), on top of the pooled vector (SimCSE's ``cls``)."""

from collections.abc import Sequence

from torch import Tensor

from promptcli.encoder.context import BuildContext
from promptcli.encoder.transforms.transform import Stage


class ClsPooler:
    """The checkpoint's own pooler; refused where the checkpoint has none."""

    spec = "cls-pooler"

    def __init__(self, context: BuildContext) -> None:
        self.stages: Sequence[Stage] = [("head", context.backbone.pooler)]

    def tensors(self) -> dict[str, Tensor]:
        """Return no numbers: the pooler is the backbone's."""
        return {}
