"""Export an encoder to a folder that another program loads: the table of targets."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from promptcli.backbones.checking import opening
from promptcli.backbones.saving import save_tokenizer, save_weights, tokenizer_definition
from promptcli.encoder.encoder import Encoder, tuned_weights
from promptcli.errors import UsageError, lacking, look_up
from promptcli.models import forms
from promptcli.models.card import public, write_card
from promptcli.models.entries import MANIFEST, MODULES, OUR_MODULE, TENSORS, Entry, with_backbone, write_manifest
from promptcli.models.forms import Exported, InexactError
from promptcli.models.loading import open_model
from promptcli.models.onnx import export_onnx, export_openvino
from promptcli.models.reading import read_folder
from promptcli.models.saving import save_encoder, untuned
from promptcli.notes import offline
from promptcli.storage.folders import atomic_folder
from promptcli.storage.tensors import save_tensors


def export_sentence_transformers(entry: Entry, encoder: Encoder, folder: Path) -> Exported:
    """Fill a folder that ``SentenceTransformer(folder)`` loads: a table of words, its modules, or our module."""
    load = 'SentenceTransformer("FOLDER")'
    reason, probes = None, forms.uncut(encoder)
    try:
        notes = forms.write_static(encoder, folder)
    except InexactError:
        reason, notes, probes = save_encoder(entry, encoder, folder, target="sentence-transformers")
    if reason is not None:
        load = 'SentenceTransformer("FOLDER", trust_remote_code=True)'
        notes = (
            f"no configuration holds this recipe exactly: {reason}",
            "loading needs promptcli installed, and trust_remote_code=True; without the flag:"
            " as_sentence_transformer(encoder) of promptcli.models.st_module",
        )
    loaded, library = load.replace('"FOLDER"', "folder"), "sentence-transformers"
    use = f"from sentence_transformers import SentenceTransformer\n\nvectors = {loaded}.encode(sentences)"
    write_card(folder, entry, encoder.recipe, use=use, library=library)
    if lacking("sentence_transformers"):
        missing = "vectors were not compared: sentence-transformers is not installed (pip install 'promptcli[st]')"
        return Exported(load, notes=(*notes, missing))
    cosine = forms.check_parity(encoder.encode(probes), _encode_with_st(folder, list(probes)), library)
    return Exported(load, library, cosine, notes)


def _encode_with_st(folder: Path, probes: list[str]) -> np.ndarray:
    import sentence_transformers

    with opening("the exported folder"):
        if (folder / MODULES).read_text(encoding="utf-8") == OUR_MODULE:
            from promptcli.models.st_module import as_sentence_transformer

            with offline():
                encoder = open_model(read_folder(str(folder), folder), device="cpu", dtype="stored")
            model = as_sentence_transformer(encoder)
        else:
            model = sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        vectors: np.ndarray = model.encode(probes, show_progress_bar=False)
    return vectors


def export_merged(entry: Entry, encoder: Encoder, folder: Path) -> Exported:
    """Fill a folder that ``AutoModel.from_pretrained(folder)`` loads, and ``--backbone folder``."""
    if not tuned_weights(encoder.tensors()):
        unchanged = f"the backbone of {entry.name!r} is {encoder.recipe.backbone!r}, unchanged"
        raise UsageError(f"{unchanged}: there is nothing to merge; `to` onnx holds the complete encoder")
    save_weights(encoder.backbone, folder)
    definition = tokenizer_definition(encoder.backbone)
    save_tokenizer(encoder.backbone, folder, definition, encoder.backbone.max_tokens)
    use = "from transformers import AutoModel\n\nmodel = AutoModel.from_pretrained(folder)"
    write_card(folder, entry, encoder.recipe, use=use, library="transformers")
    notes = [f"the encoder is its recipe on this backbone: {encoder.recipe.prompt} {encoder.recipe.pooling}"]
    if others := untuned(encoder):
        save_tensors(others, folder / TENSORS)
        notes.append(f"{TENSORS} has the tensors that are not part of a plain checkpoint: {', '.join(sorted(others))}")
    return Exported('AutoModel.from_pretrained("FOLDER")', notes=tuple(notes), backbone=".")


TARGETS: dict[str, Callable[..., Exported]] = {
    "sentence-transformers": export_sentence_transformers,
    "onnx": export_onnx,
    "openvino": export_openvino,
    "merged": export_merged,
}


def export(entry: Entry, to: str, folder: Path, *, int8: bool = False, force: bool = False) -> Exported:
    """Write an encoder for a program of ``TARGETS``, completely or not at all."""
    fill = look_up("target", to, TARGETS)
    if int8:
        if to != "onnx":
            raise UsageError("`int8` is for `to` onnx")
        fill = partial(export_onnx, int8=True)
    with atomic_folder(folder, marker=MANIFEST, force=force) as temporary:
        encoder = open_whole(entry)
        exported = fill(entry, encoder, temporary)
        if not (temporary / MANIFEST).is_file():
            placed = with_backbone(replace(entry, recipe=encoder.recipe), exported.backbone or encoder.recipe.backbone)
            write_manifest(temporary, replace(public(placed), fingerprint=encoder.fingerprint, target=to, backbone={}))
        size = sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file())
    load = exported.load.replace("FOLDER", str(folder))
    return replace(exported, load=load, target=to, folder=folder, bytes=size)


def open_whole(entry: Entry) -> Encoder:
    """Return an entry's encoder in float32 on the processor, on the backbone it was made with."""
    encoder = open_model(entry, device="cpu", dtype="float32")
    stored, loaded = entry.provenance.get("weights_sha256"), encoder.backbone.provenance.weights_sha256
    if entry.tensors and stored and stored != loaded:
        weights = f"{entry.recipe.backbone!r} (sha256 {str(stored)[:12]}, now {loaded[:12]})"
        raise UsageError(f"model {entry.name!r} was made with other weights of {weights}; put those back")
    return encoder
