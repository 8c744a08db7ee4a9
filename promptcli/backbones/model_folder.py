"""The folder of a model, found by the model's name, and the checked reading of its files.

Anybody may have written the files, so every error in them becomes one line.
"""

import functools
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.backbones.families import FAMILIES
from promptcli.errors import NotFoundError, UsageError, did_you_mean, join_lines, short_repr
from promptcli.extensions import Table
from promptcli.notes import is_offline, note, warn
from promptcli.storage.files import is_below, path_inside, real_path, sha256
from promptcli.storage.typed_documents import read_document

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
#: The backbone's own tokenizer, if the folder's ``tokenizer.json`` holds a template.
OWN_TOKENIZER = "backbone_tokenizer"
#: Names of the matrix of a table of words, by sentence-transformers and by model2vec.
TABLE_MATRICES = frozenset(("embedding.weight", "embeddings"))
#: The tensors of a table in 4 bits.
PACKED_ROWS = "embedding.packed"
PACKED_SCALES = "embedding.scales"
#: Patterns of the files that are read from a folder.
FOLDER_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
PREFIX_TUNING = "PREFIX_TUNING"  #: peft's name for learned keys and values in every layer

SHIPPED_FOLDER = Path(__file__).parents[1] / "shipped"  #: of the models inside the package
SHIPPED_BACKBONES: dict[str, Path] = {"mini-bert": SHIPPED_FOLDER / "mini-bert"}
SHIPPED_TABLES: dict[str, Path] = {"mini-multi": SHIPPED_FOLDER / "mini-multi"}
#: Ending of a file of a language model, such as ``.gguf`` -> a function that takes its path and
#: returns the folder with a configuration and safetensors that it becomes.
MODEL_FILES: Table[Callable[[str], Path]] = Table("model_files", {})
#: The word before the colon in the name of a file of word vectors, as in ``glove:FILE`` -> a
#: function that takes that name and returns the file's ``WordTable``.
WORD_FILES: Table[Callable[[str], Any]] = Table("word_files", {})

TABLE = "table"  #: family of a table of word vectors in a folder

