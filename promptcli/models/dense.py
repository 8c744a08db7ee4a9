"""Transforms as dense layers, the form that every other program has; not all transforms are."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from promptcli.backbones.saving import head_tensors
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.transforms import Transform
from promptcli.encoder.transforms.heads import ACTIVATIONS, ClsPooler, Normalize, Projection
from promptcli.encoder.transforms.heads import Dense as OurDense
from promptcli.models.target import InexactError

IDENTITY = "torch.nn.modules.linear.Identity"
#: What may follow a dense layer, by the name of its class.
_CLASSES = {
    f"torch.nn.modules.activation.{name}": ACTIVATIONS[name.lower()]
    for name in ("Tanh", "GELU", "ReLU", "SiLU", "Sigmoid")
}
_PROBES = 16  # random vectors on which a map is compared with its affine form
_FAR = 2.0**14  # length of the vectors that give the slope: the constant's rounding is negligible
_CLOSE = 1e-4


@dataclass(frozen=True)
class Dense:
    """y = activation(x W^T + b)."""

    weight: Tensor  #: (d', d)
    bias: Tensor  #: (d',)
    activation: str = IDENTITY


@dataclass(frozen=True)
class Norm:
    """LayerNorm."""

    weight: Tensor  #: (d,)
    bias: Tensor  #: (d,)


#: Vectors scaled to length 1.
NORMALIZE = Norm(torch.ones(0), torch.zeros(0))


def layers_of(encoder: Encoder) -> list[Dense | Norm]:
    """Return the transforms of an encoder as layers, in order; InexactError names one that is not."""
    layers: list[Dense | Norm] = []
    width = encoder.backbone.last_width
    for transform in encoder.transforms:
        if isinstance(transform, ClsPooler):
            head = head_tensors(encoder.backbone)
            parts: list[Dense | Norm] | None = [Dense(head["weight"], head["bias"], next(iter(_CLASSES)))]
        elif isinstance(transform, Projection):
            parts = _of_network(transform.module)
        elif isinstance(transform, OurDense):
            name = transform.spec.rpartition(":")[2]
            kind = next((path for path in _CLASSES if path.rpartition(".")[2].lower() == name), IDENTITY)
            weight, bias = transform.tensors().values()
            parts = [Dense(weight, bias, kind)]
        elif isinstance(transform, Normalize):
            layers.append(NORMALIZE)
            continue
        else:
            parts = _of_map(transform, width)
        if parts is None:
            raise InexactError(f"transform {transform.spec!r} is neither an affine map nor dense layers")
        layers += parts
        width = len(parts[-1].bias)
    return layers


def affine_of(encoder: Encoder) -> tuple[Tensor, Tensor]:
    """Return W (d, d') and b (d',) of all transforms together."""
    width = encoder.backbone.token_rows.size(1)
    matrix, bias = torch.eye(width), torch.zeros(width)
    for layer in layers_of(encoder):
        if not isinstance(layer, Dense) or layer.activation != IDENTITY:
            raise InexactError("a table of words can only hold transforms that are affine maps")
        matrix, bias = matrix @ layer.weight.T, bias @ layer.weight.T + layer.bias
    return matrix, bias


def _of_map(transform: Transform, width: int) -> list[Dense | Norm] | None:
    """Return an affine map as one layer, or None if the transform is not affine."""

    def function(vectors: Tensor) -> Tensor:
        for _, step in transform.stages:
            vectors = step(vectors)
        return vectors.float().cpu()

    random = torch.randn(_PROBES, width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        bias = function(torch.zeros(1, width))[0]
        slope = (function(torch.eye(width) * _FAR) - bias) / _FAR
        wanted, affine = function(random), random @ slope + bias
    if (wanted - affine).abs().max() > _CLOSE * wanted.abs().max():
        return None
    return [Dense(slope.T.contiguous(), bias.clone())]


def _of_network(network: nn.Module) -> list[Dense | Norm] | None:
    """Return a sequence of linear layers, activations and LayerNorms, or None if the network is anything else."""
    layers: list[Dense | Norm] = []
    for module in network.modules():
        if any(True for _ in module.children()):
            continue
        if isinstance(module, nn.Linear):
            layers.append(Dense(module.weight.detach().cpu(), module.bias.detach().cpu()))
        elif isinstance(module, nn.LayerNorm):
            layers.append(Norm(module.weight.detach().cpu(), module.bias.detach().cpu()))
        elif layers and isinstance(layers[-1], Dense) and (name := _activation(module)):
            layers[-1] = Dense(layers[-1].weight, layers[-1].bias, name)
        elif not isinstance(module, nn.Identity | nn.Dropout):
            return None
    return layers


def _activation(module: nn.Module) -> str | None:
    points = torch.linspace(-6, 6, 101)
    values = module(points)
    return next((name for name, curve in _CLASSES.items() if torch.allclose(curve(points), values, atol=1e-6)), None)
