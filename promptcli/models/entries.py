"""The folder of an encoder, and the registry of named encoders.

The registry, ``Encoder.save``, ``push``, ``pull`` and exports write the same form:
``tensors.safetensors`` has the learned and fitted tensors, ``promptcli.json`` the rest of the
entry, and ``modules.json`` is for sentence-transformers. The backbone is in the folder
``backbone`` or in the folder itself, unless the entry names it by its hub id.
"""

import datetime
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import promptcli
from promptcli.backbones.model_folder import SHIPPED_FOLDER, portable_name
from promptcli.errors import CheckFailedError, NotFoundError, UsageError, did_you_mean, short_repr
from promptcli.recipe import RECIPES, LeadingTexts, Recipe
from promptcli.settings import ANOTHER_HOME, BUILT_IN
from promptcli.storage.files import (
    StoredFile,
    check_files,
    delete_folder,
    delete_leftovers,
    folders_with,
    is_below,
    is_writable,
    link_file,
    list_files,
    read_folder,
    temporary_folder,
    write_folder,
    write_text,
)
from promptcli.storage.locks import hold
from promptcli.storage.typed_documents import convert, read_document, to_json

MODEL_MANIFEST = "promptcli.json"
TENSORS = "tensors.safetensors"
BACKBONE = "backbone"
MODULES = "modules.json"
CARD = "README.md"
#: ``modules.json`` of a folder whose recipe the modules of sentence-transformers cannot express.
OUR_MODULE = to_json(
    [{"idx": 0, "name": "0", "path": "", "type": "promptcli.models.st_module.PromptcliModule"}]
)
_HINT = "save or fetch it again, or remove it"


@dataclass(frozen=True)
class Entry:
    """A named encoder: its recipe and every learned or fitted number outside the backbone.

    ``promptcli.json`` has all fields but ``tensors``. The fields from ``created`` on describe the
    folder.
    """

    name: str
    recipe: Recipe
    tensors: Mapping[str, Any] = field(default_factory=dict)  #: ``torch.Tensor`` by name.
    #: JSON-ready; empty for a mere recipe. ``width``, if known, is d of the vectors.
    provenance: dict[str, Any] = field(default_factory=dict)
    #: Scores measured with the encoder, JSON-ready.
    scores: list[dict[str, Any]] = field(default_factory=list)
    #: The recipe for transfer tasks, if it differs (PromptBERT, supervised).
    transfer: Recipe | None = None
    #: Texts in front of a sentence, by name.
    prompts: LeadingTexts = field(default_factory=LeadingTexts)
    created: str = field(default="", compare=False)  #: UTC, ISO form; empty outside the registry.
    promptcli: str = field(default="", compare=False)  #: Version that wrote it.
    #: The other files of the folder, by relative name.
    files: dict[str, StoredFile] = field(default_factory=dict, compare=False)
    #: Fingerprint of the encoder; None in the registry.
    fingerprint: str | None = field(default=None, compare=False)
    #: The argument ``to`` of the ``export`` that wrote the folder.
    target: str | None = field(default=None, compare=False)
    #: If the backbone was written in another form than it was loaded from: the hash of this form,
    #: and the hash that identifies the backbone.
    backbone: dict[str, str] = field(default_factory=dict, compare=False)


def write_manifest(folder: Path, entry: Entry) -> None:
    """Write ``promptcli.json`` with the list of the folder's other files.

    The card is not listed: users edit it.
    """
    files = list_files(folder, hashed=True)
    for name in (MODEL_MANIFEST, CARD):
        files.pop(name, None)
    values = asdict(replace(entry, tensors={}, promptcli=promptcli.__version__, files=files))
    del values["tensors"]
    values["recipe"] = entry.recipe.to_dict()
    values["transfer"] = entry.transfer and entry.transfer.to_dict()
    write_text(folder / MODEL_MANIFEST, to_json(values))


def write_entry(folder: Path, entry: Entry) -> None:
    """Write an entry into a new folder that may already hold its backbone and modules."""
    if entry.tensors:
        from promptcli.storage.tensors import save_tensors

        save_tensors(entry.tensors, folder / TENSORS)
    if not (folder / MODULES).exists():
        (folder / MODULES).write_text(OUR_MODULE, encoding="utf-8")
    write_manifest(folder, entry)


def read_entry(folder: Path, *, checked: bool = False) -> Entry:
    """Return the entry of a folder.

    Files are compared with the entry's list by size; with ``checked``, for a folder that someone
    else wrote, also by hash.
    """
    entry = read_manifest(folder)
    check_files(folder, entry.files, hashed=checked, hint=_HINT)
    if TENSORS in entry.files:
        from promptcli.storage.tensors import open_tensors

        entry = replace(entry, tensors=open_tensors(folder / TENSORS, hint=_HINT))
    if entry.recipe.backbone in (BACKBONE, "."):
        return with_backbone(entry, str(folder / entry.recipe.backbone))
    return entry


def read_manifest(folder: Path) -> Entry:
    """Return the entry of a folder without its tensors."""
    values = read_document(folder / MODEL_MANIFEST, dict[str, Any], hint=_HINT)
    try:
        entry = convert({**values, "name": folder.resolve().name, "tensors": {}}, Entry)
        for recipe in (values["recipe"], values.get("transfer") or {}):
            Recipe.from_dict(recipe)  # refuses unknown keys
        if not isinstance(value := entry.provenance.get("trained", {}), dict):
            raise ValueError(
                f"the field 'provenance.trained' must be an object, not {short_repr(value)}"
            )
    except (UsageError, ValueError) as error:
        raise CheckFailedError(
            f"model {folder.name!r} is damaged: {MODEL_MANIFEST} in {folder}: {error}; {_HINT}"
        ) from None
    return entry