_ENCODER_TENSORS = "tensors.safetensors"  # of an encoder, next to its backbone
_SHARDS = "model.safetensors.index.json"  # says which of several files holds a tensor
#: Every model folder has one of these files: promptcli's, sentence-transformers', an adapter's, a
#: language model's, or a table of words.
_IDENTIFYING_FILES = ("promptcli.json", "modules.json", ADAPTER_CONFIG, CONFIG, TOKENIZER)
_HINT = "fetch the folder again"
_ACCEPTED = f"give a folder, a hub id or a shipped backbone: {', '.join(SHIPPED_BACKBONES)}"
_MISTYPED_LIKENESS = 0.75  # the hub is not asked for a name this similar to a shipped one
#: Extension of weights that are not read -> reason and remedy.
_REFUSED_WEIGHTS = {
    ".bin": "is a pickle and can run code: convert it, `promptcli models import FOLDER --name NAME"
    " --convert`",
    **dict.fromkeys(
        (".pt", ".pth", ".ckpt", ".pkl"),
        "is a pickle and can run code; use a checkpoint in safetensors",
    ),
    **dict.fromkeys(
        (".h5", ".msgpack", ".ot", ".onnx"),
        "is of another program; use a checkpoint in safetensors",
    ),
}
#: peft's kinds of adapters that learn input vectors.
_INPUT_ADAPTERS = ("PROMPT_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "CPT", "ADAPTION_PROMPT")


@dataclass(frozen=True)
class Provenance:
    """The origin of a backbone: it distinguishes two backbones, and fetches the same one again."""

    backbone: str
    family: str
    revision: str | None  #: on the hub
    weights_sha256: str
    tokenizer_sha256: str


def is_word_file(name: str) -> bool:
    """Return whether a name means a file of word vectors, such as ``glove:FILE``."""
    prefix, colon, _ = name.partition(":")
    return bool(colon) and prefix in WORD_FILES


def is_hub_id(name: str) -> bool:
    """Return whether a name is a hub id: ``owner/name`` or ``name``, perhaps with ``@revision``."""
    repository = name.partition("@")[0]
    if is_word_file(name) or repository in SHIPPED_BACKBONES or repository in SHIPPED_TABLES:
        return False
    is_path = repository.startswith((".", "/", "~")) or Path(name).exists()
    return repository.count("/") <= 1 and not is_path


def portable_name(name: str) -> str:
    """Return a name that means the same in every folder: a local path becomes absolute."""
    if is_word_file(name):
        prefix, _, file = name.partition(":")
        if Path(file).is_file():
            return f"{prefix}:{_absolute(Path(file))}"
    elif Path(name).is_dir():
        return str(Path(name).resolve())
    elif Path(name).is_file() and Path(name).suffix in MODEL_FILES:
        return str(_absolute(Path(name)))
    return name


def _absolute(file: Path) -> Path:
    """Return a file's absolute path. A link keeps its name: the hub's cache links to files that are
    named by their hashes.
    """
    return file.parent.resolve() / file.name


@dataclass(frozen=True)
class ModelFolder:
    """The files of a model. Messages contain its ``str``."""

    name: str  #: as the user typed it: a shipped name, a folder, or a hub id
    path: Path
    revision: str | None = None  #: on the hub

    def __str__(self) -> str:
        return f"model {self.name!r}"

    def error(self, reason: str) -> UsageError:
        """Return an error whose message is the folder's name and the reason."""
        return UsageError(f"{self} {reason}")

    def has(self, file: str) -> bool:
        return (self.path / file).is_file()

    def inside(self, name: str, file: str = "files") -> Path:
        """Return the path of a name that ``file`` contains; refuse a path that leads out of the
        folder.
        """
        path = path_inside(self.path, name)
        if path is None:
            raise self.error(
                f"has {short_repr(name)} in its {file}, which leads out of the folder or is not a"
                " file's name; put it inside"
            )
        return path

    def subfolder(self, name: str) -> "ModelFolder":
        """Return a folder inside, or the folder itself for an empty name."""
        return ModelFolder(str(self.path / name), self.path / name) if name else self

    def document(self, file: str, kind: Any = dict[str, Any]) -> Any:
        """Return the content of a JSON file, as a dataclass or another type."""
        if not self.has(file):
            raise self.error(f"has no {file}; {_HINT}")
        return read_document(self.inside(file), kind, hint=_HINT, error=UsageError)

    def optional(self, file: str, kind: Any = dict[str, Any]) -> Any:
        """Return the content of a JSON file; empty if it is missing."""
        return self.document(file, kind) if self.has(file) else kind()

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        if not self.has(CONFIG):
            raise NotFoundError(f"{self} has no {CONFIG}: not a model folder")
        content: dict[str, Any] = self.document(CONFIG)
        return content

    @property
    def family(self) -> str:
        """Its language model's name in ``FAMILIES``: the ``model_type``, and a suffix if tokens
        of a causal family see both sides. Other families are refused.
        """
        family = self.config.get("model_type")
        if not isinstance(family, str):
            raise self.error(f"has a {CONFIG} without a model_type")
        if self.config.get("use_bidirectional_attention"):
            family = f"{family}-bidirectional"
        if family in FAMILIES:
            return family
        reason = "its family is not supported"
        if "auto_map" in self.config:
            reason = "it comes with remote code, which is never run"
        raise self.error(f"is a {family}: {reason}; supported: {', '.join(FAMILIES)}")

    def tensors(self, file: str = WEIGHTS) -> "dict[str, Tensor]":
        """Return the tensors of a safetensors file by name."""
        if not self.has(file):
            convert = f"`promptcli models import {self.name} --name NAME --convert`"
            raise self.error(f"has no {file}: pickles are not read; convert them, {convert}")
        from promptcli.storage.tensors import load_tensors

        return load_tensors(self.inside(file), hint=_HINT)

    def tensor_names(self) -> frozenset[str]:
        """Return the names of the tensors in ``model.safetensors``; empty if the file is missing or
        broken, which is reported when it is loaded.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path / WEIGHTS, framework="numpy") as file:
                return frozenset(file.keys())
        except (SafetensorError, OSError):
            return frozenset()

    @property
    def is_table(self) -> bool:
        """Whether it holds a table of words: a row for each token, without layers."""
        names = self.tensor_names()
        if names == {PACKED_ROWS, PACKED_SCALES}:
            return True
        return bool(names & TABLE_MATRICES) and names <= TABLE_MATRICES | {"mapping", "weights"}

    @property
    def is_shipped(self) -> bool:
        """Whether it is part of the package; its files need no checks."""
        return self.path in (*SHIPPED_BACKBONES.values(), *SHIPPED_TABLES.values())

    def weight_files(self) -> list[Path]:
        """Return the safetensors files, in order; refuse pickles, with the remedy."""
        shards = json_field(self.path / _SHARDS, "weight_map")
        for name in set(map(str, shards.values())) if isinstance(shards, dict) else ():
            self.inside(name, _SHARDS)
        files = sorted(self.path.glob("*.safetensors"))
        files = [path for path in files if path.name != _ENCODER_TENSORS]
        if files:
            return files
        remedies = dict.fromkeys(MODEL_FILES, "is a backbone itself: give that file")
        remedies |= _REFUSED_WEIGHTS
        for path in sorted(self.path.iterdir()):
            if path.suffix in remedies:
                raise self.error(
                    f"has its weights in {path.name} only, which {remedies[path.suffix]}"
                )
        raise self.error("has no *.safetensors weights")

    def check_links(self, files: Iterable[Path]) -> None:
        """Refuse links that lead out of the folder, because copying them would copy other files of
        this machine.
        """
        for path in sorted(files):
            if not is_below(real_path(path), self.path):
                raise UsageError(
                    f"{self}: {path.relative_to(self.path)} is a link that leads out of the folder"
                )


def json_or_none(path: Path) -> Any:
    """Return the content of a JSON file; None if it is missing or malformed, which is reported when
    its library reads it.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError):
        return None


