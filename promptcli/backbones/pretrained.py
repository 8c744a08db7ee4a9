"""Pre-trained language models: shipped, a local folder, or a hub id.

Safetensors only, no remote code.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from promptcli.backbones import attention_hook, checking
from promptcli.backbones.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, base_of
from promptcli.backbones.backbone import Backbone
from promptcli.backbones.bert import load_bert, read_bert_config
from promptcli.backbones.checking import opening
from promptcli.backbones.devices import computes, with_fast_products
from promptcli.backbones.families import FAMILIES, family_of
from promptcli.backbones.locating import (
    BACKBONE_MARKS,
    SHIPPED,
    known_digest,
    locate,
    weight_files,
    weights_digest,
)
from promptcli.backbones.lora import merge_lora, read_adapter
from promptcli.backbones.provenance import OWN_TOKENIZER, Provenance
from promptcli.backbones.published_backbones import Shape
from promptcli.backbones.states import Batch, Needs
from promptcli.backbones.tokenizer import PieceTokenizer, read_wordpiece
from promptcli.backbones.word_tables import shipped_tokenizer
from promptcli.errors import NotFoundError, UsageError, unknown
from promptcli.notes import keyword, without_network
from promptcli.storage.files import sha256

_ENCODER = "mini"  # the shipped encoder, trained on the shipped backbone

# as safetensors writes them
_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
#: Words of many scripts, the same number in each text: a vocabulary that cannot distinguish them
#: knows no language.
VOCABULARY_PROBES = (
    "cat runs 12 , кот γάτα 猫 ねこ 고양이 قطة แมว बिल्ली",
    "dog sees 37 . пёс σκύλος 犬 いぬ 개 كلب หมา कुत्ता",
)


def load_pretrained(
    name: str, *, device: str = "cpu", dtype: torch.dtype | None = None
) -> Backbone:
    """Load a pre-trained language model in eval mode.

    A folder of a peft adapter is its base with the adapter added.
    """
    if name == _ENCODER:
        raise NotFoundError(
            f"{name} is an encoder, for {keyword('model')}; the language model under it:"
            f" {keyword('backbone')} {name}-bert"
        )
    folder, revision = locate(name, one_of=(*BACKBONE_MARKS, "tokenizer.json"))
    if checking.is_table(folder):
        from promptcli.backbones.word_vectors import load_table

        return load_table(name, folder, revision, device=device)
    if not any((folder / mark).is_file() for mark in BACKBONE_MARKS):
        raise NotFoundError(f"folder {name!r} has no {BACKBONE_MARKS[0]}: not a model folder")
    what = f"backbone {name!r}"
    if (base := _base(what, folder)) is not None:
        backbone = load_pretrained(base, device=device, dtype=dtype)
        return _with_adapter(backbone, name, folder, revision)
    with opening(what):
        config = checking.read_config(what, folder)
        family = _known_family(what, config)
        weights = weight_files(what, folder)
        checking.check_model_folder(what, folder, config)
        names = checking.check_model_files(what, weights, config)
        causal = FAMILIES[family].causal
        tokens = folder / OWN_TOKENIZER
        if not tokens.is_dir():
            tokens = folder
        pieces = _read_tokenizer(what, tokens, family, config)
        if causal and dtype is None:
            dtype = _stored_dtype(weights, device)
        if (plain := read_bert_config(family, config)) is not None:
            model, info = load_bert(plain, FAMILIES[family], weights, names)
        else:
            model, info = _load_body(
                folder, family, names, dtype if causal and dtype else torch.float32
            )
        if causal:  # large: probed on its own device
            model.to(device)
        checking.check_loaded(what, model, info)
        checking.check_vocabulary(what, tokens, pieces, len(model.get_input_embeddings().weight))
        provenance = Provenance(
            name, family, revision, known_digest(folder, weights_digest(folder)), pieces.sha256
        )
        backbone = Backbone(
            model=with_fast_products(model.eval()),
            tokenizer=pieces,
            provenance=provenance,
            folder=folder,
            tensor_names=names,
        )
        check_probe(what, backbone)
        if causal:  # its attention is always the hook's
            backbone.require_hook("a causal model")
        model.to(device=device, dtype=dtype or torch.float32)
    return backbone


def _read_tokenizer(
    what: str, folder: Path, family: str, config: Mapping[str, Any]
) -> PieceTokenizer:
    if folder in SHIPPED.values():
        return shipped_tokenizer(folder)
    tokenizer: Any = None
    if family == "bert":
        tokenizer = read_wordpiece(folder, config)
    if tokenizer is None:
        tokenizer = checking.load_tokenizer(folder)
    return PieceTokenizer(tokenizer, what, causal=FAMILIES[family].causal)


def _base(what: str, folder: Path) -> str | None:
    """Return the backbone of a folder's adapter, None if it has no adapter.

    An adapter of an adapter is refused.
    """
    base = base_of(what, folder)
    if base is not None and base_of(f"backbone {base!r}", locate(base)[0]) is not None:
        raise UsageError(
            f"{what} is an adapter of {base!r}, an adapter itself; merge that one (peft:"
            " merge_and_unload)"
        )
    return base


def _with_adapter(backbone: Backbone, name: str, folder: Path, revision: str | None) -> Backbone:
    what = f"backbone {name!r}"
    merge_lora(what, backbone.model, read_adapter(what, folder, backbone.model.base_model_prefix))
    both = (
        backbone.provenance.weights_sha256
        + sha256(folder / ADAPTER_CONFIG)
        + sha256(folder / ADAPTER_WEIGHTS)
    )
    digest = hashlib.sha256(both.encode()).hexdigest()
    backbone.merged = True
    backbone.provenance = replace(
        backbone.provenance, backbone=name, revision=revision, weights_sha256=digest
    )
    return backbone


def shape_of(name: str) -> Shape:
    """Return the shape of a backbone, by its config.json alone; an adapter has that of its base."""
    what = f"backbone {name!r}"
    with without_network():
        folder, _ = locate(name)
        base = _base(what, folder)
    if base is not None:
        return shape_of(base)
    config = checking.read_config(what, folder)
    family = _known_family(what, config)
    width = _size(config, "hidden_size", "d_model", "n_embd", "dim")
    if width is None:
        raise UsageError(f"config.json of {what} names no width")
    return Shape(
        family,
        width,
        layers=_size(config, "num_hidden_layers", "n_layer", "n_layers"),
        heads=_size(config, "num_attention_heads", "n_head", "n_heads"),
        vocabulary=_size(config, "vocab_size"),
    )


def _size(config: dict[str, Any], *names: str) -> int | None:
    """Return the first of these fields that is a whole number."""
    values = [config.get(name) for name in names]
    return next((value for value in values if isinstance(value, int)), None)


def _known_family(what: str, config: dict[str, Any]) -> str:
    family = family_of(config)
    if family is None:
        raise UsageError(f"config.json of {what} is not a JSON object with a model_type")
    if family not in FAMILIES:
        raise unknown(f"family of {what}", family, FAMILIES)
    return family


def _stored_dtype(weights: Sequence[Path], device: str) -> torch.dtype:
    """Return the dtype of most tensors of the files if the device computes in it, else float32."""
    dtypes: Counter[str] = Counter()
    for path in weights:
        with safe_open(path, framework="pt") as file:
            dtypes.update(file.get_slice(name).get_dtype() for name in file.keys())
    for name, _ in dtypes.most_common(1):
        stored = _DTYPES.get(name, torch.float32)
        if computes(stored, device):
            return stored
    return torch.float32


def _load_body(
    folder: Path, family: str, names: frozenset[str], dtype: torch.dtype
) -> tuple[Any, dict[str, Any]]:
    """Return the encoder without heads, and transformers' report of its tensors.

    A pooler only if it has weights.
    """
    options: dict[str, Any] = {"dtype": dtype}
    if FAMILIES[family].hook:
        options["attn_implementation"] = attention_hook.register_attention()
    if FAMILIES[family].pooler:
        options["add_pooling_layer"] = any(
            name.endswith(("pooler.dense.weight", "pooler.weight")) for name in names
        )
    return checking.load_model(checking.transformers().AutoModel, folder, **options)


def check_probe(what: str, backbone: Backbone) -> None:
    """Compute two different texts; refuse a backbone that does not tell them apart."""
    tokenizer = backbone.tokenizer
    first, second = tokenizer.encode(VOCABULARY_PROBES)
    pair = []
    for text, other in ((first, second), (second, first)):
        shared = {*other, *tokenizer.specials}
        pair += [token for token in text if token not in shared][:1]
    if len(pair) < 2:
        raise UsageError(
            f"the vocabulary of {what} has no word of any script: different texts look the same"
            " to it"
        )
    ids = torch.tensor(
        [[*tokenizer.start, token, *tokenizer.end] for token in pair], device=backbone.device
    )
    batch = Batch(ids, torch.full((2,), ids.size(1), device=backbone.device))
    with torch.inference_mode():
        states = (
            backbone.run(batch, Needs(layers=frozenset({backbone.n_layers})))
            .layers[backbone.n_layers]
            .mean(1)
        )
    if not torch.isfinite(states).all():
        raise UsageError(f"{what} computes vectors that are not finite: its weights are broken")
    if (states[0] - states[1]).abs().max() <= 1e-6 * states.abs().max():
        raise UsageError(
            f"{what} computes the same vector for different texts: its weights are broken"
        )
