"""The similarity of two vectors, s(a, b) = cos(a, b) / tau; numbers of a loss that may learn."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.training.methods.method import TemperatureSettings

#: A learned temperature does not fall below this, as CLIP's (Radford et al. 2021, 2.5), unless it
#: starts there.
LEAST = 0.01


class LearnableScalar(nn.Module):
    """A positive number that stays, or learns at its own rate.

    What learns is its logarithm, the parameter ``log_NAME``, so that the number stays positive. A
    run reports each that learns by its name, and the model's record keeps its value.

    Args:
        name: By which it is reported.
        start: The number, or what it starts from.
        rate: Peak learning rate; 0: it stays.
        least: It does not fall below this, unless it starts there.
        device: Of the parameter.
    """

    def __init__(
        self,
        name: str,
        start: float,
        rate: float = 0.0,
        *,
        least: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.name = name
        self.rate = rate
        self._start = start
        self._least = min(least, start)
        if rate > 0:
            logarithm = nn.Parameter(torch.tensor(math.log(start), device=device))
            self.register_parameter(f"log_{name}", logarithm)

    @property
    def logarithm(self) -> nn.Parameter | None:
        """What learns; None if the number stays."""
        return next(self.parameters(), None)

    @property
    def value(self) -> Tensor | float:
        """The number; a scalar tensor with gradient if it learns."""
        if self.logarithm is None:
            return self._start
        return self.logarithm.exp().clamp(min=self._least)


class Similarity(LearnableScalar):
    """The cosine over a temperature, which is a setting or learns (CLIP, 2.3)."""

    def __init__(
        self, temperature: float, rate: float = 0.0, *, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__("temperature", temperature, rate, least=LEAST, device=device)

    @classmethod
    def of(cls, settings: TemperatureSettings, device: torch.device) -> "Similarity":
        return cls(settings.temperature, settings.temperature_rate, device=device)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return s(first_i, second_j), (n, m) float32, of vectors (n, d) and (m, d)."""
        return cosines(first, second) / self.value


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return cos(first_i, second_j), (n, m) float32, of vectors (n, d) and (m, d)."""
    first = functional.normalize(first.float(), dim=1)
    second = functional.normalize(second.float(), dim=1)
    return first @ second.T
