"""The similarity s(a, b) = cos(a, b) / tau, and learnable scalars of a loss."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.training.methods.method import TemperatureSettings

#: Lower bound of a learned temperature, as in CLIP (Radford et al. 2021, 2.5), unless it
#: starts there.
LEAST = 0.01


class LearnableScalar(nn.Module):
    """A positive number, fixed or learned at its own rate.

    Its logarithm is the learned parameter, ``log_NAME``, so the number stays positive. A run
    reports each learned number by name, and the model's record keeps its value.

    Args:
        name: Name in reports.
        start: The fixed or initial value.
        rate: Peak learning rate; 0: fixed.
        least: Lower bound, unless the initial value is lower.
        device: Device of the parameter.
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
        """The learned parameter; None if the number is fixed."""
        return next(self.parameters(), None)

    @property
    def value(self) -> Tensor | float:
        """The number; a scalar tensor with gradient if it learns."""
        if self.logarithm is None:
            return self._start
        return self.logarithm.exp().clamp(min=self._least)


class Similarity(LearnableScalar):
    """The cosine over a fixed or learned temperature (CLIP, 2.3)."""

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
