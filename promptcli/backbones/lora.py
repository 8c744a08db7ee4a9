"""Low-rank adapters (LoRA, Hu et al. 2022) on a backbone: trained by peft, merged without peft for
use.

An adapter's tensors have peft's names inside the model, ``MODULE.lora_A.default.weight`` (r, in)
and ``lora_B`` (out, r), and ``lora_alpha`` is among them: W becomes W + alpha / r B A.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from promptcli.backbones.model_folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    ModelFolder,
    check_kind,
    read_adapter_config,
)
from promptcli.errors import UsageError, require, shorten

ALPHA = "lora_alpha"
_HINT = "save it again (peft: save_pretrained)"
_DOWN = ".lora_A.default.weight"
_UP = ".lora_B.default.weight"
#: Field of an adapter's configuration -> value of a plain LoRA; other values mean other formulas.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA", None),
    "bias": ("none", None),
    **dict.fromkeys(
        ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern"),
        (False, None, {}, []),
    ),
}


def add_lora(model: Any, family: str, *, rank: int, alpha: int, dropout: float, seed: int) -> None:
    """Add a trainable adapter to every linear map of a model, and freeze the model's weights.

    The adapter changes nothing at first.

    A is drawn by ``seed``, B is 0; ``family`` is for messages.
    """
    require("peft", extra="peft")
    from peft import LoraConfig, inject_adapter_in_model

    transposed = any(map(is_transposed, model.modules()))
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules="all-linear",
        fan_in_fan_out=transposed,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model)
        except (ValueError, AttributeError, NotImplementedError) as error:
            raise UsageError(
                f"peft has no LoRA for family {family!r}: {str(error).splitlines()[0][:160]}"
            ) from None


def is_transposed(module: torch.nn.Module) -> bool:
    """Return whether a linear map's matrix is stored (in, out), as by GPT-2 in transformers."""
    return type(module).__name__ == "Conv1D"


def is_lora(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether tensors are an adapter's."""
    return ALPHA in tensors


def merge_lora(owner: object, model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Add an adapter to the weights of the model that it was trained on, in place."""
    alpha = float(tensors[ALPHA])
    parts = {name.removesuffix(_DOWN) for name in tensors if name.endswith(_DOWN)}
    known = {ALPHA}
    for name in parts:
        known |= {name + _DOWN, name + _UP}
    modules = dict(model.named_modules())
    for name in sorted(known ^ set(tensors)) or sorted(parts - modules.keys()):
        raise UsageError(
            f"{owner} has a tensor {name}, and the backbone does not; give the one it was trained"
            " on"
        )
    with torch.no_grad():
        for name in sorted(parts):
            weight = modules[name].weight
            down = tensors[name + _DOWN].float()
            up = tensors[name + _UP].float()
            if up.dim() != 2 or down.dim() != 2 or up.size(1) != len(down):
                raise UsageError(
                    f"{owner} has tensors of {name} that are not (out, r) and (r, in); {_HINT}"
                )
            change = alpha / len(down) * (up @ down)
            if is_transposed(modules[name]):
                change = change.T
            if change.shape != weight.shape:
                shapes = f"{tuple(change.shape)}, the backbone has {tuple(weight.shape)}"
                raise UsageError(
                    f"{owner} changes {name} of shape {shapes}; give the one it was trained on"
                )
            weight.copy_(weight.float() + change.to(weight.device))


def read_adapter(folder: ModelFolder, prefix: str) -> dict[str, Tensor]:
    """Return an adapter that peft saved.

    ``prefix`` precedes its names in a model with a head, e.g. ``model``.
    """
    config = read_adapter_config(folder)
    check_kind(folder, config)
    for field, plain in _PLAIN.items():
        value = getattr(config, field)
        if value not in plain:
            raise folder.error(
                f"is not a plain LoRA ({field} {shorten(value)}); merge it: merge_and_unload"
            )
    if config.lora_alpha is None:
        raise folder.error(f"has no lora_alpha in its {ADAPTER_CONFIG}; {_HINT}")
    adapter = {ALPHA: torch.tensor(config.lora_alpha)}
    for name, tensor in folder.tensors(ADAPTER_WEIGHTS).items():
        inner = name.removeprefix("base_model.model.").removeprefix(f"{prefix}.")
        adapter[inner.replace(".lora_A.weight", _DOWN).replace(".lora_B.weight", _UP)] = tensor
    return adapter
