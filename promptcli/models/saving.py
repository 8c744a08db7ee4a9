"""Write an encoder to a folder: as modules of sentence-transformers, else as one module that calls
promptcli.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from promptcli.backbones.adapter_files import ADAPTER_CONFIG
from promptcli.backbones.backbone_files import is_tokenizer_file, save_weights
from promptcli.backbones.checking import check_links
from promptcli.backbones.locating import own_tokenizer, weights_digest
from promptcli.backbones.names import words_only
from promptcli.backbones.provenance import OWN_TOKENIZER
from promptcli.encoder.encoder import TorchEncoder, tuned_weights
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.encoder.tensor_names import TUNED
from promptcli.errors import UsageError
from promptcli.models.card import publishable, write_card
from promptcli.models.entries import (
    BACKBONE,
    MODEL_MANIFEST,
    TENSORS,
    Entry,
    with_backbone,
    write_entry,
)
from promptcli.models.loading import entry_from, open_model
from promptcli.models.sentence_transformers_format import InexactError, write_modules
from promptcli.storage.files import delete
from promptcli.storage.folders import atomic_folder

#: the files of a backbone besides weights and tokenizer
_CONFIGS = ("config.json", ADAPTER_CONFIG)


def save(encoder: Encoder, folder: str | Path, *, force: bool = False) -> None:
    """Write an encoder into a folder that ``load`` and sentence-transformers open, completely or
    not at all.

    Args:
        encoder: Any encoder.
        folder: The folder to make.
        force: Replace an encoder in it.

    Raises:
        UsageError: The folder exists.
    """
    target = Path(folder)
    entry = entry_from(encoder, target.name)
    with atomic_folder(target, marker=MODEL_MANIFEST, force=force) as temporary:
        save_encoder(entry, open_model(encoder), temporary)
        use = f'import promptcli as pc\n\nvectors = pc.load("{target.name}").encode(sentences)'
        write_card(temporary, entry, encoder.recipe, use=use)


def save_encoder(
    entry: Entry,
    encoder: TorchEncoder,
    folder: Path,
    *,
    backbone: str | None = None,
    target: str | None = None,
) -> tuple[str | None, tuple[str, ...]]:
    """Write an encoder into an empty folder.

    ``target`` is ``to`` of ``export``, ``backbone`` the name of one left out.

    Returns why modules of sentence-transformers cannot express the recipe (None: they do), and the
    differences. One in less than float32 is made again from its entry.
    """
    if encoder.backbone.dtype != torch.float32:
        encoder = open_model(entry, device="cpu", dtype="float32")
    check_shareable(encoder)
    own = encoder.backbone
    tensors = encoder.tensors()
    #: hashes of an unchanged backbone's weights as written here and as loaded
    known: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    reason: str | None = None
    if backbone:
        reason = f"the backbone {backbone} is not in it"
    else:
        try:
            notes = write_modules(encoder, folder)
        except InexactError as error:
            reason = str(error)
            for path in folder.iterdir():
                delete(path)
            copy_backbone(own.name, own.folder, folder / BACKBONE, weights=not own.merged)
            if own.merged:
                save_weights(own, folder / BACKBONE)
        else:
            copy_backbone(own.name, own.folder, folder / OWN_TOKENIZER, weights=False)
            if not (tuned_weights(tensors) or own.merged):
                loaded = own.provenance.weights_sha256
                known = {"written": weights_digest(folder), "weights": loaded}
            tensors = tensors_outside_backbone(encoder)
    transfer = entry.transfer and TorchEncoder(entry.transfer, own, encoder.tensors()).recipe
    entry = replace(entry, recipe=encoder.recipe, transfer=transfer)  # every name written out
    placed = publishable(with_backbone(entry, backbone or ("." if reason is None else BACKBONE)))
    placed = replace(placed, tensors=tensors, fingerprint=encoder.fingerprint)
    write_entry(folder, replace(placed, target=target, backbone=known))
    return reason, notes


def check_shareable(encoder: TorchEncoder) -> None:
    """Refuse to pass on weights that a link in the backbone's folder takes from elsewhere on this
    machine.
    """
    own = encoder.backbone
    if not words_only(own.name):
        check_links(f"backbone {own.name!r}", own.folder, own.folder.glob("*.safetensors"))


def tensors_outside_backbone(encoder: TorchEncoder) -> dict[str, Tensor]:
    """Return an encoder's tensors outside the backbone."""
    return {
        name: tensor for name, tensor in encoder.tensors().items() if not name.startswith(TUNED)
    }


def copy_backbone(name: str, source: Path, target: Path, *, weights: bool = True) -> None:
    """Copy only the tokenizer of a backbone's folder, and with ``weights`` its configuration and
    weights.
    """
    if words_only(name):
        raise UsageError("word vectors are a file: share it, and use it with the model static-avg")
    files = list(filter(is_tokenizer_file, own_tokenizer(source).iterdir()))
    if weights:
        stored = [
            path
            for path in source.iterdir()
            if path.match("*.safetensors*") and path.name != TENSORS
        ]
        files += [path for path in (*map(source.joinpath, _CONFIGS), *stored) if path.is_file()]
    check_links(f"backbone {name!r}", source, files)
    target.mkdir()
    for path in files:
        shutil.copyfile(path, target / path.name)
