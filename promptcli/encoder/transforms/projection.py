"""``projection:tanh`` and ``projection:mlm``: the heads that contrastive training puts on the sentence vector.

Supervised methods keep theirs at test time, unsupervised ones only train with it (PromptBERT's and SimCSE's code).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from promptcli.encoder.context import BuildContext
from promptcli.encoder.transforms.transform import Transform
from promptcli.errors import unknown

_PREFIX = "projection."
_SPREAD = 0.02  # standard deviation of a new head's weights, BERT's initializer_range


def _tanh(context: BuildContext) -> nn.Module:
    """Dense and tanh, new: N(0, 0.02), bias zero."""
    dense = nn.Linear(context.backbone.width, context.backbone.width)
    nn.init.normal_(dense.weight, 0, _SPREAD)
    nn.init.zeros_(dense.bias)
    return nn.Sequential(dense, nn.Tanh())


def _mlm(context: BuildContext) -> nn.Module:
    """Dense, GELU and LayerNorm, starting as the pre-trained head's (supervised PromptBERT, OptiPrompt)."""
    return context.backbone.new_transform()


#: What a projection may be made of.
KINDS: dict[str, Callable[[BuildContext], nn.Module]] = {"tanh": _tanh, "mlm": _mlm}


class Projection(Transform):
    """A learned network on the vector, (n, d) -> (n, d)."""

    def __init__(self, context: BuildContext) -> None:
        kind = context.argument or "tanh"
        if kind not in KINDS:
            raise unknown("projection", kind, KINDS)
        self.spec = f"projection:{kind}"
        self.takes = context.backbone.width
        self.module = KINDS[kind](context).to(context.backbone.device)  #: the network, float32
        self.module.load_state_dict(context.learned(_PREFIX, f"transform {self.spec!r}", self.module.state_dict()))
        self.module.eval().requires_grad_(False)
        self.stages = [("head", self._project)]

    def _project(self, vectors: Tensor) -> Tensor:
        projected: Tensor = self.module(vectors.float())
        return projected

    def tensors(self) -> dict[str, Tensor]:
        """Return the network's numbers."""
        return {f"{_PREFIX}{name}": tensor for name, tensor in self.module.state_dict().items()}


def start_projection(kind: str, context: BuildContext, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the numbers that a projection starts learning from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        module = KINDS[kind](context)
    return {f"{_PREFIX}{name}": tensor for name, tensor in module.state_dict().items()}
