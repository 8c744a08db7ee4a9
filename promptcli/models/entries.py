"""An encoder as a folder: the one form of the registry, of ``Encoder.save``, of ``push`` and ``pull``, and of exports.

``promptcli.json`` says everything but the numbers: recipe, prompts, provenance, scores. The learned and fitted numbers
stand beside it, and so does the backbone, unless it is one that others have: then its name and revision stand there.
``modules.json`` is for sentence-transformers: modules of its own where they can express the recipe, else one of ours.

In the registry ``promptcli.json`` is written last and names the other files with their checksums; a folder without one
is no entry. See ``promptcli.storage.parts``.
"""

import datetime
import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promptcli
from promptcli.errors import CheckFailedError, UsageError
from promptcli.recipe import Prompts, Recipe
from promptcli.storage.documents import read_document, shown, to_json
from promptcli.storage.files import write_text
from promptcli.storage.parts import check_part, part_named, replace_parts

if TYPE_CHECKING:
    import torch

MANIFEST, TENSORS, BACKBONE = "promptcli.json", "tensors.safetensors", "backbone"
#: What lets sentence-transformers open a folder whose recipe no modules of its own express.
OPENERS: dict[str, str] = {
    "modules.json": to_json([{"idx": 0, "name": "0", "path": "", "type": "modeling_promptcli.PromptcliModule"}]),
    "modeling_promptcli.py": (
        '"""The encoder of this folder; pip install promptcli."""\n\n'
        "from promptcli.models.st_module import PromptcliModule\n\n"
        '__all__ = ["PromptcliModule"]\n'
    ),
}


#: Parts of ``Entry.provenance`` that are objects where they are there.
_SECTIONS = ("trained", "loaded")


@dataclass(frozen=True)
class Entry:
    """A named encoder: its recipe and every learned or fitted number outside the backbone."""

    name: str
    recipe: Recipe
    tensors: "dict[str, torch.Tensor]" = field(default_factory=dict)
    #: Where it came from, JSON-ready; ``width`` in it, where known, is d of its vectors.
    provenance: dict[str, Any] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)  #: Figures measured with it, JSON-ready.
    transfer: Recipe | None = None  #: Of transfer tasks, where it is another one (PromptBERT, supervised).
    prompts: Prompts = field(default_factory=Prompts)  #: Texts in front of a sentence, by name.


@dataclass(frozen=True)
class Card:
    """What is known of an entry without reading its tensors.

    ``created`` is UTC in ISO form and ``version`` the promptcli that wrote it; both are None where it is shipped.
    """

    name: str
    origin: str
    recipe: Recipe
    provenance: dict[str, Any]
    scores: list[dict[str, Any]]
    tensors: bool
    created: str | None
    version: str | None


@dataclass(frozen=True)
class Manifest:
    """The content of ``promptcli.json``."""

    recipe: dict[str, Any]
    name: str = ""
    created: str = ""
    promptcli: str = ""
    transfer: dict[str, Any] | None = None
    prompts: Prompts = field(default_factory=Prompts)
    provenance: dict[str, Any] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)
    sha256: dict[str, str] = field(default_factory=dict)  #: Of the other files, by name.
    fingerprint: str | None = None  #: Of the encoder; None in the registry.
    target: str | None = None  #: Of ``export``, where it was written by one.
    #: A backbone that was written in another form than it was loaded from: the hash of the form written here, and the
    #: hashes by which it is known.
    backbone: dict[str, str] = field(default_factory=dict)
    schema_version: int = 3


def manifest_of(entry: Entry, **more: Any) -> Manifest:
    """Return what ``promptcli.json`` says of an entry."""
    transfer = None if entry.transfer is None else entry.transfer.to_dict()
    return Manifest(
        entry.recipe.to_dict(), entry.name, utc_now(), promptcli.__version__, transfer, entry.prompts,
        entry.provenance, entry.scores, **more,
    )  # fmt: skip


