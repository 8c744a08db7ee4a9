"""Value states: what a layer's attention would read of each token, v = W_V x + b_V (Value
Aggregation).

x is what the attention module gets: in families that normalise before it, the normed states. The
values are computed from it before the module runs, so that a pass can end there: of the last layer
whose values are wanted, only that map runs.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from promptcli.backbones.attention_hook import AttentionHook

#: Maps that make queries, keys and values together, in this order (GPT-2, ModernBERT).
_JOINT = ("c_attn", "Wqkv")


def allow_values(model: nn.Module, path: str, n_layers: int) -> None:
    """Let a pass read the values of layers.

    ``path`` is the map to the values, {} for the layer's number; its parent is the attention.
    """
    place, _, name = path.rpartition(".")
    for number in range(n_layers):
        attention = model.get_submodule(place.format(number))
        read = functools.partial(_read, number, name)
        attention.register_forward_pre_hook(read, with_kwargs=True)


def _read(
    number: int, name: str, attention: nn.Module, given: tuple[Any, ...], options: dict[str, Any]
) -> None:
    inputs = (*given, *options.values())
    hook = next((part for part in inputs if isinstance(part, AttentionHook)), None)
    if hook is None or number not in hook.recorded.needs.values:
        return
    states: Tensor = options["hidden_states"] if "hidden_states" in options else given[0]
    slots = hook.recorded.slots
    if slots is not None:
        states = states[torch.arange(states.size(0), device=states.device), slots].unsqueeze(1)
    hook.keep_values(number, _values(attention.get_submodule(name), name, states))


def _values(mapping: nn.Module, name: str, states: Tensor) -> Tensor:
    """Return W_V x + b_V, (n, t, h' d/h), of states (n, t, d)."""
    mapped: Tensor = mapping(states)
    if name in _JOINT:
        return mapped.chunk(3, dim=-1)[-1]
    return mapped
