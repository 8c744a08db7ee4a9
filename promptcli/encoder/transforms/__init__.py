"""Transforms: vectors (n, d) to vectors (n, d'), in named stages.

To add a transform, add a file with a subclass of ``Transform``, and a line to ``TRANSFORMS``.

Template denoising may follow any stage: ``head`` is a network on the hidden state, ``logits`` its
predictions, ``vector`` the result.
"""

import functools
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.encoder.components import BuildContext, Transform
from promptcli.encoder.transforms.flow import Flow
from promptcli.encoder.transforms.heads import (
    ClsPooler,
    Dense,
    Normalize,
    Projection,
    TopKTokens,
    Truncate,
)
from promptcli.encoder.transforms.principal_axes import (
    AllButTheTop,
    EmbedFilter,
    Spectral,
    Whitening,
)
from promptcli.errors import UsageError, look_up
from promptcli.extensions import Table
from promptcli.grammar import Spec

TRANSFORMS: Table[Callable[[BuildContext], Transform]] = Table(
    "transforms",
    {
        "topk-tokens": TopKTokens,
        "cls-pooler": ClsPooler,
        "whitening": Whitening,
        "all-but-the-top": AllButTheTop,
        "spectral": Spectral,
        "embed-filter": EmbedFilter,
        "flow": Flow,
        "projection": Projection,
        "dense": Dense,
        "normalize": Normalize,
        "truncate": Truncate,
    },
)


def build_transforms(
    specs: Iterable[Spec], backbone: Backbone, tensors: Mapping[str, Tensor]
) -> list[Transform]:
    """Return the transforms that a recipe names, in order; each refuses vectors of another width
    than it takes.
    """
    transforms = []
    for spec in specs:
        make = look_up("transform", spec.name, TRANSFORMS)
        transform = make(BuildContext(spec, backbone, tensors))
        (name, stage), *others = transform.stages
        transform.stages = [(name, functools.partial(_check_width, transform, stage)), *others]
        transforms.append(transform)
    return transforms


def _check_width(
    transform: Transform, stage: Callable[[Tensor], Tensor], vectors: Tensor
) -> Tensor:
    """Return the result of a transform's first stage; refuse vectors of another width."""
    if transform.takes not in (None, vectors.size(1)):
        widths = f"needs vectors of {transform.takes} dimensions, and these have {vectors.size(1)}"
        raise UsageError(
            f"transform {transform.spec!r} {widths}: put it first, or fit or train it on this"
            " recipe"
        )
    return stage(vectors)