def json_field(path: Path, field: str) -> Any:
    """Return a field of a JSON object; None if the field, the file or the object is missing."""
    content = json_or_none(path)
    return content.get(field) if isinstance(content, dict) else None


def own_tokenizer(folder: Path) -> Path:
    """Return the folder of the files of a backbone's tokenizer."""
    own = folder / OWN_TOKENIZER
    return own if own.is_dir() else folder


def weights_digest(folder: Path) -> str:
    """Return the hash of a folder's configuration and weights.

    A saved model records the hash of its original backbone. That hash is returned if the files were
    not changed since.
    """
    digest = hashlib.sha256()
    for path in [folder / CONFIG, *sorted(folder.glob("*.safetensors"))]:
        if path.name != _ENCODER_TENSORS:
            digest.update(sha256(path).encode())
    record = json_field(folder / "promptcli.json", "backbone")
    if isinstance(record, dict) and record.get("written") == digest.hexdigest():
        return str(record["weights"])
    return digest.hexdigest()


#: The same hash, cached, for a shipped folder, whose files do not change.
shipped_digest = functools.cache(weights_digest)


def locate(name: str, *, files: Sequence[str] = FOLDER_FILES) -> ModelFolder:
    """Return the folder of a model: shipped, local, converted from a file, or fetched from the hub.

    ``files`` are patterns of files to fetch. For names see ``load_backbone``; a revision may
    contain slashes.
    """
    shipped = (SHIPPED_BACKBONES | SHIPPED_TABLES).get(name)
    if shipped is not None:
        return ModelFolder(name, shipped)
    path = Path(name)
    if not path.is_dir():
        if path.suffix in MODEL_FILES:
            return ModelFolder(name, MODEL_FILES[path.suffix](name))
        return _fetch(name, files)
    folder = ModelFolder(name, path)
    _check_is_model(folder)
    for file in itertools.chain(*map(path.glob, files)):
        if file.exists() and not (file.is_file() or file.is_dir()):  # reading it may never end
            raise UsageError(f"{file.name} of {folder} is a pipe or a device; put a file there")
    if name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith("/"):
        note(f"{name} is a folder here, so the hub is not asked; {hub_remedy(name)}")
    return folder


def _check_is_model(folder: ModelFolder) -> None:
    if not any(map(folder.has, _IDENTIFYING_FILES)):
        raise NotFoundError(f"{folder} has no {CONFIG}: not a model folder")


