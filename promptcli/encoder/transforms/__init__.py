"""Transforms: vectors to vectors. A new one is one file and one line here."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.encoder.context import BuildContext
from promptcli.encoder.recipe import split_spec
from promptcli.encoder.transforms.all_but_the_top import AllButTheTop
from promptcli.encoder.transforms.cls_pooler import ClsPooler
from promptcli.encoder.transforms.flow import Flow
from promptcli.encoder.transforms.projection import Projection
from promptcli.encoder.transforms.spectral import EmbedFilter, Spectral
from promptcli.encoder.transforms.topk_tokens import TopKTokens
from promptcli.encoder.transforms.transform import Transform
from promptcli.encoder.transforms.whitening import Whitening
from promptcli.errors import unknown

TRANSFORMS: dict[str, Callable[[BuildContext], Transform]] = {
    "topk-tokens": TopKTokens,
    "cls-pooler": ClsPooler,
    "whitening": Whitening,
    "all-but-the-top": AllButTheTop,
    "spectral": Spectral,
    "embed-filter": EmbedFilter,
    "flow": Flow,
    "projection": Projection,
}


def build_transforms(specs: Sequence[str], backbone: Backbone, tensors: Mapping[str, Tensor]) -> list[Transform]:
    """Make the transforms that a recipe names, in order.

    Raises:
        UsageError: Unknown name, or an argument that is not allowed.
    """
    made = []
    for spec in specs:
        name, argument = split_spec(spec)
        if name not in TRANSFORMS:
            raise unknown("transform", name, TRANSFORMS)
        made.append(TRANSFORMS[name](BuildContext(argument, backbone, tensors)))
    return made
