"""``--to peft``: a deep prefix as peft's prefix tuning, bit by bit. Knows nothing of peft's code, only of its files."""

from pathlib import Path

import torch
from torch import Tensor

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
        InexactError: The prompt is no deep prefix.
        UsageError: The base is no model of the hub, and none was named.
    """
    encoder, entry = source.encoder, source.entry
    prompt, backbone = encoder.prompt, encoder.backbone
    if isinstance(prompt, SoftTemplate):
        raise InexactError(
            "a soft template is no peft adapter: peft sets learned vectors before [CLS], and these stand inside the"
            " template; --to sentence-transformers holds them exactly"
        )
    if not isinstance(prompt, DeepPrefix):
        raise InexactError(
            f"prompt {encoder.recipe.prompt!r} has no learned keys and values, which are what prefix tuning is; --to"
            " sentence-transformers and --to onnx hold it, --to merged a tuned backbone"
        )
    base, revision = _base(source)
    about = {
        "peft_type": "PREFIX_TUNING",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": base,
        "revision": revision,
        "num_virtual_tokens": prompt.length,
        "token_dim": backbone.width,
        "num_transformer_submodules": 1,
        "num_attention_heads": backbone.n_heads,
        "num_layers": backbone.n_layers,
        "encoder_hidden_size": backbone.width,
        "prefix_projection": False,
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(to_json(about), encoding="utf-8")
    save_tensors({PROMPT: to_prompt_embeddings(prompt.numbers.cpu())}, folder / WEIGHTS)
    use = "model = PeftModel.from_pretrained(AutoModel.from_pretrained(base), folder)"
    card = model_card(
        entry.name, encoder.recipe.replace(backbone=base), use=use, library="peft", provenance=entry.provenance,
        scores=entry.scores, tags=[f"base_model:adapter:{base}"], relation="adapter",
    )  # fmt: skip
    (folder / "README.md").write_text(card, encoding="utf-8")
    rest = [encoder.pooling.spec, *(transform.spec for transform in encoder.transforms)]
    again = from_prompt_embeddings(to_prompt_embeddings(prompt.numbers.cpu()), prompt.numbers.shape)
    assert torch.equal(again, prompt.numbers.cpu())
    return Written(
        f'PeftModel.from_pretrained(AutoModel.from_pretrained("{base}"), "FOLDER")',
        notes=(f"peft holds the prefix; what comes after the layers is yours to do: {' then '.join(rest)}",),
    )


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
