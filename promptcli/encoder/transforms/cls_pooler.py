"""``cls-pooler``: the pre-trained pooler, tanh(W x + b), on top of the pooled vector (SimCSE's ``cls``)."""

from promptcli.encoder.context import BuildContext
from promptcli.encoder.transforms.transform import Transform


class ClsPooler(Transform):
    """The checkpoint's own pooler; refused where the checkpoint has none."""

    spec = "cls-pooler"

    def __init__(self, context: BuildContext) -> None:
        self.takes = context.backbone.width
        self.stages = [("head", context.backbone.pooler)]
