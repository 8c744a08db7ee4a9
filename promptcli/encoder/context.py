"""What the makers of a recipe's parts are given. Knows no part by name."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.errors import UsageError


@dataclass(frozen=True)
class BuildContext:
    """What a prompt, a pooling or a transform is built from."""

    argument: str | None  #: after the colon of the spec
    backbone: Backbone
    tensors: Mapping[str, Tensor]  #: the entry's learned and fitted numbers, by name

    def no_argument(self, part: str) -> None:
        """Refuse an argument.

        Raises:
            UsageError: There is one.
        """
        if self.argument is not None:
            raise UsageError(f"{part} no argument, but {self.argument!r} was given")

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
