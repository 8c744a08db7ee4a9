"""The whole state of a training run in one safetensors file: weights, the optimiser's moments, and how far it is.

Batches, masks and dropout follow from the plan and the step's number, so no generator's state needs keeping.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from promptcli.errors import UsageError
from promptcli.storage.files import atomic_path

_ADAMW = ("exp_avg", "exp_avg_sq")
_MUON = ("momentum_buffer",)


@dataclass(frozen=True)
class Position:
    """How far a run is.

    Attributes:
        step: Steps done.
        seen: Tokens seen in pre-training, examples in contrastive training.
        seconds: Time spent in steps, over all sittings.
    """

    step: int = 0
    seen: int = 0
    seconds: float = 0.0


def save_state(
    path: Path, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, position: Position
) -> None:
    """Write the state, whole or not at all."""
    tensors: dict[str, Tensor] = {f"weight.{name}": parameter.detach() for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        kept = optimizer.state[parameter]
        tensors |= {f"{moment}.{name}": kept[moment] for moment in (*_ADAMW, *_MUON) if moment in kept}
    about = {"step": str(position.step), "seen": str(position.seen), "seconds": repr(position.seconds)}
    with atomic_path(path) as temporary:
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, temporary, metadata=about)


def load_state(path: Path, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> Position:
    """Read the state into parameters and optimiser; return how far the run is.

    Raises:
        UsageError: The file is broken, or of a model of another shape.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about, there = file.metadata(), set(file.keys())
            for name, parameter in parameters.items():
                kinds = _MUON if f"{_MUON[0]}.{name}" in there else _ADAMW
                stored = {kind: file.get_tensor(f"{kind}.{name}") for kind in ("weight", *kinds)}
                if stored["weight"].shape != parameter.shape:
                    raise UsageError(
                        f"{path} holds {name} of shape {tuple(stored['weight'].shape)}, this model has"
                        f" {tuple(parameter.shape)}; resume with the settings that it was started with"
                    )
                with torch.no_grad():
                    parameter.copy_(stored["weight"])
                moments: dict[str, Any] = {moment: stored[moment].to(parameter.device) for moment in kinds}
                optimizer.state[parameter] = {"step": torch.tensor(float(about["step"])), **moments}
    except (SafetensorError, OSError, KeyError) as error:
        raise UsageError(f"{path} is no state of this run ({str(error).splitlines()[0]}); start anew") from None
    return Position(int(about["step"]), int(about["seen"]), float(about["seconds"]))


def truncate_log(path: Path, steps: int) -> None:
    """Drop the log lines of steps that the state does not know of."""
    if path.is_file():
        kept = [line for line in _whole_lines(path) if json.loads(line)["step"] <= steps]
        with atomic_path(path) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")


def _whole_lines(path: Path) -> Iterable[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
