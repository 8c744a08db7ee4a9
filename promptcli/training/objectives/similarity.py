"""The similarity of two vectors: s(a, b) = cos(a, b) / tau."""

import torch
from torch import Tensor
from torch.nn import functional

from promptcli.training.methods.training_settings import TemperatureSettings
from promptcli.training.objectives.learnable import LearnableScalar

#: A learned temperature does not fall below this, as CLIP's (Radford et al. 2021, 2.5), unless it
#: starts there.
LEAST = 0.01


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
