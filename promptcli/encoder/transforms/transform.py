"""The protocol of transforms: vectors (n, d) to vectors (n, d'), in named stages.

The stages are where template denoising may be taken: ``head`` is a network on the hidden state, ``logits`` its
predictions, ``vector`` the result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.errors import UsageError

Stage = tuple[str, Callable[[Tensor], Tensor]]


class Transform(Protocol):
    """One transform.

    Attributes:
        spec: Name and argument, as a recipe writes them.
        stages: Name and function of each step, in order.
    """

    spec: str
    stages: Sequence[Stage]

    def tensors(self) -> dict[str, Tensor]:
        """Return the learned or fitted numbers by name; empty where there are none."""
        ...


@dataclass(frozen=True)
class Making:
    """What a transform's maker is told: its argument, the backbone, and the entry's learned tensors."""

    argument: str | None
    backbone: Backbone
    tensors: Mapping[str, Tensor]

    def count(self, name: str, *, default: int | None = None) -> int | None:
        """Return the argument as a whole number above 0.

        Raises:
            UsageError: It is none.
        """
        if self.argument is None:
            return default
        if not self.argument.isdecimal() or int(self.argument) < 1:
            raise UsageError(f"transform '{name}:{self.argument}' is not allowed; give a whole number, e.g. {name}:200")
        return int(self.argument)
