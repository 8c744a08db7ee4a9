"""Import a model that was trained elsewhere into the registry."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from promptcli.backbones.convert import convert_apart
from promptcli.backbones.model_folder import (
    ADAPTER_CONFIG,
    FOLDER_FILES,
    ModelFolder,
    base_of,
    locate,
)
from promptcli.backbones.transformers_loading import opening
from promptcli.errors import UsageError
from promptcli.models.entries import BACKBONE, Entry, with_backbone
from promptcli.models.foreign_formats import read_model
from promptcli.models.loading import entry_from_encoder, open_registry, open_torch_encoder
from promptcli.models.parity import PROBES
from promptcli.models.saving import copy_backbone
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
        source: A folder, or a hub id, which may end with @REVISION.
        name: Name of the model in the registry.
        convert: Convert pickled weights to safetensors, in a process that reads only tensors.
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
        folder = locate(source, files=files)
        folder.check_links(folder.path.rglob("*"))
        readable = folder
        if convert and not list(folder.path.rglob("*.safetensors")):
            note(
                f"a separate process converts {source}'s pickles to safetensors; it reads only"
                " tensors"
            )
            readable = replace(folder, path=temporary / "converted")
            _convert(folder.path, readable.path)
        with opening(folder):
            entry = read_model(readable)
        kind = str(entry.provenance.get("kind", "promptcli folder"))
        if "backbone" in changes:
            raise UsageError(
                f"must be left out: {source} ({kind}) brings its own, or names it in"
                " adapter_config.json",
                parameter="backbone",
            )
        if "prompt" in changes:
            changes = {"period": None, **changes}
        entry = replace(entry, recipe=entry.recipe.replace(**changes))
        is_named = entry.recipe.backbone == source and readable is folder
        if is_named and folder.revision:
            entry = with_backbone(entry, f"{source.partition('@')[0]}@{folder.revision}")
        elif not is_named or Path(source).is_dir():
            entry = _take_backbone(entry, readable, temporary / BACKBONE)
        encoder = open_torch_encoder(entry, device="cpu", dtype="float32")
        encoder.encode(PROBES[:2])
        opened = entry_from_encoder(encoder)
        imported = {"source": source, "revision": folder.revision, "kind": kind}
        entry = replace(
            entry,
            name=name,
            recipe=opened.recipe.replace(backbone=entry.recipe.backbone),
            tensors=opened.tensors,
            provenance={**opened.provenance, "imported": imported},
        )
        return registry.save(entry, force=force)


def _convert(source: Path, folder: Path) -> None:
    """Write the settings of a model folder, and its pickled weights as safetensors."""
    for file in sorted(source.rglob("*")):
        target = folder / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in (".json", ".txt", ".model"):
            shutil.copyfile(file, target)
        elif file.suffix == ".bin":
            stem = "adapter_model" if file.stem == "adapter_model" else "model"
            convert_apart(file, target.with_name(f"{stem}.safetensors"))


def _take_backbone(entry: Entry, folder: ModelFolder, target: Path) -> Entry:
    """Return an entry on a copy of its backbone, or of the adapter with its base; the entry itself
    if the backbone is not inside the folder.
    """
    path = Path(entry.recipe.backbone)
    if entry.recipe.backbone == folder.name:
        path = folder.path
    if not is_below(path, folder.path):
        return entry
    backbone = ModelFolder(folder.name, path)
    if not backbone.has(ADAPTER_CONFIG):
        backbone.weight_files()
    copy_backbone(backbone, target)
    base = base_of(backbone)
    if base is not None and Path(base).is_relative_to(backbone.path):
        copied = target / Path(base).relative_to(backbone.path)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copy_backbone(ModelFolder(base, Path(base)), copied)
    return with_backbone(entry, str(target))
