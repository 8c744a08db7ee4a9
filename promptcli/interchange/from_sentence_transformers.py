"""Folders of sentence-transformers: Transformer, Pooling, and after them Dense and Normalize."""

from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from promptcli.encoder.transforms.whitening import MATRIX, MEAN
from promptcli.errors import UsageError
from promptcli.interchange.found import Folder, Found
from promptcli.recipe import Recipe

#: Mode of Pooling -> weights; the older files have one flag a mode.
_WEIGHTS = {"mean": "avg", "cls": "cls", "lasttoken": "last-token"}
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "lasttoken"}
_CLOSE = 1e-4


def read_sentence_transformers(folder: Folder) -> Found | None:
    """Read a folder with ``modules.json``.

    Raises:
        UsageError: A module or a mode that no recipe has, or weights in a pickle that may not be converted.
    """
    if not folder.has("modules.json"):
        return None
    listed = folder.document("modules.json", list)
    modules = [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in listed]
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Dense", "Normalize"}:
        raise UsageError(f"{folder.name} is {', '.join(kinds)}; what is read is Transformer, Pooling, Dense, Normalize")
    if "Normalize" in kinds[:-1]:
        raise UsageError(f"{folder.name} has Normalize before its end, and no recipe has")
    inside = f"{modules[0][1]}/" if modules[0][1] else ""
    tensors: dict[str, Tensor] = {}
    transforms: list[str] = []
    for number, (kind, path) in enumerate(modules):
        if kind == "Dense":
            made = _dense(folder, path)
            if transforms:
                raise UsageError(f"{folder.name} has {number} modules with two Dense layers; a recipe has one of each")
            transforms.append(made[0])
            tensors |= made[1]
    limits = (
        folder.document(f"{inside}sentence_bert_config.json")
        if folder.has(f"{inside}sentence_bert_config.json")
        else {}
    )
    longest = limits.get("max_seq_length")
    recipe = Recipe(
        backbone="",
        pooling=f"last/{_weights(folder, modules[1][1])}",
        transforms=tuple(transforms),
        max_length=longest if isinstance(longest, int) else None,
    )
    notes = (
        ("Normalize is left out: vectors keep their length, and cosine does not see it",)
        if "Normalize" in kinds
        else ()
    )
    weights = load_file(folder.weights(inside=inside))
    return Found(
        "sentence-transformers folder", recipe, tensors, weights, folder.document(f"{inside}config.json"), notes
    )


def _weights(folder: Folder, path: str) -> str:
    config: dict[str, Any] = folder.document(f"{path}/config.json")
    modes = [mode for flag, mode in _FLAGS.items() if config.get(flag)]
    modes += [key for key, value in config.items() if key.startswith("pooling_mode_") and value and key not in _FLAGS]
    if "pooling_mode" in config:
        modes = [config["pooling_mode"]] if isinstance(config["pooling_mode"], str) else list(config["pooling_mode"])
    if len(modes) != 1 or modes[0] not in _WEIGHTS:
        raise UsageError(f"{folder.name} pools by {', '.join(modes) or 'nothing'}; what is read: {', '.join(_WEIGHTS)}")
    return _WEIGHTS[modes[0]]


def _dense(folder: Folder, path: str) -> tuple[str, dict[str, Tensor]]:
    """Return the transform that a Dense module is, with its numbers."""
    config = folder.document(f"{path}/config.json")
    tensors = load_file(folder.weights(inside=f"{path}/"))
    weight = tensors["linear.weight"].float()
    bias = tensors.get("linear.bias", torch.zeros(len(weight))).float()
    activation = str(config.get("activation_function")).rpartition(".")[2]
    if activation == "Tanh" and weight.size(0) == weight.size(1):
        return "projection:tanh", {"projection.0.weight": weight, "projection.0.bias": bias}
    if activation == "Identity":
        # y = x W^T + b is (x - mu) W^T where mu W^T = -b
        mean = torch.linalg.lstsq(weight.double(), -bias.double()[:, None]).solution[:, 0].float()
        if (mean @ weight.T + bias).abs().max() <= _CLOSE * max(1.0, float(bias.abs().max())):
            return "whitening", {MEAN: mean, MATRIX: weight.T.contiguous()}
    sizes = " to ".join(str(side) for side in reversed(weight.shape))
    raise UsageError(
        f"{folder.name} has a Dense layer of {sizes} with {activation}; what is read: Tanh of one width, Identity"
    )
