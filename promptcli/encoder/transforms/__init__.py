"""Transforms: vectors (n, d) to vectors (n, d'), in named stages. A new one is one file and one line here.

The stages are where template denoising may be taken: ``head`` is a network on the hidden state, ``logits`` its
predictions, ``vector`` the result.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.encoder.context import BuildContext
from promptcli.errors import UsageError, look_up
from promptcli.extensions import Table
from promptcli.recipe import split_spec

Stage = tuple[str, Callable[[Tensor], Tensor]]


class Transform:
    """One transform."""

    spec: str  #: name and argument, as a recipe writes them
    stages: Sequence[Stage]  #: name and function of each step, in order
    ordered = False  #: whether columns are sorted by falling variance, so that the first k of them are a usable vector
    takes: int | None = None  #: width d of the vectors that it takes; None for any
    _tensors: Mapping[str, Tensor] = MappingProxyType({})

    def tensors(self) -> dict[str, Tensor]:
        return dict(self._tensors)


TRANSFORMS: Table[Callable[[BuildContext], Transform]] = Table(
    "transforms",
    {
        "topk-tokens": "heads:TopKTokens",
        "cls-pooler": "heads:ClsPooler",
        "whitening": "principal_axes:Whitening",
        "all-but-the-top": "principal_axes:AllButTheTop",
        "spectral": "principal_axes:Spectral",
        "embed-filter": "principal_axes:EmbedFilter",
        "flow": "flow:Flow",
        "projection": "heads:Projection",
        "dense": "heads:Dense",
        "normalize": "heads:Normalize",
        "truncate": "heads:Truncate",
    },
    __name__,
)


def build_transforms(specs: Sequence[str], backbone: Backbone, tensors: Mapping[str, Tensor]) -> list[Transform]:
    """Make the transforms that a recipe names, in order."""
    transforms = []
    for spec in specs:
        name, argument = split_spec(spec)
        transform = look_up("transform", name, TRANSFORMS)(BuildContext(argument, backbone, tensors))
        (stage, first), *rest = transform.stages
        transform.stages = [(stage, functools.partial(_of_its_width, transform, first)), *rest]
        transforms.append(transform)
    return transforms


def _of_its_width(transform: Transform, stage: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
    if transform.takes not in (None, vectors.size(1)):
        widths = f"takes vectors of {transform.takes} numbers, and these have {vectors.size(1)}"
        raise UsageError(f"transform {transform.spec!r} {widths}: put it first, or fit or train it on this recipe")
    return stage(vectors)
