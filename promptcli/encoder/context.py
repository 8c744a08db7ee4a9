"""The arguments that prompts, poolings and transforms are built from."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.encoder.template import Template
from promptcli.errors import UsageError, WrongKindError
from promptcli.grammar import COUNT, Pair, Spec
from promptcli.named_templates import SLOT


@dataclass(frozen=True)
class BuildContext:
    """What a prompt, a pooling or a transform is built from."""

    spec: Spec  #: the part of the recipe, parsed
    backbone: Backbone
    tensors: Mapping[str, Tensor]  #: the entry's learned and fitted tensors, by name
    parts: Sequence[Any] = ()  #: the prompts that a prompt consists of
    #: The template around the sentences, for a pooling; None: the sentence is alone.
    template: Template | None = None

    @property
    def argument(self) -> str | None:
        """The text after the name and the colon in the recipe; None without one."""
        return self.spec.argument

    def own_template(self) -> Template:
        """Return the template of the sentences; [X] if they have none."""
        return self.template or Template(SLOT, self.backbone.tokenizer)

    def require_causal(self, owner: str) -> None:
        if not self.backbone.causal:
            name = self.backbone.name
            raise WrongKindError(
                f"{owner} is for causal models, and {name!r} is a masked one: take the model prompt"
            )

    def refuse_argument(self, owner: str) -> None:
        if self.argument is not None:
            raise UsageError(f"{owner} no argument, but {self.argument!r} was given")

    def range_of(self, layers: Pair, least: int) -> range:
        """Return the layers l, from 0, with START <= l < EXIT; START is at least ``least``."""
        name, n_layers = self.spec.name, self.backbone.n_layers
        if not least <= layers.first < layers.last <= n_layers:
            raise UsageError(
                f"{name}:{layers} is not allowed; give {least} <= START < EXIT <= {n_layers}"
            )
        return range(*layers)

    def count(self, name: str, *, default: int | None = None) -> int | None:
        """Return the argument of the transform ``name`` as a whole number above 0."""
        if self.argument is None:
            return default
        if not re.fullmatch(COUNT, self.argument):
            raise UsageError(f"{str(self.spec)!r} is not allowed; give a whole number: {name}:200")
        return int(self.argument)

    def fitted_tensor(
        self,
        name: str,
        owner: str,
        choice: str,
        *shape: int | None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the fitted tensor of a name, shape (None: any side) and dtype.

        ``owner`` needs them, e.g. ``transform 'flow' is fitted on sentences``; ``choice`` is the
        option of ``fit`` that fits them, without its dashes.
        """
        hint = f"`promptcli fit --{choice} --on FILE --name NAME`, then the model NAME"
        tensor = self.tensors.get(name)
        if tensor is None:
            raise UsageError(f"{owner}: {hint}")
        sides = list(tensor.shape)
        wanted = [side if want is None else want for side, want in zip(sides, shape, strict=False)]
        if tensor.dtype != dtype or len(sides) != len(shape) or wanted != sides:
            raise UsageError(
                f"{owner}, and the existing {name}, {_describe(tensor)}, do not fit: {hint}"
            )
        return tensor

    def learned_tensors(
        self, prefix: str, owner: str, wanted: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the tensors whose names begin with ``prefix``, without it.

        They must match ``wanted`` in float32.
        """
        tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }
        if not tensors:
            raise UsageError(f"{owner} is learned and its tensors are missing; train it first")
        found = {name: _describe(tensor) for name, tensor in tensors.items()}
        fitting = {name: _describe(tensor.float()) for name, tensor in wanted.items()}
        different = sorted(found.items() ^ fitting.items())
        if different:
            name = different[0][0]
            raise UsageError(
                f"the parameters of {owner} do not fit backbone {self.backbone.name!r}:"
                f" {prefix}{name} is {found.get(name, 'missing')}, here"
                f" {fitting.get(name, 'missing')}; take the backbone that they were learned on"
            )
        return tensors


def _describe(tensor: Tensor) -> str:
    return (
        f"{' x '.join(map(str, tensor.shape)) or 'one'} {str(tensor.dtype).removeprefix('torch.')}"
    )
