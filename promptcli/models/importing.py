"""Import a model trained elsewhere into the registry: recognised by ``foreign_formats``, stored
with its backbone.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from promptcli.backbones.adapter_files import ADAPTER_CONFIG, base_of
from promptcli.backbones.checking import check_links, opening
from promptcli.backbones.convert import convert_apart
from promptcli.backbones.locating import FOLDER_FILES, locate, weight_files
from promptcli.errors import UsageError
from promptcli.models.entries import BACKBONE, Entry, with_backbone
from promptcli.models.exporting import copy_backbone
from promptcli.models.foreign_formats import read_model_folder
from promptcli.models.loading import entry_from, open_model, open_registry
from promptcli.models.parity import PROBES
from promptcli.notes import note, without_network
from promptcli.storage.files import is_below


def import_model(
    source: str | Path,
    name: str,
    *,
    convert: bool = False,
    offline: bool = False,
    force: bool = False,
    **changes: str | int | bool | Sequence[str] | None,
) -> Entry:
    """Import a model trained elsewhere into the registry; its recipe is recognised from its files.

    Supported: checkpoints of SimCSE, PromptBERT and PromCSE, models of sentence-transformers and
    model2vec, peft's prefix tuning and LoRA, plain language models.

    Args:
        source: A folder, or a hub id, with @REVISION after it.
        name: Name of the model in the registry.
        convert: Convert pickled weights to safetensors, by a process that reads only tensors.
        offline: Never use the network.
        force: Replace a model of that name.
        changes: Fields of the recipe that replace the recognised ones, e.g. ``pooling="last/avg"``.

    Returns:
        The saved entry; the kind of the model is in its ``provenance``, under ``imported``.

    Raises:
        NotFoundError: No such folder or hub id.
        UsageError: The model is not supported.
    """
    source = str(source)
    registry = open_registry()
    registry.check_free(name, force=force)
    with without_network(offline), registry.new_folder() as temporary:
        files = (*FOLDER_FILES, "*.bin") if convert else FOLDER_FILES
        path, revision = locate(source, files=files)
        check_links(f"model {source!r}", path, path.rglob("*"))
        read = path
        if convert and not list(path.rglob("*.safetensors")):
            note(
                f"a separate process converts {source}'s pickles to safetensors; it reads only"
                " tensors"
            )
            read = _convert(path, temporary / "converted")
        with opening(f"model {source!r}"):
            entry = read_model_folder(source, read)
        kind = str(entry.provenance.get("kind", "promptcli folder"))
        if "backbone" in changes:
            raise UsageError(
                f"{source} ({kind}) has its own, or names it in adapter_config.json",
                parameter="backbone",
            )
        if "prompt" in changes:
            changes = {"period": None, **changes}
        entry = replace(entry, recipe=entry.recipe.replace(**changes))
        backbone = _copy(entry.recipe.backbone, source, path, read, temporary / BACKBONE)
        if backbone is not None:
            entry = with_backbone(entry, str(backbone))
        elif entry.recipe.backbone == source and revision:
            entry = with_backbone(entry, f"{source.partition('@')[0]}@{revision}")
        encoder = open_model(entry, device="cpu", dtype="float32")
        encoder.encode(PROBES[:2])
        opened = entry_from(encoder)
        imported = {"source": source, "revision": revision, "kind": kind}
        entry = replace(
            entry,
            name=name,
            recipe=opened.recipe.replace(backbone=entry.recipe.backbone),
            tensors=opened.tensors,
            provenance={**opened.provenance, "imported": imported},
        )
        return registry.save(entry, force=force)


def _convert(path: Path, folder: Path) -> Path:
    for file in sorted(path.rglob("*")):
        target = folder / file.relative_to(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in (".json", ".txt", ".model"):
            shutil.copyfile(file, target)
        elif file.suffix == ".bin":
            stem = "adapter_model" if file.stem == "adapter_model" else "model"
            convert_apart(file, target.with_name(f"{stem}.safetensors"))
    return folder


def _copy(backbone: str, source: str, path: Path, read: Path, target: Path) -> Path | None:
    """Copy a backbone that is inside the folder and return the copy.

    None if it is named by its hub id.
    """
    folder = read if backbone == source else Path(backbone)
    on_hub = folder == path and not Path(source).is_dir()
    if on_hub or not is_below(folder, read):
        return None
    if not (folder / ADAPTER_CONFIG).is_file():
        weight_files(f"model {source!r}", folder)
    copy_backbone(source, folder, target)
    base = base_of(f"model {source!r}", folder)
    if base is not None and Path(base).is_relative_to(folder):
        copied = target / Path(base).relative_to(folder)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copy_backbone(source, Path(base), copied)
    return target
