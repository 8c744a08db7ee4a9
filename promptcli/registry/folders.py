"""What a model's folder says of itself: an encoder of ours, of sentence-transformers, of peft, or a plain backbone.

Read faithfully or refused by name: nothing is guessed where a folder says how its sentences are read.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptcli.backbones.families import FAMILIES
from promptcli.backbones.pretrained import locate
from promptcli.encoder.transforms.dense import ACTIVATIONS
from promptcli.errors import UsageError
from promptcli.notes import note
from promptcli.recipe import SLOT, Recipe
from promptcli.registry.entries import Entry
from promptcli.storage.documents import read_document
from promptcli.storage.tensors import load_tensors

RECIPE, TENSORS, BACKBONE = "recipe.json", "tensors.safetensors", "backbone"
_MODULES, _ADAPTER, _CONFIG = "modules.json", "adapter_config.json", "config.json"
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
#: Modes of sentence-transformers' Pooling, and our weights.
_MODES = {
    "cls": "cls",
    "max": "max",
    "mean": "avg",
    "mean_sqrt_len_tokens": "sqrt",
    "weightedmean": "weighted",
    "lasttoken": "last-token",
}
#: The flags of older files, in the order in which their vectors are joined.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
#: Classes that change nothing when sentences are encoded.
_IDLE = ("Dropout",)
_MEND = "fetch the folder again"
_NO_LIMIT = 1 << 30  # tokens; a tokenizer's file has a larger number where there is no limit


@dataclass(frozen=True)
class Prompts:
    """Texts in front of a sentence, by name, as sentence-transformers keeps them."""

    texts: dict[str, str] = field(default_factory=dict)
    default: str | None = None  #: name of the one that stands there where none is asked for


def read_model(name: str, *, offline: bool = False, announce: Callable[[str], None] = note) -> Entry | None:
    """Return the encoder that a folder or hub repository says it is; None for a plain backbone.

    Args:
        name: A folder, or a hub id with ``@revision`` after it.
        offline: Never use the network.
        announce: Called with one line before the network is used.

    Raises:
        NotFoundError: No such folder or hub id.
        UsageError: A module, a mode or a weight that cannot be read faithfully; with its name.
    """
    folder, revision = locate(name, offline, announce, files=_FILES, one_of=(RECIPE, _MODULES, _ADAPTER, _CONFIG))
    where = {"source": name, "revision": revision}
    if (folder / RECIPE).is_file():
        return _ours(folder, where)
    if (folder / _MODULES).is_file():
        return _sentence_transformers(name, folder, where)
    return None


def _ours(folder: Path, where: dict[str, Any]) -> Entry:
    recipe = Recipe.from_dict(read_document(folder / RECIPE, dict[str, Any], mend=_MEND))
    if (folder / BACKBONE).is_dir():
        recipe = recipe.replace(backbone=str(folder / BACKBONE))
    tensors = load_tensors(folder / TENSORS, mend=_MEND) if (folder / TENSORS).is_file() else {}
    return Entry(folder.resolve().name, recipe, tensors, {"loaded": {**where, "kind": "promptcli folder"}})


def _sentence_transformers(name: str, folder: Path, where: dict[str, Any]) -> Entry:
    listed: list[dict[str, Any]] = _document(name, folder, _MODULES, list)
    modules = [(str(module.get("type")), str(module.get("path"))) for module in listed]
    kinds = [kind.rpartition(".")[2] for kind, _ in modules]
    for kind, path in modules:
        if not kind.startswith("sentence_transformers."):
            raise UsageError(
                f"{name} has a module {kind} ({path or '.'}), which is code of its own and is never run; take a model"
                " whose modules.json names sentence_transformers' classes only"
            )
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise UsageError(
            f"{name} begins with {', '.join(kinds[:2]) or 'no module'}; what is read is Transformer, Pooling and after"
            f" them Dense, Normalize, {', '.join(_IDLE)}"
        )
    body = folder / modules[0][1]
    _check_body(name, body)
    after = [(kind, path) for kind, (_, path) in zip(kinds[2:], modules[2:], strict=True)]
    transforms, tensors = _after_pooling(name, folder, after)
    prompts = _prompts(name, folder)
    weights, includes_prompt = _weights(name, folder, modules[1][1])
    if not includes_prompt and any(prompts.texts.values()):
        raise UsageError(
            f"{name} leaves its prompts out of the mean (include_prompt false in {modules[1][1]}/config.json), which is"
            " not read"
        )
    longest, lowered = _limits(name, body)
    recipe = Recipe(
        backbone=str(body) if (folder / modules[0][1]).is_dir() else name,
        prompt=prompts.texts.get(prompts.default or "", "") + SLOT,
        period=False,
        pooling=f"last/{weights}",
        transforms=tuple(transforms),
        text_rule="lower" if lowered else None,
        max_length=longest,
    )
    about = {**where, "kind": "sentence-transformers", "prompts": prompts.texts, "default_prompt": prompts.default}
    return Entry(Path(name).name, recipe, tensors, {"loaded": about})


def _check_body(name: str, body: Path) -> None:
    """Refuse a language model that would be read as another one."""
    config = _document(name, body, _CONFIG, dict)
    family = config.get("model_type")
    if config.get("use_bidirectional_attention"):
        raise UsageError(f"{name} is a {family} whose tokens attend to both sides, which is not read")
    if family not in FAMILIES:
        own = "; it comes with code of its own, which is never run" if "auto_map" in config else ""
        raise UsageError(f"{name} is a {family}, a family that is not read{own}; what is: {', '.join(FAMILIES)}")


def _after_pooling(name: str, folder: Path, modules: list[tuple[str, str]]) -> tuple[list[str], dict[str, Tensor]]:
    """Return the modules after the pooling, kinds and paths, as transforms and their numbers."""
    tensors: dict[str, Tensor] = {}
    transforms: list[str] = []
    for number, (kind, path) in enumerate(modules):
        if kind == "Dense":
            spec, own = _dense(name, folder, path, number)
            transforms.append(spec)
            tensors |= own
        elif kind == "Normalize":
            transforms.append("normalize")
        elif kind not in _IDLE:
            raise UsageError(f"{name} has a module {kind} ({path}), which is not read; what is: Dense, Normalize")
    return transforms, tensors


def _document(name: str, folder: Path, file: str, kind: type) -> Any:
    path = folder / file
    if not path.is_file():
        raise UsageError(f"{name} has no {file} in {folder.name}: half of its files are not there; {_MEND}")
    found = read_document(path, Any, mend=_MEND, error=UsageError)
    whole = isinstance(found, kind) and (not isinstance(found, list) or all(isinstance(item, dict) for item in found))
    if not whole:
        raise UsageError(f"{file} of {name} is not what sentence-transformers writes; {_MEND}")
    return found


def _prompts(name: str, folder: Path) -> Prompts:
    if not (folder / "config_sentence_transformers.json").is_file():
        return Prompts()
    about = _document(name, folder, "config_sentence_transformers.json", dict)
    texts = {str(key): str(text) for key, text in (about.get("prompts") or {}).items()}
    default = about.get("default_prompt_name")
    if default is not None and default not in texts:
        raise UsageError(f"{name} takes the prompt {default!r} by default and has none of that name")
    return Prompts(texts, default)


def _weights(name: str, folder: Path, path: str) -> tuple[str, bool]:
    """Return our weights of a Pooling module, and whether a prompt's tokens count."""
    config: dict[str, Any] = _document(name, folder / path, _CONFIG, dict)
    modes = [mode for flag, mode in _FLAGS.items() if config.get(flag)]
    if "pooling_mode" in config:
        given = config["pooling_mode"]
        modes = [given] if isinstance(given, str) else list(map(str, given or ()))
    others = [key for key, on in config.items() if key.startswith("pooling_mode_") and on is True and key not in _FLAGS]
    unknown = [mode for mode in modes if mode not in _MODES] + others
    if unknown or not modes:
        raise UsageError(f"{name} pools by {', '.join(unknown) or 'nothing'}; what is read: {', '.join(_MODES)}")
    return "+".join(_MODES[mode] for mode in modes), bool(config.get("include_prompt", True))


