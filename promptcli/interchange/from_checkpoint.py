"""The authors' own checkpoints, told apart by tensors and names: SimCSE, PromptBERT, PromCSE (DCPCSE's successor).

Their training code saves the encoder under ``bert.`` or ``roberta.``, next to it the head ``mlp`` and, for PromCSE, the
prefix; SimCSE's published folders are plain encoders whose pooler is that head.
"""

import re
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from promptcli.encoder.prompts.deep_prefix import TENSOR
from promptcli.errors import UsageError
from promptcli.interchange.found import Folder, Found
from promptcli.interchange.peft import from_prompt_embeddings
from promptcli.recipe import MASK, Recipe

_BODIES = ("bert.", "roberta.")
_HEADS = ("mlp.", "lm_head.", "cls.", "prefix_encoder.")
_PREFIX = "prefix_encoder.embedding.weight"
#: Where PromptBERT takes denoising, by head (its code: T(h) - T(h_hat), or the head of h - h_hat).
_DENOISE = {"projection:mlm": "head", "projection:tanh": "hidden"}
#: PromptBERT's test templates, of BERT and of RoBERTa (run.sh of its code).
_TEMPLATES = {"bert": 'This sentence of "[X]" means [MASK] .', "roberta": "This sentence : ' [X] ' means[MASK]."}


def read_checkpoint(folder: Folder) -> Found | None:
    """Read a folder with ``config.json`` and the weights of a model.

    Raises:
        UsageError: Weights in a pickle that may not be converted, or a prefix that does not fit the configuration.
    """
    if not folder.has("config.json"):
        return None
    config: dict[str, Any] = folder.document("config.json")
    stored = load_file(folder.weights())
    prefix = next((prefix for prefix in _BODIES if any(name.startswith(prefix) for name in stored)), "")
    body = {
        name: tensor
        for name, tensor in stored.items()
        if name.startswith(prefix) and not name.startswith(_HEADS) and not name.endswith("position_ids")
    }
    supervised = bool(re.search(r"(?<!un)sup", folder.name.lower()))
    template = _TEMPLATES["roberta" if "roberta" in str(config.get("model_type")) else "bert"]
    numbers: dict[str, Tensor] = {}
    if _PREFIX in stored:
        kind, (recipe, numbers) = "PromCSE checkpoint", _prefix(folder, config, stored[_PREFIX])
    elif re.search(r"prompt-?_?(ro)?bert", folder.name.lower()):
        kind, recipe = "PromptBERT checkpoint", Recipe(backbone="", prompt=template, pooling="last/mask")
    else:
        kind, recipe = "SimCSE checkpoint", Recipe(backbone="", pooling="last/cls")
    notes = [f"taken for {'a supervised' if supervised else 'an unsupervised'} one, by its name"]
    if not supervised:
        return Found(kind, recipe, numbers, body, config, tuple(notes))
    if head := _head(stored):
        transform, tensors = head
        recipe = recipe.replace(
            transforms=(transform,), denoise=_DENOISE[transform] if MASK in recipe.prompt else "none"
        )
        numbers = {**numbers, **tensors}
        if transform == "projection:mlm":
            body = {**body, **_as_lm_head(stored, body)}
    elif any("pooler." in name for name in body):
        recipe = recipe.replace(transforms=("cls-pooler",))
    else:
        notes.append("it holds no head: vectors are taken before it")
    return Found(kind, recipe, numbers, body, config, tuple(notes))


def _prefix(folder: Folder, config: dict[str, Any], stored: Tensor) -> tuple[Recipe, dict[str, Tensor]]:
    sizes = [config.get(name) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")]
    layers, heads, width = (size if isinstance(size, int) and size > 0 else 0 for size in sizes)
    if not heads or stored.size(1) != 2 * layers * width:
        raise UsageError(
            f"{folder.name} has a prefix of {stored.size(1)} numbers a position; its config.json says"
            f" {2 * layers * width}"
        )
    length = len(stored)
    shape = (layers, 2, heads, length, width // heads)
    recipe = Recipe(backbone="", prompt=f"deep-prefix:{length}", pooling="last/cls")
    return recipe, {TENSOR: from_prompt_embeddings(stored.float(), shape)}


def _head(stored: dict[str, Tensor]) -> tuple[str, dict[str, Tensor]] | None:
    """Return the head ``mlp`` as a transform and its numbers."""
    if "mlp.dense.weight" not in stored:
        return None
    dense = {"weight": stored["mlp.dense.weight"].float(), "bias": stored["mlp.dense.bias"].float()}
    if "mlp.LayerNorm.weight" not in stored:
        return "projection:tanh", {f"projection.0.{name}": tensor for name, tensor in dense.items()}
    norm = {name: stored[f"mlp.LayerNorm.{name}"].float() for name in ("weight", "bias")}
    return "projection:mlm", {
        **{f"projection.0.dense.{name}": tensor for name, tensor in dense.items()},
        **{f"projection.0.LayerNorm.{name}": tensor for name, tensor in norm.items()},
    }


def _as_lm_head(stored: dict[str, Tensor], body: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return BERT's masked-LM head with that transform: a backbone that has one is what a head starts from."""
    rows = next(tensor for name, tensor in body.items() if name.endswith("word_embeddings.weight"))
    named = {"dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias"}
    transform = {f"cls.predictions.transform.{name}": stored[f"mlp.{name}"] for name in sorted(named)}
    bias = stored.get("lm_head.bias", rows.new_zeros(len(rows)))
    return {**transform, "cls.predictions.bias": bias, "cls.predictions.decoder.bias": bias.clone()}
