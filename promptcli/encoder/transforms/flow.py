"""``flow``: BERT-flow, an invertible map of sentence vectors to a standard normal (Li et al.,
2020).

Glow on an image of one pixel with d channels, as in the published code: its 1x1 convolutions are
dense layers there.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.encoder.components import BuildContext, Transform, fit_command, shapes_of
from promptcli.errors import UsageError

LEVELS = 3
STEPS = 3
DIVISOR = 2**LEVELS  #: d is halved after each level but the last, and once more by the coupling
_PREFIX = "flow."
_WIDTH = 32  # of a coupling's two hidden layers
_LOG_SCALE = 3.0  # a learned log-scale s acts as exp(3 s)
_SPREAD = 0.05  # standard deviation of a new hidden layer's weights
_EPSILON = 1e-6  # added to a standard deviation before it divides


class ActNorm(nn.Module):
    """y = (x + b) exp(3 s), one b and one s a channel; log|dy/dx| = sum 3 s."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, *, start: bool = False) -> Tensor:
        """Return y (n, c); with ``start`` set b and s first, so that this batch has mean 0 and
        variance 1.
        """
        if start:
            spread = x.var(0, correction=0).sqrt() + _EPSILON
            self.bias.data.copy_(-x.mean(0))
            self.log_scale.data.copy_(-spread.log() / _LOG_SCALE)
        return (x + self.bias) * (_LOG_SCALE * self.log_scale).exp()

    def logdet(self) -> Tensor:
        """Return log|dy/dx|, the same for every x."""
        return _LOG_SCALE * self.log_scale.sum()


class Coupling(nn.Module):
    """(x1, x2) -> (x1, x2 + m(x1)).

    m has two dense layers of 32, each with actnorm and ReLU, and a third one that starts at zero.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.first = nn.Parameter(torch.zeros(_WIDTH, half))
        self.first_norm = ActNorm(_WIDTH)
        self.second = nn.Parameter(torch.zeros(_WIDTH, _WIDTH))
        self.second_norm = ActNorm(_WIDTH)
        self.last = nn.Parameter(torch.zeros(half, _WIDTH))
        self.last_bias = nn.Parameter(torch.zeros(half))
        self.last_log_scale = nn.Parameter(torch.zeros(half))

    def forward(self, x: Tensor, *, start: bool = False) -> Tensor:
        """Return (n, c); the volume is unchanged."""
        fixed, shifted = x.chunk(2, dim=1)
        hidden = self.first_norm(functional.linear(fixed, self.first), start=start).relu()
        hidden = self.second_norm(functional.linear(hidden, self.second), start=start).relu()
        shift = (
            functional.linear(hidden, self.last, self.last_bias)
            * (_LOG_SCALE * self.last_log_scale).exp()
        )
        return torch.cat([fixed, shifted + shift], dim=1)


class FlowStep(nn.Module):
    """Actnorm, the channels reversed, coupling."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ActNorm(channels)
        self.coupling = Coupling(channels)

    def forward(self, x: Tensor, *, start: bool = False) -> Tensor:
        y: Tensor = self.coupling(self.norm(x, start=start).flip(1), start=start)
        return y


class Glow(nn.Module):
    """3 levels of 3 steps; after each level but the last, half of the channels is factored out: the
    later levels do not change it.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        if d % DIVISOR:
            before = f"put e.g. the transform whitening:{max(d - d % DIVISOR, DIVISOR)} before it"
            raise UsageError(
                f"transform 'flow' needs a width divisible by {DIVISOR}, and {d} is not; {before}"
            )
        self.levels = nn.ModuleList()
        for level in range(LEVELS):
            self.levels.append(nn.ModuleList(FlowStep(d >> level) for _ in range(STEPS)))

    def start(self, batch: Tensor, generator: torch.Generator) -> None:
        """Initialise for training: hidden layers by N(0, 0.05), actnorms by a batch (n, d)."""
        for module in self.modules():
            if isinstance(module, Coupling):
                module.first.data.normal_(0, _SPREAD, generator=generator)
                module.second.data.normal_(0, _SPREAD, generator=generator)
        with torch.no_grad():
            self(batch.float(), start=True)

    def forward(self, x: Tensor, *, start: bool = False) -> Tensor:
        """Return z (n, d): the parts factored out at levels 1 and 2, then the top."""
        factored_out = []
        for number, level in enumerate(self.levels):
            for step in level:  # type: ignore[attr-defined]
                x = step(x, start=start)
            if number < LEVELS - 1:
                x, half = x.chunk(2, dim=1)
                factored_out.append(half)
        return torch.cat([*factored_out, x], dim=1)

    def logdet(self) -> Tensor:
        """Return log|dz/dx|; only actnorms contribute, so it is the same for every x."""
        return torch.stack(
            [module.norm.logdet() for module in self.modules() if isinstance(module, FlowStep)]
        ).sum()

    def loss(self, x: Tensor) -> Tensor:
        """Return -(log p(z) + log|dz/dx|) / (d ln 2), z ~ N(0, 1) in every channel, averaged over x
        (n, d).
        """
        z = self(x)
        d = z.size(1)
        log_p = -0.5 * (z.square().sum(1) + d * math.log(2 * math.pi))
        bits: Tensor = -(log_p + self.logdet()).mean() / (d * math.log(2))
        return bits

    def named_tensors(self) -> dict[str, Tensor]:
        return {f"{_PREFIX}{name}": tensor.detach() for name, tensor in self.state_dict().items()}


class Flow(Transform):
    """z of a vector; cosines are taken of z directly."""

    spec = "flow"

    def __init__(self, context: BuildContext) -> None:
        context.refuse_argument("transform 'flow'")
        needed = "transform 'flow'", fit_command("model flow")
        first = "levels.0.0.norm.bias"
        self.takes = len(context.tensors_of(_PREFIX, {first: [None]}, *needed)[first])
        self._glow = Glow(self.takes)
        shapes = shapes_of(self._glow.state_dict())
        self._glow.load_state_dict(context.tensors_of(_PREFIX, shapes, *needed))
        self._glow.to(context.backbone.device).requires_grad_(False)
        self.stages = [("vector", self._glow)]

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor.cpu() for name, tensor in self._glow.named_tensors().items()}