def with_backbone(entry: Entry, backbone: str) -> Entry:
    """Return an entry on another backbone, or on its own backbone under another name."""
    transfer = None
    if entry.transfer is not None:
        transfer = entry.transfer.replace(backbone=backbone)
    return replace(entry, recipe=entry.recipe.replace(backbone=backbone), transfer=transfer)


def utc_now() -> str:
    """Return the time in UTC, ISO form, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


#: These models cannot be changed. ``mini`` is distilled from two teachers; ``mini-static`` has word
#: vectors, and ``mini-multi`` has word vectors of eleven languages.
SHIPPED_MODELS = ("mini", "mini-static", "mini-multi")

#: Recipes that are also methods: a model trained by a method has the method's name by default.
_ALSO_METHODS = ("prompteol",)
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}")


class Registry:
    """The entries in the folder ``home``, and the shipped entries.

    Several processes may write at once: a lock makes them take turns.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._models = home / "models"

    def names(self) -> list[str]:
        folders = folders_with(MODEL_MANIFEST, self._models) if self._models.is_dir() else set()
        saved = set(filter(_NAME.fullmatch, folders)).difference(SHIPPED_MODELS)
        return [*SHIPPED_MODELS, *sorted(saved)]

    def load(self, name: str) -> Entry:
        return read_folder(self.folder(self._check_known(name)), read_entry)

    def load_manifest(self, name: str) -> Entry:
        """Return the entry of a model without its tensors."""
        return read_folder(self.folder(self._check_known(name)), read_manifest)

    def check_free(self, name: str, *, force: bool = False) -> None:
        """Refuse a name that ``save`` would refuse; called before any work is done."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a name for a model; use up to 100 of A-Z a-z 0-9 . _ -, no dot"
                " first"
            )
        if name in SHIPPED_MODELS:
            raise UsageError(
                f"model {name!r} is shipped with promptcli and is not replaced; choose another name"
            )
        if name in RECIPES and name not in _ALSO_METHODS:
            raise UsageError(
                f"{name!r} is a recipe, which a model of that name would hide; choose another name"
            )
        if not is_writable(self._models):
            raise UsageError(
                f"models are kept in {self._home}, which may not be written; {ANOTHER_HOME}"
            )
        if (self._models / name / MODEL_MANIFEST).is_file() and not force:
            raise UsageError(
                f"model {name!r} exists; choose another name, or force=True replaces it"
            )

    def run_folder(self, name: str) -> Path:
        return self._home / "runs" / name

    def new_folder(self) -> AbstractContextManager[Path]:
        """Yield an empty temporary folder on the registry's disk for a backbone to be saved."""
        self._models.mkdir(parents=True, exist_ok=True)
        return temporary_folder(self._home / "new")

    def save(self, entry: Entry, *, force: bool = False) -> Entry:
        """Save an entry, completely or not at all, and return it as saved."""
        with self._lock():
            self.check_free(entry.name, force=force)
            entry = with_backbone(entry, portable(entry.recipe).backbone)
            target = self._models / entry.name
            with write_folder(target) as folder:
                self._take_backbone(Path(entry.recipe.backbone), folder / BACKBONE)
                if (folder / BACKBONE).is_dir():
                    place = {"backbone": str(target.absolute() / BACKBONE)}
                    entry = with_backbone(entry, BACKBONE)
                    entry = replace(entry, provenance=entry.provenance | place)
                entry = replace(
                    entry, created=utc_now(), fingerprint=None, target=None, backbone={}
                )
                write_entry(folder, entry)
        return self.load(entry.name)

    def _take_backbone(self, source: Path, target: Path) -> None:
        """Give an entry its own copy of a backbone that is in another entry's folder or in a new
        folder: either entry may be removed.
        """
        if source.is_dir() and is_below(source, self._home):
            for name in list_files(source):
                if name != TENSORS:
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    link_file(source / name, target / name)

    def remove(self, name: str) -> None:
        if self._check_known(name) in SHIPPED_MODELS:  # for an unknown name no folder is made
            raise UsageError(f"model {name!r} is shipped with promptcli and cannot be removed")
        with self._lock():
            delete_folder(self._models / self._check_known(name))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock in the block; remove the leftovers of killed processes first."""
        self._models.mkdir(parents=True, exist_ok=True)
        with hold(self._home):
            delete_leftovers(self._models)
            yield

    def folder(self, name: str) -> Path:
        return (SHIPPED_FOLDER if name in SHIPPED_MODELS else self._models) / name

    def _check_known(self, name: str) -> str:
        names = self.names()
        if name not in names:
            raise NotFoundError(
                f"no model {name!r}; there are: {', '.join(names)}; see `promptcli models"
                f" list`{did_you_mean(name, names)}"
            )
        return name


def portable(recipe: Recipe) -> Recipe:
    """Return a recipe with the absolute path of its backbone, if that is a folder."""
    if recipe.backbone == BUILT_IN.backbone:
        return recipe
    return recipe.replace(backbone=portable_name(recipe.backbone))
