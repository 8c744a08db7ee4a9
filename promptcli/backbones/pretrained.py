"""Pre-trained language models from disk or hub: shipped, local folder, or hub id; safetensors only, no remote code.

Knows nothing of recipes. Every model is loaded from a folder, so transformers itself never uses the network.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

from promptcli.backbones.backbone import Backbone, Provenance
from promptcli.backbones.families import FAMILIES
from promptcli.backbones.seam import NAME
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.errors import NotFoundError, UsageError, unknown
from promptcli.storage.files import sha256

#: Backbones inside the package, by name.
SHIPPED: dict[str, Path] = {"mini": Path(__file__).parents[1] / "shipped" / "mini"}

_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.pkl")


def load_pretrained(
    name: str,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    offline: bool = False,
    announce: Callable[[str], None] = lambda message: None,
) -> Backbone:
    """Load a pre-trained language model in eval mode; see ``load_backbone``."""
    folder, revision = locate(name, offline, announce)
    family = _family(name, folder)
    weights = weight_files(name, folder)
    names = tensor_names(name, weights)
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model, missing = _load_body(folder, family, names)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise UsageError(f"backbone {name!r} cannot be loaded: {first_line(error)}") from None
    if missing:
        raise UsageError(
            f"backbone {name!r} lacks {len(missing)} of its tensors (e.g. {missing[0]}): not a whole {family}"
            " checkpoint"
        )
    pieces = PieceTokenizer(tokenizer, family)
    digest = hashlib.sha256()
    for path in [folder / "config.json", *weights]:
        digest.update(sha256(path).encode())
    provenance = Provenance(name, family, revision, digest.hexdigest(), pieces.sha256)
    return Backbone(
        model=model.to(device=device, dtype=dtype or torch.float32).eval(),
        tokenizer=pieces,
        provenance=provenance,
        folder=folder,
        tensor_names=names,
    )


def locate(name: str, offline: bool, announce: Callable[[str], None]) -> tuple[Path, str | None]:
    """Return the folder of a backbone and its hub revision (None where it is no hub model)."""
    if name in SHIPPED:
        return SHIPPED[name], None
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise NotFoundError(f"folder {name!r} has no config.json: not a model folder")
        return Path(name), None
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise NotFoundError(
            f"no backbone folder {name!r}; shipped: {', '.join(SHIPPED)}; else give a folder or a hub id"
        )
    repository, _, wanted = name.partition("@")
    try:
        return _snapshot(repository, wanted or None, local=True)
    except (LocalEntryNotFoundError, FileNotFoundError):
        if offline:
            raise NotFoundError(
                f"backbone {name!r} is not in the local cache and --offline forbids the network;"
                f" shipped: {', '.join(SHIPPED)}"
            ) from None
    except HFValidationError:
        raise NotFoundError(
            f"no backbone {name!r}; shipped: {', '.join(SHIPPED)}; else give a folder or a hub id"
        ) from None
    announce(f"downloading backbone {repository} from the Hugging Face hub")
    try:
        return _snapshot(repository, wanted or None, local=False)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise NotFoundError(
            f"backbone {name!r} could not be fetched from the hub: {first_line(error)}; shipped: {', '.join(SHIPPED)}"
        ) from None


def _snapshot(repository: str, revision: str | None, *, local: bool) -> tuple[Path, str]:
    folder = Path(snapshot_download(repository, revision=revision, allow_patterns=_FILES, local_files_only=local))
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{repository} has no config.json")
    return folder, folder.name


def _family(name: str, folder: Path) -> str:
    """Return the model_type, refusing what is not in the table before any weights are read."""
    try:
        family = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"config.json of backbone {name!r} is no JSON object with a model_type") from None
    if family not in FAMILIES:
        raise unknown(f"family of backbone {name!r}", family, FAMILIES)
    return str(family)


def weight_files(name: str, folder: Path) -> list[Path]:
    """Return the safetensors files, in order; pickles are refused with the reason."""
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return files
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise UsageError(
            f"backbone {name!r} has its weights in {pickles[0]} only; a pickle can run code, so promptcli reads"
            " safetensors only: convert it first (e.g. save_pretrained of a current transformers)"
        )
    raise UsageError(f"backbone {name!r} has no *.safetensors weights")


def tensor_names(name: str, weights: list[Path]) -> frozenset[str]:
    """Return the names of all tensors in the files; broken files are refused by name."""
    names: set[str] = set()
    for path in weights:
        try:
            with safe_open(path, framework="pt") as file:
                names.update(file.keys())
        except (SafetensorError, OSError) as error:
            raise UsageError(f"weights {path.name} of backbone {name!r} are broken: {first_line(error)}") from None
    return frozenset(names)


def _load_body(folder: Path, family: str, names: frozenset[str]) -> tuple[Any, list[str]]:
    """Return the encoder without heads, and the names of tensors that the files lack.

    A pooler without weights would be filled with random numbers, so it is left out.
    """
    options: dict[str, Any] = {"dtype": torch.float32, "use_safetensors": True, "trust_remote_code": False}
    if FAMILIES[family].seam:
        options["attn_implementation"] = NAME
    if FAMILIES[family].pooler:
        options["add_pooling_layer"] = any(name.endswith(("pooler.dense.weight", "pooler.weight")) for name in names)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    model, info = AutoModel.from_pretrained(folder, config=config, output_loading_info=True, **options)
    return model, sorted(info["missing_keys"])


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
