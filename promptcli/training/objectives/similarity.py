"""How alike two vectors are: s(a, b) = cos(a, b) / tau."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.training.methods.training_settings import TemperatureSettings

#: A learned temperature does not fall below this, as CLIP's (Radford et al. 2021, 2.5), unless it
#: starts there.
LEAST = 0.01


class Similarity(nn.Module):
    """The cosine over a temperature, which is a setting or learns (CLIP, 2.3).

    What learns is the logarithm of tau, so that tau stays positive.
    """

    def __init__(
        self, temperature: float, *, learns: bool = False, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self._start = temperature
        self.log_temperature: nn.Parameter | None = None
        if learns:
            self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature), device=device))

    @classmethod
    def of(cls, settings: TemperatureSettings, device: torch.device) -> "Similarity":
        learns = settings.temperature_rate > 0
        return cls(settings.temperature, learns=learns, device=device)

    @property
    def temperature(self) -> Tensor | float:
        """Tau; a scalar tensor with gradient if it learns."""
        if self.log_temperature is None:
            return self._start
        return self.log_temperature.exp().clamp(min=min(LEAST, self._start))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return s(first_i, second_j), (n, m) float32, of vectors (n, d) and (m, d)."""
        return cosines(first, second) / self.temperature


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return cos(first_i, second_j), (n, m) float32, of vectors (n, d) and (m, d)."""
    first = functional.normalize(first.float(), dim=1)
    second = functional.normalize(second.float(), dim=1)
    return first @ second.T
