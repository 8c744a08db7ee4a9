"""Value Aggregation, one sentence at a time: hooks on the maps to the values, sums over tokens."""

import functools

import torch

_JOINT = ("c_attn", "Wqkv")  # queries, keys and values in one map
_NAMES = ("v_proj", "v_lin", "value", "v", *_JOINT)


def value_maps(reference):
    """The map to the values of every layer, by name."""
    model = reference.model.base_model
    return [
        (name.rpartition(".")[2], module)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in _NAMES
    ]


def value_states(reference, ids):
    """What ``_value_states`` returns, computed once for each input."""
    return _value_states(reference, tuple(ids))


@functools.cache
@torch.no_grad()
def _value_states(reference, ids):
    """What the attention of every layer reads of every token, (L, t, h' d/h), and what it was
    computed from, (L, t, d).
    """
    read, made = [], []

    def see(name, given, output):
        read.append(given[0][0])
        width = output.size(-1) // 3
        made.append(output[0][:, 2 * width :] if name in _JOINT else output[0])

    hooks = [
        module.register_forward_hook(lambda _, given, output, name=name: see(name, given, output))
        for name, module in value_maps(reference)
    ]
    try:
        reference.compute(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(made), torch.stack(read)