def _dense(name: str, folder: Path, path: str, number: int) -> tuple[str, dict[str, Tensor]]:
    """Return the transform that a Dense module is, with its numbers."""
    config = _document(name, folder / path, _CONFIG, dict)
    activation = str(config.get("activation_function")).rpartition(".")[2].lower()
    if activation not in ACTIVATIONS:
        raise UsageError(f"{name} has a Dense layer with {activation} ({path}); what is read: {', '.join(ACTIVATIONS)}")
    file = folder / path / "model.safetensors"
    if not file.is_file():
        raise UsageError(f"{name} has no model.safetensors in {path}: pickles are not read; {_MEND}")
    stored = load_tensors(file, mend=_MEND, error=UsageError)
    weight = stored.get("linear.weight")
    wanted = (config.get("out_features"), config.get("in_features"))
    if weight is None or tuple(weight.shape) != wanted:
        shape = "no weight" if weight is None else f"a weight of {tuple(weight.shape)}"
        raise UsageError(f"{name} has {shape} in {path}, and its config.json says {wanted}; {_MEND}")
    bias = stored.get("linear.bias", torch.zeros(len(weight)))
    return f"dense:{number}:{activation}", {f"dense.{number}.weight": weight, f"dense.{number}.bias": bias}


def _limits(name: str, body: Path) -> tuple[int | None, bool]:
    """Return the longest input in tokens, None for the backbone's own, and whether text is lowered.

    The module's own limit goes before the tokenizer's, where newer versions keep it.
    """
    files = "sentence_bert_config.json", "tokenizer_config.json"
    module = _document(name, body, files[0], dict) if (body / files[0]).is_file() else {}
    tokenizer = _tokenizer_config(name, body / files[1])
    config = _document(name, body, _CONFIG, dict)
    longest = module.get("max_seq_length") or tokenizer.get("model_max_length")
    positions = config.get("max_position_embeddings")
    family = FAMILIES[config["model_type"]]
    if isinstance(positions, int) and family.pads_before_positions:
        positions -= 2
    most = min(positions, _NO_LIMIT) if isinstance(positions, int) else _NO_LIMIT
    return longest if isinstance(longest, int) and longest < most else None, bool(module.get("do_lower_case"))


def _tokenizer_config(name: str, path: Path) -> dict[str, Any]:
    """Return a tokenizer's file; it says "no limit" by an integer of 31 digits, which no document of ours may hold."""
    try:
        found = json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{path.name} of {name} is no JSON object; {_MEND}")
    return found
