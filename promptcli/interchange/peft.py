"""``--to peft``: a deep prefix as peft's prefix tuning, a LoRA as its LoRA, bit by bit.

Knows nothing of peft's code, only of its files.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptcli.backbones.lora import ALPHA, is_lora, is_transposed
from promptcli.encoder.encoder import Encoder, tuned_weights
from promptcli.encoder.prompts.deep_prefix import DeepPrefix
from promptcli.encoder.prompts.soft_template import SoftTemplate
from promptcli.errors import UsageError
from promptcli.interchange.card import is_hub_id, model_card
from promptcli.interchange.exactness import InexactError
from promptcli.interchange.target import Source, Written
from promptcli.storage.documents import to_json
from promptcli.storage.tensors import save_tensors

CONFIG, WEIGHTS, PROMPT = "adapter_config.json", "adapter_model.safetensors", "prompt_embeddings"


def export_peft(source: Source, folder: Path) -> Written:
    """Fill a folder that ``PeftModel.from_pretrained(base, folder)`` loads.

    Raises:
        InexactError: The prompt is no deep prefix, and the backbone has no LoRA.
        UsageError: The base is no model of the hub, and none was named.
    """
    encoder, entry = source.encoder, source.entry
    lora = tuned_weights(encoder.tensors())
    kind, tensors = _lora(encoder, lora) if is_lora(lora) else _prefix(encoder)
    base, revision = _base(source)
    about = {
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": base,
        "revision": revision,
        "inference_mode": True,
        **kind,
    }
    (folder / CONFIG).write_text(to_json(about), encoding="utf-8")
    save_tensors(tensors, folder / WEIGHTS)
    use = "model = PeftModel.from_pretrained(AutoModel.from_pretrained(base), folder)"
    card = model_card(
        entry.name, encoder.recipe.replace(backbone=base), use=use, library="peft", provenance=entry.provenance,
        scores=entry.scores, tags=[f"base_model:adapter:{base}"], relation="adapter",
    )  # fmt: skip
    (folder / "README.md").write_text(card, encoding="utf-8")
    before = [encoder.prompt.spec] if is_lora(lora) else []
    rest = [*before, encoder.pooling.spec, *(transform.spec for transform in encoder.transforms)]
    return Written(
        f'PeftModel.from_pretrained(AutoModel.from_pretrained("{base}"), "FOLDER")',
        notes=(f"peft holds the adapter; what is around the layers is yours to do: {' then '.join(rest)}",),
    )


def _prefix(encoder: Encoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the tensor of a deep prefix.

    Raises:
        InexactError: The prompt is none.
    """
    prompt, backbone = encoder.prompt, encoder.backbone
    if isinstance(prompt, SoftTemplate):
        raise InexactError(
            "a soft template is no peft adapter: peft sets learned vectors before [CLS], and these stand inside the"
            " template; --to sentence-transformers holds them exactly"
        )
    if not isinstance(prompt, DeepPrefix):
        raise InexactError(
            f"prompt {encoder.recipe.prompt!r} has no learned keys and values, which are what prefix tuning is, and the"
            " backbone no LoRA; --to sentence-transformers and --to onnx hold it, --to merged a tuned backbone"
        )
    about = {
        "peft_type": "PREFIX_TUNING",
        "num_virtual_tokens": prompt.length,
        "token_dim": backbone.width,
        "num_transformer_submodules": 1,
        "num_attention_heads": backbone.n_heads,
        "num_layers": backbone.n_layers,
        "encoder_hidden_size": backbone.width,
        "prefix_projection": False,
    }
    stored = to_prompt_embeddings(prompt.numbers.cpu())
    assert torch.equal(from_prompt_embeddings(stored, prompt.numbers.shape), prompt.numbers.cpu())
    return about, {PROMPT: stored}


def _lora(encoder: Encoder, tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the tensors of a LoRA, under the names that peft stores."""
    alpha = float(tensors[ALPHA])
    stored = {
        f"base_model.model.{name.replace('.default.weight', '.weight')}": tensor
        for name, tensor in tensors.items()
        if name != ALPHA
    }
    modules = sorted({name.partition(".lora_")[0] for name in tensors if name != ALPHA})
    ranks = {tensor.size(0) for name, tensor in tensors.items() if ".lora_A." in name}
    about = {
        "peft_type": "LORA",
        "r": ranks.pop(),
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "target_modules": modules,
        "fan_in_fan_out": is_transposed(encoder.backbone.model, modules),
        "bias": "none",
        "lora_dropout": 0.0,
    }
    return about, stored


def to_prompt_embeddings(numbers: Tensor) -> Tensor:
    """Return (p, 2 L d) as peft stores it from keys and values (L, 2, h, p, d/h)."""
    return numbers.permute(3, 0, 1, 2, 4).reshape(numbers.size(3), -1).contiguous()


def from_prompt_embeddings(stored: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
    """Return keys and values of the given shape (L, 2, h, p, d/h) from peft's (p, 2 L d)."""
    layers, two, heads, length, width = shape
    return stored.view(length, layers, two, heads, width).permute(1, 2, 3, 0, 4).contiguous()


def _base(source: Source) -> tuple[str, str | None]:
    """Return the hub id and the revision of the base, never a path of this machine."""
    backbone = source.encoder.backbone
    named = source.choices.base or backbone.name
    if source.choices.base is None and not is_hub_id(named):
        raise UsageError(
            f"the base {backbone.name!r} is no model of the hub, so nobody else could load the adapter; name the one it"
            " is: --base OWNER/NAME, with @REVISION where it matters"
        )
    name, _, revision = named.partition("@")
    return name, revision or (None if source.choices.base else backbone.provenance.revision)
