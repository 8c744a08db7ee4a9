"""The configuration of a peft adapter: its kind, and the backbone that it belongs to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.errors import UsageError, shorten
from promptcli.storage.files import inside
from promptcli.storage.typed_documents import read_document

PREFIX_TUNING = "PREFIX_TUNING"  #: peft's name for learned keys and values in every layer
_IN_THE_INPUT = ("PROMPT_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "CPT", "ADAPTION_PROMPT")
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
HINT = "save it again (peft: save_pretrained)"


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


def read_adapter_config(path: Path) -> AdapterConfig:
    """Read the configuration of an adapter."""
    return read_document(path, AdapterConfig, hint=HINT, error=UsageError)


def check_kind(what: str, config: AdapterConfig) -> None:
    """Refuse an adapter of learned input vectors: it changes no weights and cannot be merged."""
    kind = config.peft_type
    if kind == PREFIX_TUNING:
        raise UsageError(f"{what} is prefix tuning of peft, an encoder: give it as model")
    if kind in _IN_THE_INPUT:
        raise UsageError(
            f"{what} is a {kind} adapter of peft, which is not supported; supported: LORA,"
            f" {PREFIX_TUNING}"
        )


def base_of(what: str, folder: Path) -> str | None:
    """Return the backbone of a folder's adapter, None if it has no adapter."""
    if not (folder / ADAPTER_CONFIG).is_file() or (folder / "config.json").is_file():
        return None
    return base_name(what, folder, read_adapter_config(folder / ADAPTER_CONFIG))


def base_name(what: str, folder: Path, config: AdapterConfig) -> str:
    """Return the backbone that an adapter's configuration names: a folder inside its own, else a
    name on the hub.

    Any other local folder is refused: the adapter's author could otherwise have its weights
    exported.
    """
    base = config.base_model_name_or_path
    if not base:
        raise UsageError(
            f"{ADAPTER_CONFIG} of {what} names no base model; write its base_model_name_or_path"
        )
    path = inside(folder, base)
    if path is not None and path.is_dir() and path.resolve() != folder.resolve():
        return str(path)
    if (
        Path(base).is_absolute()
        or ".." in Path(base).parts
        or Path(base).is_dir()
        or (folder / base).is_dir()
    ):
        remedy = "move it into the adapter's folder, or write its hub id, OWNER/NAME@REVISION"
        raise UsageError(
            f"{ADAPTER_CONFIG} of {what} names the base {shorten(base)}, a folder outside the"
            f" adapter's; {remedy}"
        )
    return base
