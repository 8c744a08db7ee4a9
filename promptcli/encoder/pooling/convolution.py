"""``cnn``: the mean of local features, which are convolutions over the token states with several
kernel sizes (IS-BERT).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.backbones.bert import ACTIVATIONS
from promptcli.backbones.states import Batch, HiddenStates
from promptcli.encoder.components import BuildContext, Weights, seeded_by, shapes_of
from promptcli.errors import unknown_name_error

KERNELS = (1, 3, 5)  #: kernel sizes
CHANNELS = 256  #: of each kernel size: 3 x 256 = 768 features a token
_PREFIX = "cnn."
#: the activation after each convolution: ReLU in the paper, none in the released code
_ACTIVATIONS = ("relu", "linear")


class Convolution(Weights):
    """h = 1/T sum_t [c_1(x)_t; c_3(x)_t; c_5(x)_t], learned by ``train isbert``.

    The states of padding are 0. ``cnn:relu``, the default, is the paper's; ``cnn:linear`` is the
    released code's.
    """

    def __init__(self, context: BuildContext) -> None:
        name = context.argument or "relu"
        if name not in _ACTIVATIONS:
            raise unknown_name_error("activation of weights 'cnn':", name, _ACTIVATIONS)
        self.spec = f"cnn:{name}"
        self._activation = ACTIVATIONS[name]
        with torch.device("meta"):
            parameters = _new_parameters(context.backbone.width)
        owner = "pooling 'cnn' (`train isbert`)"
        learned = context.tensors_of(_PREFIX, shapes_of(parameters), owner, "train it first")
        self._parameters = {
            name: tensor.to(context.backbone.device) for name, tensor in learned.items()
        }

    @classmethod
    def initial_tensors(
        cls, context: BuildContext, generator: torch.Generator
    ) -> dict[str, Tensor]:
        with seeded_by(generator):
            parameters = _new_parameters(context.backbone.width)
        return {
            f"{_PREFIX}{name}": tensor.detach().to(context.backbone.device)
            for name, tensor in parameters.items()
        }

    def local(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the local features (n, t, 768) of states (n, t, d); 0 at padding."""
        real = batch.real().unsqueeze(2)
        inputs = states * real
        features = []
        for size in KERNELS:
            weight = self._parameters[f"{size}.weight"]
            bias = self._parameters[f"{size}.bias"]
            # a product of windows: a GPU's convolution would round float32 to TF32
            padded = functional.pad(inputs, (0, 0, size // 2, size // 2))
            windows = padded.unfold(1, size, 1).flatten(2)  # (n, t, d * size)
            convolved = functional.linear(windows, weight.flatten(1), bias)
            features.append(self._activation(convolved))
        return torch.cat(features, dim=2) * real

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        return self.local(states, batch).sum(1) / batch.lengths.unsqueeze(1)

    def tensors(self) -> dict[str, Tensor]:
        return {f"{_PREFIX}{name}": tensor.detach() for name, tensor in self._parameters.items()}


def _new_parameters(width: int) -> dict[str, Tensor]:
    """Return the parameters of all convolutions as torch initialises them, on states of that
    width.
    """
    layers = {str(size): nn.Conv1d(width, CHANNELS, size) for size in KERNELS}
    return dict(nn.ModuleDict(layers).named_parameters())
