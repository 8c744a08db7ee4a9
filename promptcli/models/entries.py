"""An encoder as a folder: the same form in the registry, from ``Encoder.save``, ``push`` and ``pull``, and in exports.

``promptcli.json`` holds the recipe, prompts, provenance, scores and the list of the other files; the learned and fitted
numbers are in ``tensors.safetensors``, the backbone in ``backbone`` or in the folder itself, unless it is named by its
hub id. ``modules.json`` is for sentence-transformers: its own modules if they can express the recipe, else ours.
"""

import datetime
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promptcli
from promptcli.errors import CheckFailedError, UsageError
from promptcli.recipe import Prompts, Recipe
from promptcli.storage.documents import read_document, shown, to_json
from promptcli.storage.files import write_text
from promptcli.storage.folders import StoredFile, check_files, list_files

if TYPE_CHECKING:
    import torch

MANIFEST, TENSORS, BACKBONE, MODULES, CARD = (
    "promptcli.json", "tensors.safetensors", "backbone", "modules.json", "README.md"
)  # fmt: skip
#: ``modules.json`` of a folder whose recipe no modules of sentence-transformers express.
OUR_MODULE = to_json([{"idx": 0, "name": "0", "path": "", "type": "promptcli.models.st_module.PromptcliModule"}])
_HINT = "save or fetch it again, or remove it"


@dataclass(frozen=True)
class Entry:
    """A named encoder: its recipe and every learned or fitted number outside the backbone."""

    name: str
    recipe: Recipe
    tensors: "dict[str, torch.Tensor]" = field(default_factory=dict)
    #: JSON-ready; ``width``, if known, is d of its vectors.
    provenance: dict[str, Any] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)  #: Figures measured with it, JSON-ready.
    transfer: Recipe | None = None  #: Recipe for transfer tasks if it differs (PromptBERT, supervised).
    prompts: Prompts = field(default_factory=Prompts)  #: Texts in front of a sentence, by name.


@dataclass(frozen=True)
class Manifest:
    """The content of ``promptcli.json``."""

    recipe: dict[str, Any]
    name: str = ""
    created: str = ""  #: UTC, ISO form.
    promptcli: str = ""  #: Version that wrote it.
    transfer: dict[str, Any] | None = None
    prompts: Prompts = field(default_factory=Prompts)
    provenance: dict[str, Any] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, StoredFile] = field(default_factory=dict)  #: The other files, by relative name.
    fingerprint: str | None = None  #: The encoder's; None in the registry.
    target: str | None = None  #: ``to`` of the ``export`` that wrote it.
    #: A backbone that was written in another form than it was loaded from: the hash of the form written here, and the
    #: hashes by which it is known.
    backbone: dict[str, str] = field(default_factory=dict)


def manifest_of(entry: Entry, **more: Any) -> Manifest:
    """Return the manifest of an entry, without its files."""
    transfer = None if entry.transfer is None else entry.transfer.to_dict()
    return Manifest(
        entry.recipe.to_dict(), entry.name, utc_now(), promptcli.__version__, transfer, entry.prompts,
        entry.provenance, entry.scores, **more,
    )  # fmt: skip


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``promptcli.json`` with the list of the folder's other files; the card, which users edit, is not in it."""
    files = list_files(folder, hashed=True)
    listed = {name: file for name, file in files.items() if name not in (MANIFEST, CARD)}
    write_text(folder / MANIFEST, to_json(replace(manifest, files=listed)))


def write_entry(folder: Path, entry: Entry) -> None:
    """Write an entry into a new folder, in which its backbone may already be."""
    if entry.tensors:
        from promptcli.storage.tensors import save_tensors

        save_tensors(entry.tensors, folder / TENSORS)
    (folder / MODULES).write_text(OUR_MODULE, encoding="utf-8")
    write_manifest(folder, manifest_of(entry))


def read_entry(folder: Path, *, checked: bool = False) -> Entry:
    """Return the entry that a folder holds; ``checked`` for folders that others may have written.

    The sizes of all files are compared with the manifest, with ``checked`` their hashes too.
    """
    manifest = read_manifest(folder)
    check_files(folder, manifest.files, hashed=checked, hint=_HINT)
    tensors: dict[str, torch.Tensor] = {}
    if TENSORS in manifest.files:
        from promptcli.storage.tensors import load_tensors

        tensors = load_tensors(folder / TENSORS, hint=_HINT)
        for key, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.float().isfinite().all():
                raise _damaged(folder, TENSORS, f"its {key} holds numbers that are not finite")
    entry = entry_of(folder, manifest, tensors)
    inside = {BACKBONE: folder / BACKBONE, ".": folder}.get(entry.recipe.backbone)
    return entry if inside is None else with_backbone(entry, str(inside))


def entry_of(folder: Path, manifest: Manifest, tensors: "dict[str, torch.Tensor]") -> Entry:
    """Return the entry of a manifest and its tensors."""
    for section in ("trained", "loaded"):
        if not isinstance(value := manifest.provenance.get(section, {}), dict):
            raise _damaged(folder, MANIFEST, f"the field 'provenance.{section}' must be an object, not {shown(value)}")
    try:
        recipe = Recipe.from_dict(manifest.recipe)
        transfer = None if manifest.transfer is None else Recipe.from_dict(manifest.transfer)
    except UsageError as error:
        raise _damaged(folder, MANIFEST, str(error)) from None
    name = folder.resolve().name
    return Entry(name, recipe, tensors, manifest.provenance, manifest.scores, transfer, manifest.prompts)


def with_backbone(entry: Entry, backbone: str) -> Entry:
    """Return an entry on another backbone, or on its own by another name."""
    transfer = None if entry.transfer is None else entry.transfer.replace(backbone=backbone)
    return replace(entry, recipe=entry.recipe.replace(backbone=backbone), transfer=transfer)


def utc_now() -> str:
    """Return the time in UTC, ISO form, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def read_manifest(folder: Path) -> Manifest:
    """Return the content of a folder's ``promptcli.json``."""
    return read_document(folder / MANIFEST, Manifest, hint=_HINT)


def _damaged(folder: Path, name: str, reason: str) -> CheckFailedError:
    return CheckFailedError(f"model {folder.name!r} is damaged: {name} in {folder}: {reason}; {_HINT}")
