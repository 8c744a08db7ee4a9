"""From the name of a language model to its folder and files: shipped, local, or on the hub."""

import functools
import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from promptcli.backbones import checking
from promptcli.backbones.adapter_files import ADAPTER_CONFIG
from promptcli.backbones.names import MODEL_FILES, SHIPPED_FOLDER
from promptcli.backbones.provenance import OWN_TOKENIZER
from promptcli.errors import NotFoundError, UsageError, did_you_mean
from promptcli.notes import is_offline, note, warn
from promptcli.storage.files import sha256

#: Language models inside the package, by name, and tables of words.
SHIPPED: dict[str, Path] = {"mini-bert": SHIPPED_FOLDER / "mini-bert"}
SHIPPED_TABLES: dict[str, Path] = {"mini-multi": SHIPPED_FOLDER / "mini-multi"}

_WAYS = f"give a folder, a hub id, or what is shipped: {', '.join(SHIPPED)}"
_MISTYPED = 0.75  # a name this similar to a shipped one counts as mistyped; the hub is not asked
#: Every model folder has one of these files: promptcli's, sentence-transformers', an adapter's, a
#: language model's, or a table of words.
_MARKS = ("promptcli.json", "modules.json", ADAPTER_CONFIG, "config.json", "tokenizer.json")
#: Patterns of the files read from a folder.
FOLDER_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
_NUMBERS = "tensors.safetensors"  # an encoder's own, beside its backbone
_SHARDS = "model.safetensors.index.json"  # weights in several files: which tensor is in which
#: Extension of weights that are not read -> reason and remedy.
_OTHER_WEIGHTS = {
    ".bin": "is a pickle and can run code: convert it, `promptcli models import FOLDER --name NAME"
    " --convert`",
    **dict.fromkeys(
        (".pt", ".pth", ".ckpt", ".pkl"),
        "is a pickle and can run code; take a checkpoint in safetensors",
    ),
    **dict.fromkeys(
        (".h5", ".msgpack", ".ot", ".onnx"),
        "is of another program; take a checkpoint in safetensors",
    ),
}


def locate(name: str, *, files: Sequence[str] = FOLDER_FILES) -> tuple[Path, str | None]:
    """Return the folder of a model and its hub revision (None unless it is a hub model).

    ``files`` are patterns of files to fetch. For names see ``load_backbone``; a revision may
    contain slashes.
    """
    known = SHIPPED | SHIPPED_TABLES
    if name in known:
        return known[name], None
    here = Path(name)
    is_path = name.startswith((".", "/", "~"))
    if here.is_dir():
        _check_marks(f"folder {name!r}", here)
        for path in itertools.chain(*map(here.glob, files)):
            if path.exists() and not (path.is_file() or path.is_dir()):  # it may never end
                raise UsageError(
                    f"{path.name} of folder {name!r} is a pipe or a device; put a file there"
                )
        if name.count("/") == 1 and not is_path and not name.endswith("/"):
            note(
                f"{name} is a folder here, and folders go first; the hub's model of that name:"
                f" {name}@main"
            )
        return here, None
    if here.suffix in MODEL_FILES:
        return MODEL_FILES[here.suffix](name), None
    repository, _, wanted = name.partition("@")
    if is_path or repository.count("/") > 1:
        raise NotFoundError(f"no backbone folder {name!r}; {_WAYS}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    def snapshot(*, local: bool) -> tuple[Path, str]:
        folder = snapshot_download(
            repository, revision=wanted or None, allow_patterns=[*files], local_files_only=local
        )
        _check_marks(repository, Path(folder))
        return Path(folder), Path(folder).name

    try:
        return snapshot(local=True)
    except (LocalEntryNotFoundError, FileNotFoundError):
        _check_worth_asking(name)
    except HFValidationError:
        raise NotFoundError(f"no backbone {name!r}; {_WAYS}") from None
    warn(f"downloading backbone {repository} from the Hugging Face hub")
    try:
        return snapshot(local=False)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        why = checking.reason(error)
        if isinstance(error, LocalEntryNotFoundError):
            why = "it cannot be reached"
        raise NotFoundError(f"backbone {name!r} could not be fetched from the hub: {why}") from None


def _check_marks(what: str, folder: Path) -> None:
    if not any((folder / file).is_file() for file in _MARKS):
        raise NotFoundError(f"{what} has no config.json: not a model folder")


def _check_worth_asking(name: str) -> None:
    """Refuse to ask the hub if the network is forbidden, or if the name more likely means a file, a
    folder or a known model.
    """
    if os.path.exists(name):
        raise NotFoundError(f"{name!r} is a file; {_WAYS}")
    meant = similar_name(name, SHIPPED)
    parent = Path(name).parent
    if not meant and "/" in name and "@" not in name and parent.is_dir():
        folders = [str(path) for path in parent.iterdir() if path.is_dir()]
        meant = did_you_mean(name, folders) or f"; folder {str(parent)!r} has none of that name;"
    if meant:
        raise NotFoundError(f"no backbone {name!r}{meant} {hub_remedy(name)}")
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if is_offline() or HF_HUB_OFFLINE:
        by = "offline" if is_offline() else "HF_HUB_OFFLINE"
        raise NotFoundError(
            f"backbone {name!r} is not in the local cache and {by} forbids the network"
        )


def hub_remedy(name: str) -> str:
    """Return the part of a message that says how to name a hub repository."""
    return f"for a hub repository of that name write {name}@main"


def similar_name(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests a similar name: a model in the hub's cache that
    only lacks the owner, else a known name; "" if there is none.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    # OWNER/NAME is the folder models--OWNER--NAME
    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*--*")):
        _, owner, model = folder.name.split("--", 2)
        if model.lower() == name.lower():
            return f"; did you mean {owner}/{model}?"
    return did_you_mean(name, known, likeness=_MISTYPED)


def weights_digest(folder: Path) -> str:
    """Return the hash of a folder's configuration and weights. If they were written in another form
    than loaded, return the original hash recorded in the folder.
    """
    digest = hashlib.sha256()
    for path in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]:
        if path.name != _NUMBERS:
            digest.update(sha256(path).encode())
    record = checking.json_field(folder / "promptcli.json", "backbone")
    if isinstance(record, dict) and record.get("written") == digest.hexdigest():
        return str(record["weights"])
    return digest.hexdigest()


#: The digest of a shipped folder, whose files do not change.
shipped_digest = functools.cache(weights_digest)


def own_tokenizer(folder: Path) -> Path:
    """Return the folder of a backbone's tokenizer files."""
    own = folder / OWN_TOKENIZER
    return own if own.is_dir() else folder


def weight_files(what: str, folder: Path) -> list[Path]:
    """Return the safetensors files, in order; pickles are refused with the reason."""
    shards = checking.json_field(folder / _SHARDS, "weight_map")
    for name in set(map(str, shards.values())) if isinstance(shards, dict) else ():
        checking.path_inside(what, folder, name, _SHARDS)
    files = sorted(path for path in folder.glob("*.safetensors") if path.name != _NUMBERS)
    remedies = dict.fromkeys(MODEL_FILES, "is a backbone itself: give that file") | _OTHER_WEIGHTS
    for path in () if files else sorted(folder.iterdir()):
        if path.suffix in remedies:
            raise UsageError(
                f"{what} has its weights in {path.name} only, which {remedies[path.suffix]}"
            )
    if not files:
        raise UsageError(f"{what} has no *.safetensors weights")
    return files
