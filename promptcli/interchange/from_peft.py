"""Adapters of peft: prefix tuning as a deep prefix, LoRA as a backbone. Knows peft's files and nothing of its code."""

from safetensors.torch import load_file

from promptcli.encoder.prompts.deep_prefix import TENSOR
from promptcli.errors import UsageError
from promptcli.interchange.found import Folder, Found
from promptcli.interchange.peft import CONFIG, PROMPT, from_prompt_embeddings
from promptcli.recipe import RECIPES, Recipe

_UNSAID = "the adapter does not say how sentences are read: {}, unless --prompt and --pooling say otherwise"
_OTHERS = {
    "PROMPT_TUNING": "its learned vectors stand before [CLS], where no prompt of promptcli does",
    "P_TUNING": "its learned vectors stand before [CLS], where no prompt of promptcli does",
}


def read_peft(folder: Folder) -> Found | None:
    """Read a folder with ``adapter_config.json``.

    Raises:
        UsageError: Another kind of adapter than prefix tuning and LoRA, or damaged files.
    """
    if not folder.has(CONFIG):
        return None
    config = folder.document(CONFIG)
    kind = config.get("peft_type")
    if kind == "LORA":
        causal = config.get("task_type") == "CAUSAL_LM"
        recipe = (RECIPES["prompteol"] if causal else Recipe(pooling="last/cls")).replace(backbone=folder.name)
        return Found("peft LoRA adapter", recipe, notes=(_UNSAID.format(recipe.pooling),))
    if kind != "PREFIX_TUNING":
        why = _OTHERS.get(str(kind), "only prefix tuning and LoRA are read")
        raise UsageError(f"{folder.name} is a peft adapter of type {kind}: {why}")
    stored = load_file(folder.weights("adapter_model", "adapter_model.bin")).get(PROMPT)
    numbers = [config.get(name) for name in ("num_layers", "num_attention_heads", "token_dim", "num_virtual_tokens")]
    layers, heads, width, length = (number if isinstance(number, int) and number > 0 else 0 for number in numbers)
    if stored is None or 0 in (layers, heads, width, length) or tuple(stored.shape) != (length, 2 * layers * width):
        raise UsageError(f"{folder.name}: {PROMPT} is not there, or not of the shape that {CONFIG} says")
    revision = config.get("revision")
    base = f"{config.get('base_model_name_or_path') or ''}{f'@{revision}' if revision else ''}"
    return Found(
        "peft prefix tuning",
        Recipe(backbone=base, prompt=f"deep-prefix:{length}", pooling="last/cls"),
        {TENSOR: from_prompt_embeddings(stored.float(), (layers, 2, heads, length, width // heads))},
        notes=(_UNSAID.format("last/cls"),),
        named_base=True,
    )
