"""``dense:NUMBER:ACTIVATION`` and ``normalize``: the modules of a sentence-transformers model after its pooling."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from promptcli.encoder.context import BuildContext
from promptcli.encoder.transforms.transform import Transform
from promptcli.errors import UsageError, unknown

#: The last part of a class's name in torch, lower-cased, to what it computes.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda vectors: vectors,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
}


class Dense(Transform):
    """y = activation(x W^T + b), (n, d) -> (n, d'); the number tells several of them apart."""

    def __init__(self, context: BuildContext) -> None:
        number, _, activation = (context.argument or "").partition(":")
        if activation not in ACTIVATIONS:
            raise unknown("activation of transform 'dense'", activation, ACTIVATIONS)
        self.spec = f"dense:{number}:{activation}"
        names = [f"dense.{number}.{part}" for part in ("weight", "bias")]
        if any(name not in context.tensors for name in names):
            raise UsageError(f"transform {self.spec!r} has learned numbers, and none are there; load its model")
        self._tensors = {name: context.tensors[name].float() for name in names}
        weight, bias = (tensor.to(context.backbone.device) for tensor in self._tensors.values())
        self.takes = weight.size(1)
        activate = ACTIVATIONS[activation]
        self.stages = [("vector", lambda vectors: activate(functional.linear(vectors.float(), weight, bias)))]

    def tensors(self) -> dict[str, Tensor]:
        """Return weight (d', d) and bias (d',)."""
        return self._tensors


class Normalize(Transform):
    """x / |x|; a vector of zeros stays one."""

    spec = "normalize"

    def __init__(self, context: BuildContext) -> None:
        context.no_argument("transform 'normalize' takes")
        self.stages = [("vector", lambda vectors: functional.normalize(vectors.float(), dim=1))]
