"""The configuration of a peft adapter: its kind, and the backbone that it belongs to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.backbones.model_folder import ADAPTER_CONFIG, CONFIG, ModelFolder
from promptcli.errors import UsageError, shorten
from promptcli.storage.files import inside

PREFIX_TUNING = "PREFIX_TUNING"  #: peft's name for learned keys and values in every layer
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_IN_THE_INPUT = ("PROMPT_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "CPT", "ADAPTION_PROMPT")


@dataclass(frozen=True)
class AdapterConfig:
    """The fields of ``adapter_config.json`` that are read, under peft's names."""

    peft_type: str | None = None
    task_type: str | None = None
    base_model_name_or_path: str | None = None
    revision: str | None = None  #: of the base
    # of a LoRA
    lora_alpha: float | None = None
    bias: Any = None
    use_dora: Any = None
    use_rslora: Any = None
    modules_to_save: Any = None
    rank_pattern: Any = None
    alpha_pattern: Any = None
    # of a prefix
    num_layers: int | None = None
    num_attention_heads: int | None = None
    token_dim: int | None = None


def read_adapter_config(folder: ModelFolder) -> AdapterConfig:
    """Return the configuration of a folder's adapter."""
    config: AdapterConfig = folder.document(ADAPTER_CONFIG, AdapterConfig)
    return config


def check_kind(folder: ModelFolder, config: AdapterConfig) -> None:
    """Refuse an adapter of learned input vectors: it changes no weights and cannot be merged."""
    kind = config.peft_type
    if kind == PREFIX_TUNING:
        raise folder.error("is prefix tuning of peft, an encoder: give it as model")
    if kind in _IN_THE_INPUT:
        raise folder.error(
            f"is a {kind} adapter of peft, which is not supported; supported: LORA, {PREFIX_TUNING}"
        )


def base_of(folder: ModelFolder) -> str | None:
    """Return the backbone of a folder's adapter, None if it has no adapter."""
    if not folder.has(ADAPTER_CONFIG) or folder.has(CONFIG):
        return None
    return base_name(folder, read_adapter_config(folder))


def base_name(folder: ModelFolder, config: AdapterConfig) -> str:
    """Return the backbone that an adapter's configuration names: a folder inside its own, else a
    name on the hub.

    Any other local folder is refused: the adapter's author could otherwise have its weights
    exported.
    """
    base = config.base_model_name_or_path
    if not base:
        raise UsageError(
            f"{ADAPTER_CONFIG} of {folder} names no base model; write its base_model_name_or_path"
        )
    path = inside(folder.path, base)
    if path is not None and path.is_dir() and path.resolve() != folder.path.resolve():
        return str(path)
    is_outside = Path(base).is_absolute() or ".." in Path(base).parts
    if is_outside or Path(base).is_dir() or (folder.path / base).is_dir():
        remedy = "move it into the adapter's folder, or write its hub id, OWNER/NAME@REVISION"
        raise UsageError(
            f"{ADAPTER_CONFIG} of {folder} names the base {shorten(base)}, a folder outside the"
            f" adapter's; {remedy}"
        )
    return base
