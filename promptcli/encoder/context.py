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

    def fitted(self, name: str, part: str, choice: str) -> Tensor:
        """Return fitted numbers.

        Args:
            name: Of the tensor.
            part: What takes them, and from what: ``transform 'flow' is fitted on sentences``.
            choice: The options of ``promptcli fit`` that fit them.

        Raises:
            UsageError: They are not there; with the command that fits them.
        """
        if name not in self.tensors:
            raise UsageError(f"{part}: `promptcli fit {choice} --on FILE --name NAME`, then `--model NAME`")
        return self.tensors[name]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the numbers whose names begin with ``prefix``, by the rest of their names."""
        return {name.removeprefix(prefix): tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}
