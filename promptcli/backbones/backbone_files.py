"""A loaded backbone as files that other programs read: configuration, weights, tokenizer."""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.model_folder import CONFIG, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS
from promptcli.backbones.transformers_loading import load_tokenizer, opening
from promptcli.storage.tensors import save_tensors
from promptcli.storage.typed_documents import to_json

_SPECIALS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
#: Beginnings of the names of a tokenizer's files.
_TOKENIZER_FILES = (
    "tokenizer",
    "vocab",
    "merges",
    "special_tokens",
    "added_tokens",
    "sentencepiece",
)


def is_tokenizer_file(path: Path) -> bool:
    """Return whether a file of a backbone's folder belongs to its tokenizer."""
    return path.suffix == ".model" or (
        path.name.startswith(_TOKENIZER_FILES) and path.suffix in (".json", ".txt")
    )


def write_json(path: Path, values: Any, indent: int | None = 2) -> None:
    """Write values as a JSON file."""
    path.write_text(to_json(values, indent=indent), encoding="utf-8")


def save_weights(
    backbone: Backbone, folder: Path, *, rows: Mapping[int, Tensor] | None = None, **config: Any
) -> None:
    """Write ``config.json`` with the fields of ``config`` changed, and ``model.safetensors`` in
    float32, without heads.

    ``rows`` are word embeddings (d,) by id; ids beyond the table make it longer.
    """
    model = backbone.model
    tensors = {
        name: tensor.detach().float().cpu().contiguous()
        for name, tensor in model.state_dict().items()
    }
    name = next(
        name for name, tensor in model.named_parameters() if tensor is backbone.word_embeddings
    )
    if rows:
        tensors[name] = with_rows(tensors[name], rows)
    values = copy.deepcopy(model.config).to_dict()
    for field in ("_name_or_path", "_attn_implementation", "torch_dtype"):
        values.pop(field, None)
    plan = backbone.family.plan
    fields = {
        "architectures": [plan.model if plan else type(model).__name__],
        "dtype": "float32",
        "vocab_size": len(tensors[name]),
    }
    write_json(folder / CONFIG, {**values, **fields, **config})
    save_tensors(tensors, folder / WEIGHTS, {"format": "pt"})


def with_rows(table: Tensor, rows: Mapping[int, Tensor]) -> Tensor:
    """Return a table (v, d) with rows (d,) replaced or added by id; gaps are zeros."""
    longer = table.new_zeros(max(len(table), max(rows) + 1), table.size(1))
    longer[: len(table)] = table
    for number, row in rows.items():
        longer[number] = row.to(table)
    return longer


def tokenizer_definition(backbone: Backbone) -> dict[str, Any]:
    """Return the content of a backbone's ``tokenizer.json``."""
    with opening(f"backbone {backbone.name!r}"):
        tokenizer = backbone.tokenizer_of_transformers()
        definition: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return {**definition, "truncation": None, "padding": None}


def put_around(definition: dict[str, Any], left: Sequence[int], right: Sequence[int]) -> None:
    """Let a ``tokenizer.json`` put ids around every input, which truncation does not remove."""
    texts = {token["id"]: token["content"] for token in definition["added_tokens"]}
    special_tokens = []
    for name, ids in (("<left>", left), ("<right>", right)):
        tokens = [texts.get(token, str(token)) for token in ids]
        special_tokens.append({"id": name, "ids": list(ids), "tokens": tokens})
    processor = TemplateProcessing(
        single="<left> $A <right>", pair="<left> $A $B:0 <right>", special_tokens=special_tokens
    )
    definition["post_processor"] = json.loads(processor.__getstate__())


def token_ids(definition: Mapping[str, Any]) -> set[int]:
    """Return the ids of all tokens of a ``tokenizer.json``, added tokens included."""
    return set(Tokenizer.from_str(json.dumps(definition)).get_vocab().values())


def save_tokenizer(
    backbone: Backbone, folder: Path, definition: Mapping[str, Any], max_length: int
) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``.

    Inputs are cut to ``max_length`` tokens.
    """
    with opening(f"backbone {backbone.name!r}"):
        tokenizer = backbone.tokenizer_of_transformers()
        specials = {
            name: text for name in _SPECIALS if (text := getattr(tokenizer, name)) is not None
        }
    # a causal model may have no token for padding
    specials.setdefault("pad_token", backbone.tokenizer.text(backbone.tokenizer.pad))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "padding_side": "right",
        "truncation_side": "right",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **specials,
    }
    write_json(folder / TOKENIZER, definition, indent=None)
    write_json(folder / TOKENIZER_CONFIG, settings)
    write_json(folder / "special_tokens_map.json", specials)


def whole_inputs(folder: Path, sentences: Sequence[str], max_length: int) -> list[list[int]]:
    """Return the ids of n sentences by transformers' tokenizer of a folder, special tokens
    included.
    """
    with opening("the tokenizer that was written"):
        tokenizer = load_tokenizer(folder)
        ids: list[list[int]] = tokenizer(list(sentences), truncation=True, max_length=max_length)[
            "input_ids"
        ]
    return ids
