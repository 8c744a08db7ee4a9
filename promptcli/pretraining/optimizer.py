"""The optimiser of a pre-training run: AdamW for all, or Muon for the layers' matrices and AdamW for the rest."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import torch
from torch import nn

from promptcli.pretraining.plan import Plan

_BETAS = (0.9, 0.98)
_EPSILON = 1e-6
_MOMENTUM = 0.95
#: Muon's steps are scaled to the size of AdamW's, so that one learning rate serves both (Liu et al. 2025).
_SCALE = "match_rms_adamw"
#: What stands in the names of the matrices between hidden states, of BERT and of Llama.
_HIDDEN = ("encoder.layer.", "predictions.transform.", "model.layers.")


class Together(torch.optim.Optimizer):
    """Several optimisers as one: their groups and their states side by side.

    Args:
        members: Of parameters of their own.
        executor: Takes their steps at a time; None takes one after the other.
    """

    def __init__(self, members: Sequence[torch.optim.Optimizer], executor: Executor | None = None) -> None:
        self._members = members
        self._map = map if executor is None else executor.map
        super().__init__([group for member in members for group in member.param_groups], {})
        self.param_groups = [group for member in members for group in member.param_groups]
        for member in members:
            member.state = self.state

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Let each member take its step."""
        list(self._map(lambda member: member.step(), self._members))


def make_optimizer(
    plan: Plan, parameters: dict[str, nn.Parameter], executor: Executor | None = None, parts: int = 1
) -> torch.optim.Optimizer:
    """Return the optimiser that a plan names; biases, LayerNorms and the like have no weight decay.

    Args:
        plan: Of the run.
        parameters: By name, as in the models of ``transformers``.
        executor: Takes steps at a time.
        parts: Muon's matrices are dealt out to so many optimisers, whose steps it can take at a time.
    """
    rate, decay, is_muon = plan.learning_rate, plan.weight_decay, plan.optimizer == "muon"
    hidden = [parameter for name, parameter in parameters.items() if is_muon and of_a_layer(name, parameter)]
    taken = {id(parameter) for parameter in hidden}
    rest = [parameter for parameter in parameters.values() if id(parameter) not in taken]
    groups = [
        {"params": [parameter for parameter in rest if parameter.dim() > 1], "weight_decay": decay},
        {"params": [parameter for parameter in rest if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=rate, betas=_BETAS, eps=_EPSILON, fused=True)
    if not is_muon:
        return adamw
    muons = [
        torch.optim.Muon(hidden[part::parts], lr=rate, weight_decay=decay, momentum=_MOMENTUM, adjust_lr_fn=_SCALE)
        for part in range(min(parts, len(hidden)))
    ]
    return Together([*muons, adamw], executor)


def of_a_layer(name: str, parameter: nn.Parameter) -> bool:
    """Return whether it is a matrix between hidden states: neither embeddings nor what reads logits."""
    return parameter.dim() == 2 and any(part in name for part in _HIDDEN)
