"""From somebody else's folder to an entry of the registry: the table of sources, one file each."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.backbones.checking import check_links, opening
from promptcli.backbones.pretrained import locate
from promptcli.encoder.encoder import build_encoder
from promptcli.errors import UsageError
from promptcli.interchange.encoder_folder import is_tokenizer_file
from promptcli.interchange.exactness import PROBES
from promptcli.interchange.found import Folder, Found, Reader
from promptcli.interchange.from_checkpoint import read_checkpoint
from promptcli.interchange.from_peft import read_peft
from promptcli.interchange.from_sentence_transformers import read_sentence_transformers
from promptcli.registry.entries import Entry
from promptcli.registry.registry import Registry
from promptcli.storage.documents import to_json
from promptcli.storage.files import temporary_folder
from promptcli.storage.tensors import save_tensors

#: What is looked for, in order.
SOURCES: dict[str, Reader] = {
    "peft": read_peft,
    "sentence-transformers": read_sentence_transformers,
    "checkpoint": read_checkpoint,
}
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
_MARKS = ("config.json", "modules.json", "adapter_config.json")
#: What of a configuration would run code, or says how its authors trained.
_DROPPED = ("auto_map", "architectures", "_name_or_path", "torch_dtype")


@dataclass(frozen=True)
class Imported:
    """An entry that was made."""

    entry: Entry
    kind: str  #: what the folder was taken for
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        recipe = self.entry.recipe.to_dict()
        return {"name": self.entry.name, "kind": self.kind, "recipe": recipe, "notes": list(self.notes)}


def import_model(
    registry: Registry,
    source: str,
    name: str,
    *,
    changes: dict[str, Any] | None = None,
    convert: bool = False,
    offline: bool = False,
    force: bool = False,
    announce: Callable[[str], None] = lambda message: None,
) -> Imported:
    """Save what others trained as an entry.

    Args:
        registry: Where it is saved; a backbone that comes with it is kept next to it.
        source: A folder, or a hub id with ``@revision`` where it matters.
        name: Of the entry.
        changes: Fields of the recipe that stand in for the recognised ones.
        convert: Pickles may be converted, by a process that reads nothing but tensors.
        offline: Never use the network.
        force: Replace an entry of that name.
        announce: Called with one line before the network is used, and before a pickle is read.

    Raises:
        NotFoundError: No such folder or hub id, or the base of an adapter cannot be had.
        UsageError: The folder is nothing that is read, or its parts do not fit together; the registry is as before.
    """
    registry.check_free(name, force=force)
    files = [*_FILES, "*.bin"] if convert else _FILES
    path, revision = locate(source, offline, announce, files=files, one_of=_MARKS)
    check_links(f"model {source!r}", path, path.rglob("*"))
    kept = registry.imported_folder(name)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(kept) as temporary:
        work, backbone = temporary / "work", temporary / "backbone"
        work.mkdir()
        if convert and not list(path.rglob("*.safetensors")):
            announce(f"a separate process reads the tensors of {source}'s pickles, and nothing else, into safetensors")
        with opening(f"model {source!r}"):
            found = _read(Folder(source, path, work, convert))
        changes = changes or {}
        if "backbone" in changes and not found.named_base:
            own = f"--backbone: {source} ({found.kind}) brings its own backbone, or names it in {_MARKS[-1]}"
            raise UsageError(f"{own}; leave it out")
        recipe = found.recipe.replace(**({"period": None} if "prompt" in changes else {}), **changes)
        if found.named_base and not recipe.backbone:
            raise UsageError(f"{source} does not say what it was trained on; name it by --backbone")
        if found.body:
            _write_backbone(found, path, backbone)
            recipe = recipe.replace(backbone=str(backbone))
        encoder = build_encoder(
            recipe, device="cpu", dtype="float32", offline=offline, tensors=found.tensors, announce=announce
        )
        encoder.encode(PROBES[:2])
        about = {"imported": {"source": source, "revision": revision, "kind": found.kind}, "width": encoder.width}
        entry = Entry(
            name,
            encoder.recipe.replace(backbone=recipe.backbone),
            encoder.tensors(),
            {**encoder.provenance, **about},
        )
        entry = registry.save(entry, force=force, backbone=backbone if found.body else None)
    return Imported(entry, found.kind, found.notes)


def _read(folder: Folder) -> Found:
    for read in SOURCES.values():
        found = read(folder)
        if found is not None:
            return found
    raise UsageError(f"{folder.name} is nothing that is read: it has none of {', '.join(_MARKS)}")


def _write_backbone(found: Found, path: Path, folder: Path) -> None:
    """Write the weights that were found as a plain backbone, with the tokenizer's files."""
    folder.mkdir()
    own = next((part for part in (path, *sorted(path.glob("0_*"))) if (part / "config.json").is_file()), path)
    for file in sorted(own.iterdir()):
        if is_tokenizer_file(file):
            shutil.copyfile(file, folder / file.name)
    config = {key: value for key, value in found.config.items() if key not in _DROPPED}
    (folder / "config.json").write_text(to_json(config), encoding="utf-8")
    save_tensors(
        {name: tensor.contiguous() for name, tensor in found.body.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
