"""Load a backbone by its name: a shipped one, a local folder, a hub id, or a file.

Weights are read from safetensors only, and remote code is never run.
"""

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from promptcli.backbones import attention_hook
from promptcli.backbones.backbone import Backbone
from promptcli.backbones.bert import load_bert, read_bert_config
from promptcli.backbones.checking import check_loaded, check_model, check_vocabulary
from promptcli.backbones.devices import computes
from promptcli.backbones.families import FAMILIES
from promptcli.backbones.kernels import install_fast_products
from promptcli.backbones.lora import merge_lora, read_adapter
from promptcli.backbones.model_folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    ModelFolder,
    Provenance,
    base_of,
    is_word_file,
    locate,
    own_tokenizer,
    shipped_digest,
    weights_digest,
)
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.backbones.tokenizer import PieceTokenizer, shipped_tokenizer
from promptcli.backbones.transformers_loading import (
    load_model,
    load_tokenizer,
    opening,
    transformers,
)
from promptcli.backbones.word_tables import (
    WordTable,
    read_table,
    read_words,
)
from promptcli.errors import UsageError
from promptcli.storage.files import sha256

#: safetensors' name of a dtype -> torch's.
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
#: Two texts with words of many scripts, which every vocabulary should distinguish.
_PROBES = (
    "cat runs 12 , кот γάτα 猫 ねこ 고양이 قطة แมว बिल्ली",
    "dog sees 37 . пёс σκύλος 犬 いぬ 개 كلب หมา कुत्ता",
)


class WordVectors(Backbone):
    """A matrix of word vectors in float32, without layers and head."""

    is_word_table = True
    causal = False

    def __init__(self, table: WordTable, device: str | torch.device) -> None:
        self._table = table
        self._rows = torch.from_numpy(table.rows[:]).to(device)
        self.tokenizer = table.tokenizer
        self.folder = table.folder
        self.provenance = table.provenance
        self.width = self.last_width = self._rows.size(1)
        self.n_layers = self.n_heads = 0
        self.max_tokens = table.max_tokens

    @property
    def word_embeddings(self) -> Tensor:
        """The vectors, (v + 1, d); the row of a sentence without any word is zero."""
        return self._rows

    def to(self, device: torch.device) -> "WordVectors":
        return WordVectors(self._table, device)

    def run(self, batch: Batch, needs: Needs) -> HiddenStates:
        return HiddenStates(static=self._rows[batch.ids])


def load_backbone(
    name: str,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    allow_word_vectors: bool = False,
) -> Backbone:
    """Load a backbone in eval mode: a shipped name, a local folder, a hub id (``@revision`` after
    it), a GGUF file, ``glove:FILE``.

    The folder of a peft adapter is loaded as its base with the adapter merged. ``dtype`` defaults
    to float32, for causal models to the dtype of their files if the device computes in it. Word
    vectors are refused without ``allow_word_vectors``.
    """
    if is_word_file(name):
        if not allow_word_vectors:
            raise UsageError(
                f"backbone {name!r} holds word vectors and no language model; they are for the"
                " model static-avg"
            )
        return WordVectors(read_words(name), device)
    folder = locate(name)
    if folder.is_table:
        return WordVectors(read_table(folder), device)
    base = base_of(folder)
    if base is None:
        with opening(folder):
            return _open(folder, device, dtype)
    backbone = load_backbone(base, device=device, dtype=dtype)
    if backbone.merged:
        raise folder.error(
            f"is an adapter of {base!r}, an adapter itself; merge that one (peft: merge_and_unload)"
        )
    merge_lora(folder, backbone.model, read_adapter(folder, backbone.model.base_model_prefix))
    hashes = [backbone.provenance.weights_sha256]
    hashes += [sha256(folder.path / file) for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)]
    backbone.merged = True
    backbone.provenance = replace(
        backbone.provenance,
        backbone=folder.name,
        revision=folder.revision,
        weights_sha256=hashlib.sha256("".join(hashes).encode()).hexdigest(),
    )
    return backbone


def _open(folder: ModelFolder, device: str, dtype: torch.dtype | None) -> Backbone:
    """Open and check the folder of a language model; a shipped one needs no checks."""
    family = FAMILIES[folder.family]
    dtypes = check_model(folder)
    names = frozenset(dtypes)
    if folder.is_shipped:
        tokenizer = shipped_tokenizer(folder.path)
        digest = shipped_digest(folder.path)
    else:
        loaded = load_tokenizer(own_tokenizer(folder.path))
        tokenizer = PieceTokenizer(loaded, str(folder), causal=family.causal)
        digest = weights_digest(folder.path)
    if family.causal and dtype is None:
        # the dtype of most tensors
        [(commonest, _)] = Counter(dtypes.values()).most_common(1)
        stored = _DTYPES.get(commonest, torch.float32)
        dtype = stored if computes(stored, device) else None
    dtype = dtype or torch.float32
    config = read_bert_config(folder.family, folder.config)
    if config is not None:
        model, report = load_bert(config, family, folder.weight_files(), names)
    else:
        options: dict[str, Any] = {"dtype": dtype if family.causal else torch.float32}
        if family.hook:
            options["attn_implementation"] = attention_hook.register_attention()
        if family.pooler:
            pooler = ("pooler.dense.weight", "pooler.weight")
            options["add_pooling_layer"] = any(name.endswith(pooler) for name in names)
        model, report = load_model(transformers().AutoModel, folder.path, **options)
    if family.causal:  # a large model is checked faster on its device
        model.to(device)
    if not folder.is_shipped:
        rows = len(model.get_input_embeddings().weight)
        check_loaded(folder, model, report)
        check_vocabulary(folder, own_tokenizer(folder.path), tokenizer, rows)
    install_fast_products(model.eval())
    origin = Provenance(folder.name, folder.family, folder.revision, digest, tokenizer.sha256)
    backbone = Backbone(
        model=model,
        tokenizer=tokenizer,
        provenance=origin,
        folder=folder.path,
        tensor_names=names,
    )
    if not folder.is_shipped:
        _check_vectors(folder, backbone)
    if family.causal:  # its attention always goes through the hook
        backbone.require_hook("a causal model")
    model.to(device=device, dtype=dtype)
    return backbone


def _check_vectors(folder: ModelFolder, backbone: Backbone) -> None:
    """Encode two different tokens; refuse a backbone whose vectors do not distinguish them."""
    tokenizer = backbone.tokenizer
    first, second = tokenizer.encode(_PROBES)
    specials = tokenizer.specials
    first_only = [token for token in first if token not in {*second, *specials}]
    second_only = [token for token in second if token not in {*first, *specials}]
    if not first_only or not second_only:
        raise folder.error(
            "has no word of any script in its vocabulary: different texts look the same to it"
        )
    ids = torch.tensor(
        [[*tokenizer.start, token, *tokenizer.end] for token in (first_only[0], second_only[0])],
        device=backbone.device,
    )
    batch = Batch(ids, torch.full((2,), ids.size(1), device=backbone.device))
    last = backbone.n_layers
    with torch.inference_mode():
        states = backbone.run(batch, Needs(layers=frozenset({last}))).layers[last].mean(1)
    if not torch.isfinite(states).all():
        raise folder.error("computes vectors that are not finite: its weights are broken")
    if (states[0] - states[1]).abs().max() <= 1e-6 * states.abs().max():
        raise folder.error("computes the same vector for different texts: its weights are broken")
