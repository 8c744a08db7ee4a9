"""The base of transforms."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from torch import Tensor, nn

Stage = tuple[str, Callable[[Tensor], Tensor]]


class Transform:
    """One transform."""

    spec: str  #: name and argument, as a recipe writes them
    stages: Sequence[Stage]  #: name and function of each step, in order
    #: whether columns are sorted by falling variance, so that the first k of them are a usable
    #: vector
    ordered = False
    takes: int | None = None  #: width d of the vectors that it takes; None for any
    network: nn.Module | None = None  #: if it is a sequence of linear maps, activations, LayerNorms
    _tensors: Mapping[str, Tensor] = MappingProxyType({})

    def tensors(self) -> dict[str, Tensor]:
        return dict(self._tensors)
