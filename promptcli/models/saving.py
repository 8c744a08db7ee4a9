"""Write an encoder into a folder that ``load`` and sentence-transformers open.

For sentence-transformers the folder has standard modules, or if these cannot express the recipe, a
module that calls promptcli.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from promptcli.backbones.backbone_files import is_tokenizer_file, save_weights
from promptcli.backbones.model_folder import (
    ADAPTER_CONFIG,
    CONFIG,
    OWN_TOKENIZER,
    ModelFolder,
    is_word_file,
    own_tokenizer,
    weights_digest,
)
from promptcli.encoder.encoder import TorchEncoder, tuned_weights
from promptcli.encoder.sentence_encoder import TUNED
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
from promptcli.models.loading import Model, entry_from_encoder, open_encoder, open_torch_encoder
from promptcli.models.sentence_transformers_format import InexactError, write_modules
from promptcli.storage.files import atomic_folder, delete_path


def save(encoder: Model, folder: str | Path, *, force: bool = False) -> None:
    """Write an encoder into a folder that ``load`` and sentence-transformers open, completely or
    not at all.

    Args:
        encoder: An encoder, or what ``load`` takes.
        folder: The folder to make.
        force: Replace an encoder in it.

    Raises:
        UsageError: The folder exists.
    """
    target = Path(folder)
    opened = open_encoder(encoder)
    entry = entry_from_encoder(opened, target.name)
    with atomic_folder(target, marker=MODEL_MANIFEST, force=force) as temporary:
        save_encoder(entry, open_torch_encoder(opened), temporary)
        use = f'import promptcli as pc\n\nvectors = pc.load("{target.name}").encode(sentences)'
        write_card(temporary, entry, opened.recipe, use=use)


def save_encoder(
    entry: Entry,
    encoder: TorchEncoder,
    folder: Path,
    *,
    named_backbone: str | None = None,
    target: str | None = None,
) -> tuple[str | None, tuple[str, ...]]:
    """Write an encoder into an empty folder; if it computes below float32, it is first opened again
    from its entry.

    Args:
        entry: The encoder's entry.
        encoder: The encoder.
        folder: The folder.
        named_backbone: Name of the backbone, which is then not included; None: it is included.
        target: ``to`` of ``export``.

    Returns:
        The reason why modules of sentence-transformers cannot express the recipe (None: they can),
        and notes about differences of the modules' vectors.
    """
    if encoder.backbone.dtype != torch.float32:
        encoder = open_torch_encoder(entry, device="cpu", dtype="float32")
    check_shareable(encoder)
    backbone = encoder.backbone
    source = ModelFolder(backbone.name, backbone.folder)
    tensors = encoder.tensors()
    #: hashes of an unchanged backbone's weights, as written here and as loaded
    hashes: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    reason: str | None = None
    if named_backbone is not None:
        place = named_backbone
        reason = f"the backbone {named_backbone} is not included"
    else:
        try:
            notes = write_modules(encoder, folder)
        except InexactError as error:
            place = BACKBONE
            reason = str(error)
            for path in folder.iterdir():
                delete_path(path)
            copy_backbone(source, folder / BACKBONE, weights=not backbone.merged)
            if backbone.merged:
                save_weights(backbone, folder / BACKBONE)
        else:
            place = "."
            copy_backbone(source, folder / OWN_TOKENIZER, weights=False)
            if not (tuned_weights(tensors) or backbone.merged):
                loaded = backbone.provenance.weights_sha256
                hashes = {"written": weights_digest(folder), "weights": loaded}
            tensors = tensors_outside_backbone(encoder)
    transfer = entry.transfer and TorchEncoder(entry.transfer, backbone, encoder.tensors()).recipe
    # in the encoder's recipes every name and default is written out
    entry = publishable(
        with_backbone(replace(entry, recipe=encoder.recipe, transfer=transfer), place)
    )
    entry = replace(entry, tensors=tensors, fingerprint=encoder.fingerprint)
    write_entry(folder, replace(entry, target=target, backbone=hashes))
    return reason, notes


def check_shareable(encoder: TorchEncoder) -> None:
    """Refuse to copy weights if the backbone's folder has a link to a file elsewhere on this
    machine.
    """
    backbone = encoder.backbone
    if not is_word_file(backbone.name):
        folder = ModelFolder(backbone.name, backbone.folder)
        folder.check_links(folder.path.glob("*.safetensors"))


def tensors_outside_backbone(encoder: TorchEncoder) -> dict[str, Tensor]:
    """Return an encoder's tensors without those of a tuned backbone."""
    return {
        name: tensor for name, tensor in encoder.tensors().items() if not name.startswith(TUNED)
    }


def copy_backbone(source: ModelFolder, target: Path, *, weights: bool = True) -> None:
    """Copy the tokenizer of a backbone's folder, and with ``weights`` also its configuration and
    weights.
    """
    if is_word_file(source.name):
        raise UsageError("word vectors are a file: share it, and use it with the model static-avg")
    files = list(filter(is_tokenizer_file, own_tokenizer(source.path).iterdir()))
    if weights:
        for path in source.path.iterdir():
            is_weights = path.match("*.safetensors*") and path.name != TENSORS
            if is_weights or path.name in (CONFIG, ADAPTER_CONFIG):
                files.append(path)
    source.check_links(files)
    target.mkdir()
    for path in files:
        shutil.copyfile(path, target / path.name)


def open_exact(entry: Entry) -> TorchEncoder:
    """Return an entry's encoder in float32 on the CPU, on its original backbone."""
    encoder = open_torch_encoder(entry, device="cpu", dtype="float32")
    stored = entry.provenance.get("weights_sha256")
    loaded = encoder.backbone.provenance.weights_sha256
    if entry.tensors and stored and stored != loaded:
        weights = f"{entry.recipe.backbone!r} (sha256 {str(stored)[:12]}, now {loaded[:12]})"
        raise UsageError(
            f"model {entry.name!r} was made with other weights of {weights}; restore those"
        )
    check_shareable(encoder)
    return encoder
