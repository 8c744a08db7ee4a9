"""Somebody else's model into the registry: read as ``registry.reading`` reads it, kept with all that it needs."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from promptcli.backbones.checking import check_links, opening
from promptcli.backbones.pretrained import OWN_TOKENIZER, locate, weight_files
from promptcli.backbones.saving import is_tokenizer_file
from promptcli.errors import UsageError
from promptcli.models.convert import convert_apart
from promptcli.models.entries import BACKBONE, Entry, with_backbone
from promptcli.models.reading import FILES, MARKS, PREFIX_ADAPTER, read_folder
from promptcli.models.registry import Registry, load_encoder
from promptcli.models.target import PROBES
from promptcli.notes import note

#: What of a folder belongs to its backbone, beside the tokenizer's files.
_BODY = ("config.json", "adapter_config.json")


@dataclass(frozen=True)
class Imported:
    """An entry that was made."""

    entry: Entry
    kind: str  #: what the folder was taken for

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {"name": self.entry.name, "kind": self.kind, "recipe": self.entry.recipe.to_dict()}


def import_model(
    registry: Registry,
    source: str,
    name: str,
    *,
    changes: dict[str, Any] | None = None,
    convert: bool = False,
    force: bool = False,
) -> Imported:
    """Save what others trained, in a folder or under a hub id with ``@revision`` where it matters, as an entry.

    A backbone in a folder is copied into the entry, one of the hub is named. ``changes`` are fields of the recipe
    that stand in for the recognised ones; with ``convert`` pickles may be converted, by a process that reads nothing
    but tensors.

    Raises:
        NotFoundError: No such folder or hub id, or the base of an adapter cannot be had.
        UsageError: The folder is nothing that is read, or its parts do not fit together; the registry is as before.
    """
    registry.check_free(name, force=force)
    files = [*FILES, "*.bin"] if convert else FILES
    path, revision = locate(source, files=files, one_of=MARKS)
    check_links(f"model {source!r}", path, path.rglob("*"))
    with registry.new_folder() as temporary:
        read = path
        if convert and not list(path.rglob("*.safetensors")):
            note(f"a separate process reads the tensors of {source}'s pickles, and nothing else, into safetensors")
            read = _converted(path, temporary / "converted")
        with opening(f"model {source!r}"):
            found = read_folder(source, read)
        kind = str(found.provenance.get("loaded", {}).get("kind", "model of promptcli"))
        given = changes or {}
        if "backbone" in given and kind != PREFIX_ADAPTER:
            own = f"`backbone`: {source} ({kind}) brings its own backbone, or names it in adapter_config.json"
            raise UsageError(f"{own}; leave it out")
        entry = replace(found, recipe=found.recipe.replace(**({"period": None} if "prompt" in given else {}), **given))
        if not entry.recipe.backbone:
            raise UsageError(f"{source} does not say what it was trained on; name it by `backbone`")
        backbone = _copied(entry.recipe.backbone, source, path, read, temporary / BACKBONE)
        if backbone is not None:
            entry = with_backbone(entry, str(backbone))
        elif entry.recipe.backbone == source and revision:
            entry = with_backbone(entry, f"{source.partition('@')[0]}@{revision}")
        encoder = load_encoder(entry, device="cpu", dtype="float32")
        encoder.encode(PROBES[:2])
        about = {"imported": {"source": source, "revision": revision, "kind": kind}, "width": encoder.width}
        entry = replace(
            entry,
            name=name,
            recipe=encoder.recipe.replace(backbone=entry.recipe.backbone),
            tensors=encoder.tensors(),
            provenance={**encoder.provenance, **about},
        )
        entry = registry.save(entry, force=force, backbone=backbone)
    return Imported(entry, kind)


def _converted(path: Path, folder: Path) -> Path:
    """Return a copy of a folder whose pickles are safetensors."""
    for file in sorted(path.rglob("*")):
        target = folder / file.relative_to(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in (".json", ".txt", ".model"):
            shutil.copyfile(file, target)
        elif file.suffix == ".bin":
            stem = "adapter_model" if file.stem == "adapter_model" else "model"
            convert_apart(file, target.with_name(f"{stem}.safetensors"))
    return folder


def _copied(backbone: str, source: str, path: Path, read: Path, target: Path) -> Path | None:
    """Copy the files of a backbone that stands in the folder; return where; None where it is named, not copied."""
    if backbone == source:
        if not Path(source).is_dir() and read == path:
            return None
        own = read
    else:
        own = Path(backbone)
        if not own.is_relative_to(read):
            return None
    if not (own / _BODY[1]).is_file():
        weight_files(f"model {source!r}", own)
    target.mkdir()
    for file in sorted(own.iterdir()):
        if file.name in _BODY or is_tokenizer_file(file) or (file.match("*.safetensors*") and file.is_file()):
            shutil.copyfile(file, target / file.name)
    if (own / OWN_TOKENIZER).is_dir():
        shutil.copytree(own / OWN_TOKENIZER, target / OWN_TOKENIZER)
    return target