def write_entry(folder: Path, entry: Entry) -> None:
    """Write an entry in the place of the one in ``folder``, or a new one. With the registry's lock held."""
    with replace_parts(folder, MANIFEST, owns=lambda name: True) as writer:
        if entry.tensors:
            from promptcli.storage.tensors import save_tensors

            with writer.part(TENSORS) as path:
                save_tensors(entry.tensors, path)
        for name, text in OPENERS.items():
            write_text(folder / name, text)
            writer.sums[name] = hashlib.sha256(text.encode()).hexdigest()
        writer.commit(to_json(manifest_of(entry, sha256=dict(writer.sums))))


def read_entry(folder: Path) -> Entry:
    """Read an entry, checking every file.

    Raises:
        CheckFailedError: A file is missing, or not the one that was saved.
    """
    manifest = read_manifest(folder)
    file = part_named(manifest.sha256, TENSORS)
    tensors: dict[str, torch.Tensor] = {}
    if file is not None:
        from promptcli.storage.tensors import load_tensors

        path = check_part(folder, file, manifest.sha256[file], lambda *found: _damaged(folder, *found))
        tensors = load_tensors(path, hint=_hint(folder))
        for key, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.float().isfinite().all():
                raise _damaged(folder, path.name, f"its {key} holds numbers that are not finite")
    return entry_of(folder, manifest, tensors)


def entry_of(folder: Path, manifest: Manifest, tensors: "dict[str, torch.Tensor]") -> Entry:
    """Return the entry that a manifest and its numbers are.

    Raises:
        CheckFailedError: A recipe in it is none, or where it came from is not told as ``Entry.provenance`` is.
    """
    for section in _SECTIONS:
        if not isinstance(told := manifest.provenance.get(section, {}), dict):
            raise _damaged(folder, MANIFEST, f"the field 'provenance.{section}' must be an object, not {shown(told)}")
    try:
        recipe = Recipe.from_dict(manifest.recipe)
        transfer = None if manifest.transfer is None else Recipe.from_dict(manifest.transfer)
    except UsageError as error:
        raise _damaged(folder, MANIFEST, str(error)) from None
    name = folder.resolve().name
    return Entry(name, recipe, tensors, manifest.provenance, manifest.scores, transfer, manifest.prompts)


def with_backbone(entry: Entry, backbone: str) -> Entry:
    """Return an entry whose recipes name a backbone by where it is."""
    transfer = None if entry.transfer is None else entry.transfer.replace(backbone=backbone)
    return replace(entry, recipe=entry.recipe.replace(backbone=backbone), transfer=transfer)


def describe(folder: Path) -> Card:
    """Read an entry's manifest.

    Raises:
        CheckFailedError: See ``read_entry``; tensors are not looked at.
    """
    manifest = read_manifest(folder)
    entry = entry_of(folder, manifest, {})
    has_tensors = part_named(manifest.sha256, TENSORS) is not None
    about = entry.recipe, manifest.provenance, manifest.scores, has_tensors, manifest.created, manifest.promptcli
    return Card(folder.name, "saved", *about)


def is_whole(folder: Path) -> bool:
    """Return whether an entry was saved to its end."""
    return (folder / MANIFEST).is_file()


def append_scores(folder: Path, scores: list[dict[str, Any]]) -> None:
    """Add figures to an entry's manifest. With the registry's lock held.

    Raises:
        CheckFailedError: The manifest is damaged.
    """
    manifest = read_manifest(folder)
    write_text(folder / MANIFEST, to_json(replace(manifest, scores=[*manifest.scores, *scores])))


def utc_now() -> str:
    """Return the time in UTC, ISO form, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def read_manifest(folder: Path) -> Manifest:
    """Return the content of a folder's ``promptcli.json``.

    Raises:
        CheckFailedError: It is not there, or damaged.
    """
    return read_document(folder / MANIFEST, Manifest, hint=_hint(folder))


def _damaged(folder: Path, name: str, reason: str) -> CheckFailedError:
    return CheckFailedError(f"model {folder.name!r} is damaged: {name} in {folder}: {reason}; {_hint(folder)}")


def _hint(folder: Path) -> str:
    return f"save it again, or `promptcli models remove {folder.name}`"
