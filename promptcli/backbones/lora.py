"""Low-rank adapters (LoRA, Hu et al. 2022) on a backbone, trained by peft and merged without it.

An adapter's tensors have peft's names inside the model, ``MODULE.lora_A.default.weight`` (r, in)
and ``lora_B`` (out, r). ``lora_alpha`` is one of them: W becomes W + alpha / r B A.
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
from promptcli.errors import UsageError, require_libraries, short_repr

ALPHA = "lora_alpha"
_HINT = "save it again (peft: save_pretrained)"
_DOWN = ".lora_A.default.weight"
_UP = ".lora_B.default.weight"
#: Field of an adapter's configuration -> its values in a plain LoRA, whose formula is used here.
_PLAIN_VALUES: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA", None),
    "bias": ("none", None),
    **dict.fromkeys(
        ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern"),
        (False, None, {}, []),
    ),
}


def add_lora(model: Any, family: str, *, rank: int, alpha: int, dropout: float, seed: int) -> None:
    """Add a trainable adapter to every linear map of a model, and freeze the model's weights.

    A is drawn by ``seed`` and B is 0, so the adapter changes nothing at first. Messages name the
    ``family``.
    """
    require_libraries("peft", extra="peft")
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
    """Return whether a linear map's matrix is stored (in, out), as in transformers' GPT-2."""
    return type(module).__name__ == "Conv1D"


def is_lora(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the tensors are an adapter."""
    return ALPHA in tensors


def merge_lora(owner: object, model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Add an adapter to the weights of the model that it was trained on, in place."""
    alpha = float(tensors[ALPHA])
    adapted = {name.removesuffix(_DOWN) for name in tensors if name.endswith(_DOWN)}
    expected = {ALPHA}
    for name in adapted:
        expected |= {name + _DOWN, name + _UP}
    modules = dict(model.named_modules())
    misfits = sorted(expected ^ set(tensors)) or sorted(adapted - modules.keys())
    if misfits:
        raise UsageError(
            f"{owner} changes {misfits[0]}, which this backbone lacks; give the backbone on which"
            " it was trained"
        )
    with torch.no_grad():
        for name in sorted(adapted):
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
                shapes = f"{tuple(change.shape)}, this backbone has {tuple(weight.shape)}"
                raise UsageError(
                    f"{owner} changes {name} of shape {shapes}; give the backbone on which it was"
                    " trained"
                )
            weight.copy_(weight.float() + change.to(weight.device))


def read_adapter(folder: ModelFolder, prefix: str) -> dict[str, Tensor]:
    """Return an adapter that peft saved; in a model with a head its names begin with ``prefix``."""
    config = read_adapter_config(folder)
    check_kind(folder, config)
    for field, plain_values in _PLAIN_VALUES.items():
        value = getattr(config, field)
        if value not in plain_values:
            raise folder.error(
                f"is not a plain LoRA ({field} {short_repr(value)}); merge it: merge_and_unload"
            )
    if config.lora_alpha is None:
        raise folder.error(f"has no lora_alpha in its {ADAPTER_CONFIG}; {_HINT}")
    adapter = {ALPHA: torch.tensor(config.lora_alpha)}
    for name, tensor in folder.tensors(ADAPTER_WEIGHTS).items():
        inner = name.removeprefix("base_model.model.").removeprefix(f"{prefix}.")
        adapter[inner.replace(".lora_A.weight", _DOWN).replace(".lora_B.weight", _UP)] = tensor
    return adapter
