"""The arguments that prompts, poolings and transforms are built from."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
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
    """The arguments of a prompt, a pooling or a transform."""

    spec: Spec  #: the parsed part of the recipe
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
            raise UsageError(f"no argument is allowed for {owner}, got {self.argument!r}")

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

    def tensors_of(
        self,
        prefix: str,
        shapes: Mapping[str, Sequence[int | None]],
        owner: str,
        remedy: str,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> dict[str, Tensor]:
        """Return the tensors of these names, of these shapes (None: any side) and dtype.

        The entry has ``prefix`` before their names. ``remedy`` is the advice if ``owner`` lacks
        them or has others.
        """
        found = {}
        for name, shape in shapes.items():
            tensor = self.tensors.get(prefix + name)
            if tensor is None:
                raise UsageError(f"{owner} needs {prefix}{name}, which is missing: {remedy}")
            fits = len(shape) == tensor.dim() and tensor.dtype == dtype
            if not fits or any(map(_differ, shape, tensor.shape)):
                raise UsageError(
                    f"{owner} does not fit backbone {self.backbone.name!r}: {prefix}{name} is"
                    f" {list(tensor.shape)} {tensor.dtype}, not {list(shape)} {dtype}: {remedy}"
                )
            found[name] = tensor
        return found


def _differ(wanted: int | None, side: int) -> bool:
    return wanted not in (None, side)


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, Sequence[int | None]]:
    """Return the shapes of tensors by name."""
    return {name: tensor.shape for name, tensor in tensors.items()}


def by_fit(choice: str) -> str:
    """Return the command that fits the tensors of a part, named by an option of ``fit``."""
    return f"`promptcli fit --{choice} --on FILE --name NAME`, then the model NAME"


@contextlib.contextmanager
def seeded_by(generator: torch.Generator) -> Iterator[None]:
    """Seed torch in the block with a number drawn from a generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        yield
