"""A static recipe as one table, a row per token, transforms folded in: for model2vec, StaticEmbedding and graphs.

An affine map of a mean is the mean of the mapped rows. The special tokens and the template around every sentence become
one row, chosen by an added token.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptcli.backbones.checking import opening
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.prompts import Prompt
from promptcli.models.card import write_card
from promptcli.models.dense import affine_of
from promptcli.models.target import PROBES, TYPED, Exported, InexactError, Source, check_parity, lacking, uncut
from promptcli.models.tokenization import AROUND, add_tokens, token_ids, with_template
from promptcli.recipe import split_spec
from promptcli.storage.documents import to_json
from promptcli.storage.tensors import save_tensors

#: Weights -> how many of the template's first and last tokens are left out.
_OUTSIDE = {"avg": 0, "unbiased": 1}


@dataclass(frozen=True)
class StaticTable:
    """Rows and the tokenizer that chooses them."""

    rows: Tensor  #: (v, d')
    definition: dict[str, Any]  #: ``tokenizer.json``
    notes: tuple[str, ...]


def static_table(encoder: Encoder) -> StaticTable:
    """Return the table of an encoder."""
    states, _, weights = encoder.pooling.spec.partition("/")
    kind = split_spec(weights)[0]
    if states not in ("static", "mlm-head") or kind not in _OUTSIDE:
        raise InexactError(
            f"pooling {encoder.pooling.spec!r} does not average static rows; a table holds static/avg, static/unbiased"
        )
    if encoder.backbone.words_only:
        raise InexactError("word vectors have their own tokenizer, which no tokenizer.json holds")
    if type(encoder.prompt) is not Prompt or encoder.denoising.place != "none":
        raise InexactError("learned prompts and denoising are not rows of words")
    backbone, template = encoder.backbone, encoder.template
    base = (backbone.token_rows if states == "static" else backbone.head.rows).detach().float().cpu()
    matrix, bias = affine_of(encoder)
    mapped = base @ matrix + bias
    rows = mapped if kind == "avg" else _rewritten(encoder, mapped)
    outside = [*template.prefix, *template.suffix]
    around = outside[_OUTSIDE[kind] : len(outside) - _OUTSIDE[kind]]
    definition = with_template(encoder, marked=bool(around))
    definition["post_processor"] = None
    room = encoder.max_length - len(outside)
    notes = ["an empty sentence has a vector of zeros there"]
    if len(outside) < template.length:
        notes.append("a sentence that is cut loses the mark of the template after it there")
    if around:
        notes.append(TYPED)
        number = add_tokens(definition, [AROUND])[0]
        definition["added_tokens"][-1] |= {"special": False, "normalized": True}
        extended = rows.new_zeros(max(len(rows), number + 1), rows.size(1))
        extended[: len(rows)] = rows
        extended[number] = mapped[around].sum(0)
        rows = extended
    definition["truncation"] = {
        "direction": "Right", "max_length": room + bool(around), "strategy": "LongestFirst", "stride": 0
    }  # fmt: skip
    if kind == "unbiased":
        notes.append("a sentence of filtered words only has a vector of zeros there, and no sentence is cut")
        definition["truncation"] = None
    return StaticTable(rows.contiguous(), definition, tuple(notes))


def _rewritten(encoder: Encoder, mapped: Tensor) -> Tensor:
    """Return the row of each token after the rewriting of ``unbiased``, applied to the token alone."""
    tokens, weights = encoder.backbone.tokenizer, encoder.pooling.weights
    if not tokens.splits_punctuation or weights.spec == "unbiased:freq":
        raise InexactError(
            "static/unbiased is a table for WordPiece vocabularies, with subwords left out: there each token is"
            " rewritten by itself"
        )
    rows = torch.zeros_like(mapped)
    items = [(token, text) for token, text in tokens.items().items() if not text.startswith("##") or text == "##"]
    rewritten = weights.rewrite([text for _, text in items], encoder.backbone)
    for (token, _), ids in zip(items, rewritten, strict=True):
        if ids != [tokens.pad]:
            rows[token] = mapped[ids].sum(0)
    return rows


def export_model2vec(source: Source, folder: Path) -> Exported:
    """Fill a folder that ``StaticModel.from_pretrained(folder)`` loads, and ``SentenceTransformer(folder)``."""
    encoder, entry = source.encoder, source.entry
    table = static_table(encoder)
    rows = table.rows[: 1 + max(token_ids(table.definition))].contiguous()  # model2vec takes a row a token, no more
    table.definition["truncation"] = None
    write_static(folder, table.definition, {"embeddings": rows}, path=".")
    config = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "hidden_dim": rows.size(1),
        "normalize": False,
        "max_length": None,
        "embedding_dtype": "float32",
    }
    (folder / "config.json").write_text(to_json(config), encoding="utf-8")
    use = "from model2vec import StaticModel\n\nvectors = StaticModel.from_pretrained(folder).encode(sentences)"
    write_card(folder, entry, encoder.recipe, use=use, library="model2vec")
    load = 'StaticModel.from_pretrained("FOLDER")'
    notes = (*table.notes, "words that the vocabulary does not know are left out there, and no sentence is cut")
    if lacking("model2vec"):
        return Exported(load, notes=(*notes, "vectors were not compared: model2vec is not installed"))
    import model2vec

    known = [row for row in PROBES if encoder.backbone.tokenizer.unk not in encoder.inputs([row]).rows[0]]
    probes = uncut(encoder, known)
    with opening("the exported folder"):
        theirs = model2vec.StaticModel.from_pretrained(folder).encode(probes)
    return Exported(load, "model2vec", check_parity(encoder.encode(probes), theirs, "model2vec"), notes)


def write_static(folder: Path, definition: dict[str, Any], rows: dict[str, Tensor], *, path: str) -> None:
    """Write a table as the module StaticEmbedding of sentence-transformers, which lies at ``path`` in the folder."""
    modules = [{"idx": 0, "name": "0", "path": path, "type": "sentence_transformers.models.StaticEmbedding"}]
    (folder / "modules.json").write_text(to_json(modules), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(definition, ensure_ascii=False), encoding="utf-8")
    save_tensors(rows, folder / "model.safetensors")
