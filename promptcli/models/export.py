"""Export an encoder to a folder that another program loads: the table of targets."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from promptcli.backbones.checking import opening
from promptcli.backbones.lora import ALPHA, is_lora, is_transposed
from promptcli.backbones.saving import save_tokenizer, save_weights, tokenizer_definition
from promptcli.encoder.encoder import Encoder, tuned_weights
from promptcli.encoder.prompts.deep_prefix import TENSOR as PREFIX
from promptcli.encoder.prompts.deep_prefix import DeepPrefix, to_prompt_embeddings
from promptcli.encoder.prompts.soft_template import SoftTemplate
from promptcli.errors import UsageError, lacking, look_up
from promptcli.models import forms
from promptcli.models.card import is_hub_id, public, write_card
from promptcli.models.entries import MANIFEST, MODULES, OUR_MODULE, TENSORS, Entry, with_backbone, write_manifest
from promptcli.models.forms import Exported, InexactError, Source
from promptcli.models.loading import open_model
from promptcli.models.onnx import export_onnx, export_openvino
from promptcli.models.reading import read_folder
from promptcli.models.saving import save_encoder, untuned
from promptcli.notes import offline
from promptcli.storage.documents import to_json
from promptcli.storage.folders import atomic_folder
from promptcli.storage.tensors import save_tensors

CONFIG, WEIGHTS, PROMPT = "adapter_config.json", "adapter_model.safetensors", "prompt_embeddings"


def export_peft(source: Source, folder: Path) -> Exported:
    """Fill a folder that ``PeftModel.from_pretrained(base, folder)`` loads."""
    encoder, entry = source.encoder, source.entry
    lora = tuned_weights(encoder.tensors())
    kind, tensors = _lora(encoder, lora) if is_lora(lora) else _prefix(encoder)
    base, revision = _base(source)
    config = {
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": base,
        "revision": revision,
        "inference_mode": True,
        **kind,
    }
    (folder / CONFIG).write_text(to_json(config), encoding="utf-8")
    save_tensors(tensors, folder / WEIGHTS)
    use = "model = PeftModel.from_pretrained(AutoModel.from_pretrained(base), folder)"
    others = {name: value for name, value in untuned(encoder).items() if name != PREFIX}
    if others:  # peft does not read them
        save_tensors(others, folder / TENSORS)
    recipe, tags = encoder.recipe.replace(backbone=base), [f"base_model:adapter:{base}"]
    write_card(folder, entry, recipe, use=use, library="peft", tags=tags, relation="adapter")
    before = [encoder.prompt.spec] if is_lora(lora) else []
    rest = [*before, encoder.pooling.spec, *(transform.spec for transform in encoder.transforms)]
    return Exported(
        f'PeftModel.from_pretrained(AutoModel.from_pretrained("{base}"), "FOLDER")',
        notes=(f"peft holds only the adapter; its user has to apply: {' then '.join(rest)}",),
        backbone="." if is_lora(lora) else f"{base}@{revision}" if revision else base,
    )


def _prefix(encoder: Encoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    prompt, backbone = encoder.prompt, encoder.backbone
    if isinstance(prompt, SoftTemplate):
        raise InexactError(
            "peft has vectors before [CLS] only, not in a template; `to` sentence-transformers holds them"
        )
    if not isinstance(prompt, DeepPrefix):
        lacks = f"prompt {encoder.recipe.prompt!r} has no learned keys and values, and the backbone no LoRA"
        raise InexactError(f"{lacks}; `to` sentence-transformers and onnx hold the encoder, merged a tuned backbone")
    config = {
        "peft_type": "PREFIX_TUNING",
        "num_virtual_tokens": prompt.length,
        "token_dim": backbone.width,
        "num_transformer_submodules": 1,
        "num_attention_heads": backbone.n_heads,
        "num_layers": backbone.n_layers,
        "encoder_hidden_size": backbone.width,
        "prefix_projection": False,
    }
    return config, {PROMPT: to_prompt_embeddings(prompt.numbers.cpu())}


def _lora(encoder: Encoder, tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    alpha = float(tensors[ALPHA])
    stored = {
        f"base_model.model.{name.replace('.default.weight', '.weight')}": tensor
        for name, tensor in tensors.items()
        if name != ALPHA
    }
    modules = sorted({name.partition(".lora_")[0] for name in tensors if name != ALPHA})
    ranks = {tensor.size(0) for name, tensor in tensors.items() if ".lora_A." in name}
    config = {
        "peft_type": "LORA",
        "r": ranks.pop(),
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "target_modules": modules,
        "fan_in_fan_out": any(map(is_transposed, map(encoder.backbone.model.get_submodule, modules))),
        "bias": "none",
        "lora_dropout": 0.0,
    }
    return config, stored


def _base(source: Source) -> tuple[str, str | None]:
    """Return the hub id and the revision of the base; never a local path."""
    backbone = source.encoder.backbone
    named = source.base or backbone.name
    if source.base is None and not is_hub_id(named):
        raise UsageError(f"the base {backbone.name!r} is not a model of the hub; name it: `base` OWNER/NAME[@REVISION]")
    name, _, revision = named.partition("@")
    return name, revision or (None if source.base else backbone.provenance.revision)


def export_sentence_transformers(source: Source, folder: Path) -> Exported:
    """Fill a folder that ``SentenceTransformer(folder)`` loads: a table of words, its modules, or our module."""
    encoder, entry, load = source.encoder, source.entry, 'SentenceTransformer("FOLDER")'
    reason, probes = None, forms.uncut(encoder)
    try:
        table = forms.static_table(encoder)
        forms.write_static(folder, table.definition, {"embedding.weight": table.rows}, path="")
        notes = table.notes
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
    write_card(folder, entry, encoder.recipe, use=use, library=library, tags=[library])
    if lacking("sentence_transformers"):
        missing = "vectors were not compared: sentence-transformers is not installed (pip install 'promptcli[st]')"
        return Exported(load, notes=(*notes, missing))
    cosine = forms.check_parity(encoder.encode(probes), _encode_with_st(folder, list(probes)), library)
    return Exported(load, library, cosine, notes)


def _encode_with_st(folder: Path, probes: list[str]) -> np.ndarray:
    """Return sentence-transformers' vectors; our module is imported, never run from the folder."""
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


def export_merged(source: Source, folder: Path) -> Exported:
    """Fill a folder that ``AutoModel.from_pretrained(folder)`` loads, and ``--backbone folder``."""
    encoder, entry = source.encoder, source.entry
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


TARGETS: dict[str, forms.Target] = {
    "sentence-transformers": export_sentence_transformers,
    "onnx": export_onnx,
    "openvino": export_openvino,
    "model2vec": forms.export_model2vec,
    "peft": export_peft,
    "merged": export_merged,
}


def export(
    entry: Entry, to: str, folder: Path, *, base: str | None = None, int8: bool = False, force: bool = False
) -> Exported:
    """Write an encoder for a program of ``TARGETS``, completely or not at all."""
    fill = look_up("target", to, TARGETS)
    with atomic_folder(folder, marker=MANIFEST, force=force) as temporary:
        encoder = open_whole(entry)
        exported = fill(Source(entry, encoder, base, int8), temporary)
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
