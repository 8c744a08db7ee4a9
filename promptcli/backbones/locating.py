"""From the name of a language model to its folder and the files in it: shipped, a local folder, or
the hub.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from promptcli.backbones import checking
from promptcli.backbones.adapter_files import ADAPTER_CONFIG
from promptcli.backbones.file_formats import MODEL_FILES, folder_of_file
from promptcli.errors import NotFoundError, UsageError, did_you_mean
from promptcli.notes import is_offline, keyword, note, warn
from promptcli.storage.files import sha256

_SHIPPED_FOLDER = Path(__file__).parents[1] / "shipped"
#: Language models inside the package, by name, and tables of words.
SHIPPED: dict[str, Path] = {"mini-bert": _SHIPPED_FOLDER / "mini-bert"}
SHIPPED_TABLES: dict[str, Path] = {"mini-multi": _SHIPPED_FOLDER / "mini-multi"}

_MISTYPED = 0.75  # a word so like a shipped name is taken for it, mistyped, before the hub is asked
BACKBONE_MARKS = (
    "config.json",
    ADAPTER_CONFIG,
)  # one of them is in every folder of a language model
_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
_NUMBERS = "tensors.safetensors"  # an encoder's own, beside its backbone
_SHARDS = "model.safetensors.index.json"  # weights in several files: which tensor is in which
#: Files of weights that are not read, beside ``*.bin``, which can be converted -> what they are.
_OTHER_WEIGHTS = {
    **dict.fromkeys(("*.pt", "*.pth", "*.ckpt", "*.pkl"), "a pickle, which can run code"),
    "*.h5": "of TensorFlow",
    "*.msgpack": "of Flax",
    "*.ot": "of Rust",
    "*.onnx": "a graph",
}


def locate(
    name: str, *, files: Sequence[str] = _FILES, one_of: Sequence[str] = BACKBONE_MARKS
) -> tuple[Path, str | None]:
    """Return the folder of a backbone and its hub revision (None unless it is a hub model).

    It holds one of the files ``one_of``; ``files`` are patterns of files to fetch. For names see
    ``load_backbone``; a revision may contain slashes.
    """
    if folder := SHIPPED.get(name) or SHIPPED_TABLES.get(name):
        return folder, None
    if Path(name).is_dir():
        if not any((Path(name) / file).is_file() for file in one_of):
            raise NotFoundError(f"folder {name!r} has no {one_of[0]}: not a model folder")
        checking.check_regular_files(f"folder {name!r}", Path(name), files)
        if name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith("/"):
            note(
                f"{name} is a folder here, and folders go first; the hub's model of that name:"
                f" {name}@main"
            )
        return Path(name), None
    folder = folder_of_file(name)
    if folder is not None:
        return folder, None
    repository, _, wanted = name.partition("@")
    if name.startswith((".", "/", "~")) or repository.count("/") > 1:
        raise NotFoundError(
            f"no backbone folder {name!r}; shipped: {', '.join(SHIPPED)}; else give a folder or"
            " hub id"
        )
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return _snapshot(repository, wanted or None, files, one_of, local=True)
    except (LocalEntryNotFoundError, FileNotFoundError):
        _check_worth_asking(name)
    except HFValidationError:
        known = f"shipped: {', '.join(SHIPPED)}; else give a folder or a hub id"
        raise NotFoundError(f"no backbone {name!r}; {known}") from None
    warn(f"downloading backbone {repository} from the Hugging Face hub")
    try:
        return _snapshot(repository, wanted or None, files, one_of, local=False)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        why = checking.reason(error)
        if isinstance(error, LocalEntryNotFoundError):
            why = "it cannot be reached"
        raise NotFoundError(f"backbone {name!r} could not be fetched from the hub: {why}") from None


def _check_worth_asking(name: str) -> None:
    """Refuse to ask the hub if that is forbidden, or if a file, a folder or a known model is more
    likely meant.
    """
    if os.path.exists(name):
        raise NotFoundError(
            f"{name!r} is a file; give a folder, a hub id, or what is shipped: {', '.join(SHIPPED)}"
        )
    if cached := cached_id(name):
        raise NotFoundError(f"no backbone {name!r}; did you mean {cached}? {hub_remedy(name)}")
    if mistyped := did_you_mean(name, SHIPPED, likeness=_MISTYPED):
        raise NotFoundError(f"no backbone {name!r}{mistyped} {hub_remedy(name)}")
    parent = Path(name).parent
    if "/" in name and "@" not in name and parent.is_dir():
        near = did_you_mean(name, [str(path) for path in parent.iterdir() if path.is_dir()])
        raise NotFoundError(
            f"folder {str(parent)!r} has no {Path(name).name!r}{near or ';'} {hub_remedy(name)}"
        )
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if is_offline() or HF_HUB_OFFLINE:
        by = keyword("offline") if is_offline() else "HF_HUB_OFFLINE"
        raise NotFoundError(
            f"backbone {name!r} is not in the local cache and {by} forbids the network"
        )


def hub_remedy(name: str) -> str:
    """Return what a message says for the case that the hub's model is meant."""
    return f"for a hub repository of that name write {name}@main"


