"""AdamW as the papers' programs had it; epsilon, bias correction and weight decay differ from
torch's.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

CLIP = 1.0  #: largest global norm of the gradient
_BETAS = (0.9, 0.999)


class OlderAdamW(torch.optim.Optimizer):
    """AdamW of transformers until 4.2.1.

    With m and v the running means of g and g^2 at step t, a parameter moves by -lr sqrt(1 - b2^t) /
    (1 - b1^t) m / (sqrt(v) + eps), so epsilon is added before the bias correction; torch has
    -lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps). Without correction it
    moves by -lr m / (sqrt(v) + eps). Decay follows: p -= lr wd p.
    """

    def __init__(
        self, params: Any, lr: float, eps: float, *, corrected: bool, weight_decay: float = 0.0
    ) -> None:
        super().__init__(
            params, {"lr": lr, "eps": eps, "corrected": corrected, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        first, second = _BETAS
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"], state["exp_avg_sq"] = (
                        torch.zeros_like(parameter),
                        torch.zeros_like(parameter),
                    )
                state["step"] += 1
                mean: Tensor = state["exp_avg"].lerp_(parameter.grad, 1 - first)
                square: Tensor = state["exp_avg_sq"].mul_(second)
                square.addcmul_(parameter.grad, parameter.grad, value=1 - second)
                size = group["lr"]
                if group["corrected"]:
                    steps = float(state["step"])
                    size *= math.sqrt(1 - second**steps) / (1 - first**steps)
                parameter.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-size)
                if group["weight_decay"]:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])


def _groups(named: Mapping[str, nn.Parameter], decay: float) -> list[dict[str, Any]]:
    """Return two groups: parameters with decay, and biases and layer norms, without."""
    still = [name for name in named if name.endswith(("bias", "LayerNorm.weight"))]
    moving = [parameter for name, parameter in named.items() if name not in still]
    groups = [(moving, decay), ([named[name] for name in still], 0.0)]
    return [{"params": params, "weight_decay": weight} for params, weight in groups if params]


#: Makes an optimiser from named parameters, a learning rate and a weight decay.
Make = Callable[[Mapping[str, nn.Parameter], float, float], torch.optim.Optimizer]
#: By the name in ``TrainingSettings.optimizer``: torch's, transformers 4.2.1's, ConSERT's.
OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda named, rate, decay: torch.optim.AdamW(
        named.values(), lr=rate, weight_decay=decay, betas=_BETAS, eps=1e-8, fused=True
    ),
    "adamw-4.2.1": lambda named, rate, decay: OlderAdamW(
        _groups(named, decay), rate, 1e-8, corrected=True
    ),
    "adamw-uncorrected": lambda named, rate, decay: OlderAdamW(
        _groups(named, decay), rate, 1e-6, corrected=False
    ),
}
