"""A positive number of a loss that is a setting, or learns beside the encoder: a temperature."""

import math

import torch
from torch import Tensor, nn


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