def _fetch(name: str, files: Sequence[str]) -> ModelFolder:
    """Return a folder of the hub's cache; download it if it is missing there."""
    repository, _, revision = name.partition("@")
    if name.startswith((".", "/", "~")) or repository.count("/") > 1:
        raise NotFoundError(f"no backbone folder {name!r}; {_ACCEPTED}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    def snapshot(*, local: bool) -> ModelFolder:
        path = snapshot_download(
            repository, revision=revision or None, allow_patterns=[*files], local_files_only=local
        )
        folder = ModelFolder(name, Path(path), Path(path).name)
        _check_is_model(folder)
        return folder

    try:
        return snapshot(local=True)
    except (LocalEntryNotFoundError, FileNotFoundError):
        _check_hub_may_have(name)
    except HFValidationError:
        raise NotFoundError(f"no backbone {name!r}; {_ACCEPTED}") from None
    warn(f"looking for model {repository} on the Hugging Face hub")
    try:
        return snapshot(local=False)
    except LocalEntryNotFoundError:
        reason = "the hub cannot be reached"
    except (HfHubHTTPError, OSError) as error:
        reason = f"the hub answered: {join_lines(error, 200)}"
    raise NotFoundError(f"no local model {name!r}, and {reason}")


def _check_hub_may_have(name: str) -> None:
    """Raise NotFoundError if the network is forbidden, or if the name more likely means a file, a
    folder or a known model.
    """
    if os.path.exists(name):
        raise NotFoundError(f"{name!r} is a file; {_ACCEPTED}")
    suggestion = similar_name(name, SHIPPED_BACKBONES)
    parent = Path(name).parent
    if not suggestion and "/" in name and "@" not in name and parent.is_dir():
        folders = [str(path) for path in parent.iterdir() if path.is_dir()]
        missing = f"; folder {str(parent)!r} has none of that name;"
        suggestion = did_you_mean(name, folders) or missing
    if suggestion:
        raise NotFoundError(f"no backbone {name!r}{suggestion} {hub_remedy(name)}")
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if is_offline() or HF_HUB_OFFLINE:
        by = "offline=True" if is_offline() else "HF_HUB_OFFLINE"
        raise NotFoundError(f"no local model {name!r}, and {by} forbids the network")


def hub_remedy(name: str) -> str:
    """Return the part of a message that says how to name a hub repository."""
    return f"for a hub repository of that name write {name}@main"


def similar_name(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests a similar name; "" if there is none.

    A model of the hub's cache whose name lacks only the owner goes first, then the known names.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    # OWNER/NAME is the folder models--OWNER--NAME
    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*--*")):
        _, owner, model = folder.name.split("--", 2)
        if model.lower() == name.lower():
            return f"; did you mean {owner}/{model}?"
    return did_you_mean(name, known, likeness=_MISTYPED_LIKENESS)


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
    """Refuse an adapter that changes no weights, because it cannot be merged."""
    kind = config.peft_type
    if kind == PREFIX_TUNING:
        raise folder.error(
            "is prefix tuning of peft, an encoder: give it as the model, not as the backbone"
        )
    if kind in _INPUT_ADAPTERS:
        raise folder.error(
            f"is a {kind} adapter of peft, which is not supported; supported: LORA, {PREFIX_TUNING}"
        )


def base_of(folder: ModelFolder) -> str | None:
    """Return the name of the backbone of a folder's adapter; None if it has no adapter."""
    if not folder.has(ADAPTER_CONFIG) or folder.has(CONFIG):
        return None
    return base_name(folder, read_adapter_config(folder))


def base_name(folder: ModelFolder, config: AdapterConfig) -> str:
    """Return the name of an adapter's backbone: a folder inside the adapter's, else a name on the
    hub.

    Other local folders are refused, because an export would pass on their weights.
    """
    base = config.base_model_name_or_path
    if not base:
        raise UsageError(
            f"{ADAPTER_CONFIG} of {folder} names no base model; write its base_model_name_or_path"
        )
    path = path_inside(folder.path, base)
    if path is not None and path.is_dir() and path.resolve() != folder.path.resolve():
        return str(path)
    is_outside = Path(base).is_absolute() or ".." in Path(base).parts
    if is_outside or Path(base).is_dir() or (folder.path / base).is_dir():
        remedy = "move it into the adapter's folder, or write its hub id, OWNER/NAME@REVISION"
        raise UsageError(
            f"{ADAPTER_CONFIG} of {folder} names the base {short_repr(base)}, a folder outside the"
            f" adapter's; {remedy}"
        )
    return base
