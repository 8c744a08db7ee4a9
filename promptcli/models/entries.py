"""An encoder as a folder: the same form in the registry, from ``Encoder.save``, ``push`` and
``pull``, and in exports.

Learned and fitted tensors are in ``tensors.safetensors``, the rest of the entry in
``promptcli.json``, the backbone in ``backbone`` or in the folder itself, unless it is named by its
hub id. ``modules.json`` is for sentence-transformers.
"""

import datetime
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import promptcli
from promptcli.errors import CheckFailedError, UsageError, shorten
from promptcli.recipe import LeadingTexts, Recipe
from promptcli.storage.files import write_text
from promptcli.storage.folders import StoredFile, check_files, list_files
from promptcli.storage.typed_documents import convert, read_document, to_json

MODEL_MANIFEST = "promptcli.json"
TENSORS = "tensors.safetensors"
BACKBONE = "backbone"
MODULES = "modules.json"
CARD = "README.md"
#: ``modules.json`` of a folder whose recipe no modules of sentence-transformers express.
OUR_MODULE = to_json(
    [{"idx": 0, "name": "0", "path": "", "type": "promptcli.models.st_module.PromptcliModule"}]
)
_HINT = "save or fetch it again, or remove it"


@dataclass(frozen=True)
class Entry:
    """A named encoder: its recipe and every learned or fitted number outside the backbone.

    Everything but ``tensors`` is the content of ``promptcli.json``; the fields from ``created`` on
    describe the folder.
    """

    name: str
    recipe: Recipe
    tensors: Mapping[str, Any] = field(default_factory=dict)  #: ``torch.Tensor`` by name.
    #: JSON-ready, empty of a recipe alone; ``width``, if known, is d of its vectors
    provenance: dict[str, Any] = field(default_factory=dict)
    #: Figures measured with it, JSON-ready.
    scores: list[dict[str, Any]] = field(default_factory=list)
    #: Recipe for transfer tasks if it differs (PromptBERT, supervised).
    transfer: Recipe | None = None
    prompts: LeadingTexts = field(
        default_factory=LeadingTexts
    )  #: Texts in front of a sentence, by name.
    created: str = field(default="", compare=False)  #: UTC, ISO form; empty outside the registry.
    promptcli: str = field(default="", compare=False)  #: Version that wrote it.
    #: The other files, by relative name.
    files: dict[str, StoredFile] = field(default_factory=dict, compare=False)
    #: The encoder's; None in the registry.
    fingerprint: str | None = field(default=None, compare=False)
    #: ``to`` of the ``export`` that wrote it.
    target: str | None = field(default=None, compare=False)
    #: A backbone that was written in another form than it was loaded from: the hash of the form
    #: written here, and the hashes by which it is known.
    backbone: dict[str, str] = field(default_factory=dict, compare=False)


def write_manifest(folder: Path, entry: Entry) -> None:
    """Write ``promptcli.json`` with the list of the folder's other files.

    The card, which users edit, is not in it.
    """
    files = {
        name: file
        for name, file in list_files(folder, hashed=True).items()
        if name not in (MODEL_MANIFEST, CARD)
    }
    recipes = {
        "recipe": entry.recipe.to_dict(),
        "transfer": entry.transfer and entry.transfer.to_dict(),
    }
    values = (
        asdict(replace(entry, tensors={}, promptcli=promptcli.__version__, files=files)) | recipes
    )
    del values["tensors"]
    write_text(folder / MODEL_MANIFEST, to_json(values))


def write_entry(folder: Path, entry: Entry) -> None:
    """Write an entry into a new folder, in which its backbone, and modules, may already be."""
    if entry.tensors:
        from promptcli.storage.tensors import save_tensors

        save_tensors(entry.tensors, folder / TENSORS)
    if not (folder / MODULES).exists():
        (folder / MODULES).write_text(OUR_MODULE, encoding="utf-8")
    write_manifest(folder, entry)


def read_entry(folder: Path, *, checked: bool = False) -> Entry:
    """Return the entry of a folder, its files compared by size and with ``checked`` (others wrote
    it) by hash.
    """
    entry = read_manifest(folder)
    check_files(folder, entry.files, hashed=checked, hint=_HINT)
    if TENSORS in entry.files:
        from promptcli.storage.tensors import open_tensors

        entry = replace(entry, tensors=open_tensors(folder / TENSORS, hint=_HINT))
    inside = {BACKBONE: folder / BACKBONE, ".": folder}.get(entry.recipe.backbone)
    if inside is None:
        return entry
    return with_backbone(entry, str(inside))


def read_manifest(folder: Path) -> Entry:
    """Return the entry of a folder without its tensors."""
    values = read_document(folder / MODEL_MANIFEST, dict[str, Any], hint=_HINT)
    try:
        entry = convert({**values, "name": folder.resolve().name, "tensors": {}}, Entry)
        for recipe in (values["recipe"], values.get("transfer") or {}):
            Recipe.from_dict(recipe)  # unknown keys are refused
        if not isinstance(value := entry.provenance.get("trained", {}), dict):
            raise ValueError(
                f"the field 'provenance.trained' must be an object, not {shorten(value)}"
            )
    except (UsageError, ValueError) as error:
        raise CheckFailedError(
            f"model {folder.name!r} is damaged: {MODEL_MANIFEST} in {folder}: {error}; {_HINT}"
        ) from None
    return entry


def with_backbone(entry: Entry, backbone: str) -> Entry:
    """Return an entry on another backbone, or on its own by another name."""
    transfer = None
    if entry.transfer is not None:
        transfer = entry.transfer.replace(backbone=backbone)
    return replace(entry, recipe=entry.recipe.replace(backbone=backbone), transfer=transfer)


def utc_now() -> str:
    """Return the time in UTC, ISO form, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