def cached_id(name: str) -> str | None:
    """Return the hub id of a model in the hub's cache that is called ``name`` but for its owner.

    None without one.

    In the cache, OWNER/NAME is the folder ``models--OWNER--NAME``.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*--*")):
        _, owner, model = folder.name.split("--", 2)
        if model.lower() == name.lower():
            return f"{owner}/{model}"
    return None


def _snapshot(
    repository: str,
    revision: str | None,
    files: Sequence[str],
    one_of: Sequence[str],
    *,
    local: bool,
) -> tuple[Path, str]:
    from huggingface_hub import snapshot_download

    folder = Path(
        snapshot_download(
            repository, revision=revision, allow_patterns=[*files], local_files_only=local
        )
    )
    if not any((folder / file).is_file() for file in one_of):
        raise FileNotFoundError(f"{repository} has no {one_of[0]}")
    return folder, folder.name


def weights_digest(folder: Path) -> str:
    """Return the hash of a folder's configuration and weights."""
    digest = hashlib.sha256()
    for path in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]:
        if path.name != _NUMBERS:
            digest.update(sha256(path).encode())
    return digest.hexdigest()


def known_digest(folder: Path, digest: str) -> str:
    """Return the hash by which a folder's weights are known: that of the form they were loaded
    from, if the folder says so, else their own.
    """
    record = checking.json_field(folder / "promptcli.json", "backbone")
    if isinstance(record, dict) and record.get("written") == digest:
        return str(record["weights"])
    return digest


def weight_files(what: str, folder: Path) -> list[Path]:
    """Return the safetensors files, in order; pickles are refused with the reason."""
    shards = checking.json_field(folder / _SHARDS, "weight_map")
    if isinstance(shards, dict):
        for name in set(map(str, shards.values())):
            checking.path_inside(what, folder, name, _SHARDS)
    files = sorted(path for path in folder.glob("*.safetensors") if path.name != _NUMBERS)
    if files:
        return files
    for path in sorted(folder.glob("*.bin")):
        convert = "`promptcli models import FOLDER --name NAME --convert`"
        raise UsageError(
            f"{what} has its weights in {path.name} only; a pickle can run code: convert it,"
            f" {convert}"
        )
    for path in sorted(folder.iterdir()):
        if path.suffix in MODEL_FILES:
            raise UsageError(
                f"{what} has its weights in {path.name} only; give that file:"
                f" {keyword('backbone')} {path}"
            )
    for pattern, kind in _OTHER_WEIGHTS.items():
        for path in sorted(folder.glob(pattern)):
            raise UsageError(
                f"{what} has its weights in {path.name} only, {kind}; take a checkpoint in"
                " safetensors"
            )
    raise UsageError(f"{what} has no *.safetensors weights")
