"""``cnn``: the mean of local features, convolutions over the token states with several kernel sizes (IS-BERT)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.backbones.bert import ACTIVATIONS
from promptcli.backbones.states import Batch, HiddenStates
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling.weights import Weights
from promptcli.errors import unknown

KERNELS, CHANNELS = (1, 3, 5), 256  #: kernel sizes, and the channels of each: 3 x 256 = 768 numbers a token
_PREFIX = "cnn."
_ACTIVATIONS = ("relu", "linear")  #: what follows each convolution: the paper has ReLU, the released code nothing


class Convolution(Weights):
    """h = 1/T sum_t [c_1(x)_t; c_3(x)_t; c_5(x)_t], padding taken as 0; learned by ``train isbert``.

    ``cnn:relu`` (``cnn``) is the paper's, ``cnn:linear`` the released code's.
    """

    def __init__(self, context: BuildContext) -> None:
        name = context.argument or "relu"
        if name not in _ACTIVATIONS:
            raise unknown("activation of weights 'cnn':", name, _ACTIVATIONS)
        self.spec, self._activation = f"cnn:{name}", ACTIVATIONS[name]
        with torch.device("meta"):
            wanted = _parameters(context.backbone.width)
        numbers = context.learned(_PREFIX, "pooling 'cnn' (`train isbert`)", wanted)
        self._numbers = {name: tensor.to(context.backbone.device) for name, tensor in numbers.items()}

    @classmethod
    def start(cls, context: BuildContext, generator: torch.Generator) -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            numbers = _parameters(context.backbone.width)
        return {f"{_PREFIX}{name}": tensor.detach().to(context.backbone.device) for name, tensor in numbers.items()}

    def local(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the local features (n, t, 768) of states (n, t, d); 0 at padding."""
        real = batch.real().unsqueeze(2)
        inputs = (states * real).transpose(1, 2)
        features = []
        for size in KERNELS:
            weight, bias = self._numbers[f"{size}.weight"], self._numbers[f"{size}.bias"]
            features.append(self._activation(functional.conv1d(inputs, weight, bias, padding=size // 2)))
        return torch.cat(features, dim=1).transpose(1, 2) * real

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        return self.local(states, batch).sum(1) / batch.lengths.unsqueeze(1)

    def tensors(self) -> dict[str, Tensor]:
        return {f"{_PREFIX}{name}": tensor.detach() for name, tensor in self._numbers.items()}


def _parameters(width: int) -> dict[str, Tensor]:
    """Return the numbers of all convolutions as torch starts them, on states of that width."""
    layers = {size: nn.Conv1d(width, CHANNELS, size) for size in KERNELS}
    return {f"{size}.{name}": tensor for size, layer in layers.items() for name, tensor in layer.named_parameters()}
