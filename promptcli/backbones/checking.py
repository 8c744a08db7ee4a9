"""Checks that a foreign model folder must pass before use.

transformers would fill in missing tensors with random numbers and missing tokens with its own; here
a folder without them is refused.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from promptcli.backbones.model_folder import ADAPTER_CONFIG, CONFIG, ModelFolder, json_field
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.backbones.tokenizer_files import TOKENIZER, TOKENIZER_CONFIG
from promptcli.backbones.transformers_loading import describe_error
from promptcli.errors import UsageError, shorten

#: Sizes that determine the memory: some are sides of tensors, others have a largest allowed value.
_SIDES = (
    "vocab_size hidden_size intermediate_size embedding_size dim hidden_dim"
    " relative_attention_num_buckets"
).split()
_LARGEST: dict[str, int] = {
    **dict.fromkeys(
        "num_hidden_layers n_layers n_layer num_attention_heads n_heads n_head".split(), 1000
    ),
    **dict.fromkeys("max_position_embeddings n_positions type_vocab_size".split(), 1 << 24),
}
#: Field of a configuration that is refused if it is set -> the reason.
_REFUSED = {
    "quantization_config": "has quantised weights (quantization_config); take the checkpoint they"
    " were made from",
    "is_decoder": "is a decoder (is_decoder in config.json); its tokens do not see the whole"
    " sentence",
}
_ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
_VOCABULARIES = (TOKENIZER, "vocab.txt", "vocab.json")


def check_model(folder: ModelFolder) -> dict[str, str]:
    """Refuse a folder that would run foreign code, change the weights on loading, be completed
    silently, or take more memory than its files.

    Return the safetensors dtype of every tensor.
    """
    weights = folder.weight_files()
    _check_settings(folder)
    dtypes, sides = _tensor_headers(folder, weights)
    _check_sizes(folder, sides)
    return dtypes


def _check_settings(folder: ModelFolder) -> None:
    config = folder.config
    if folder.has(ADAPTER_CONFIG):
        raise folder.error(
            f"has an {ADAPTER_CONFIG}: merge it first (peft: merge_and_unload) or move it away"
        )
    for field in _ATTENTION:
        if "/" in json.dumps(config.get(field)):
            raise folder.error(
                f"names foreign code in {CONFIG} ({field} {shorten(config[field])}), never run"
            )
    for file in (CONFIG, TOKENIZER_CONFIG):
        if json_field(folder.path / file, "auto_map"):
            raise folder.error(
                f"comes with its own code (auto_map in {file}), which is never run; try without it"
            )
    for field, reason in _REFUSED.items():
        if config.get(field):
            raise folder.error(reason)
    if not any(map(folder.has, _VOCABULARIES)) and not any(folder.path.glob("*.model")):
        raise folder.error("has no vocabulary: neither a tokenizer.json nor a vocab.txt")


def _tensor_headers(
    folder: ModelFolder, weights: Sequence[Path]
) -> tuple[dict[str, str], set[int]]:
    """Return the dtype of every tensor, and all sides of their shapes."""
    dtypes: dict[str, str] = {}
    sides: set[int] = set()
    for path in weights:
        try:
            with safe_open(path, framework="pt") as file:
                form = (file.metadata() or {}).get("format", "pt")
                for name in file.keys():
                    stored = file.get_slice(name)
                    dtypes[name] = stored.get_dtype()
                    sides.update(stored.get_shape())
        except (SafetensorError, OSError) as error:
            raise folder.error(f"has broken weights {path.name}: {describe_error(error)}") from None
        if form != "pt":
            raise folder.error(
                f"has weights {path.name} marked format {shorten(form)}, not 'pt'; convert them"
            )
    return dtypes, sides


def _check_sizes(folder: ModelFolder, sides: Collection[int]) -> None:
    """Compare the sizes in config.json with the tensors' before memory is taken."""
    sizes = {name: size for name, size in folder.config.items() if isinstance(size, int)}
    pad = sizes.get("pad_token_id")
    rows = sizes.get("vocab_size")
    if pad is not None and rows is not None and not 0 <= pad < rows:
        raise folder.error(f"has pad_token_id {pad} in {CONFIG}; its ids go from 0 to {rows - 1}")
    for name in sizes.keys() & _SIDES:
        if sizes[name] not in sides:
            raise folder.error(f"has {name} {sizes[name]}, and none of its tensors has that size")
    for name in sizes.keys() & _LARGEST.keys():
        if sizes[name] > _LARGEST[name]:
            raise folder.error(f"has {name} {sizes[name]}, which no model of its family has")


def check_tensors(
    owner: object, report: Mapping[str, Any], parts: str | tuple[str, ...] = ""
) -> None:
    """Refuse missing tensors and tensors of another shape: transformers would fill them with random
    numbers.

    ``parts`` are the beginnings of the names that matter.
    """
    for name, *shapes in sorted(report["mismatched_keys"]):
        if name.startswith(parts):
            stored, wanted = (" x ".join(map(str, shape)) or "none" for shape in shapes)
            raise UsageError(
                f"{owner} has tensor {name} of shape {stored}, where config.json asks for {wanted}"
            )
    missing = [name for name in report["missing_keys"] if name.startswith(parts)]
    if missing:
        raise UsageError(
            f"{owner} lacks {len(missing)} of its tensors (e.g. {min(missing)}): not a whole"
            " checkpoint"
        )


def check_loaded(owner: object, model: Any, report: Mapping[str, Any]) -> None:
    """Refuse a model with weights that are missing, of another shape, not finite, or left over
    (heads may be left over).
    """
    check_tensors(owner, report)
    body = (f"{model.base_model_prefix}.", *(f"{name}." for name, _ in model.named_children()))
    unexpected = [
        name
        for name in report["unexpected_keys"]
        if name.startswith(body) and "pooler." not in name and "position_ids" not in name
    ]
    if unexpected:
        raise UsageError(
            f"{owner} has {len(unexpected)} tensors that its config.json has no place for (e.g."
            f" {min(unexpected)})"
        )
    check_finite(owner, model)


def check_finite(owner: object, module: Any) -> None:
    """Refuse weights that are not numbers."""
    for name, weight in module.named_parameters():
        if not weight.sum().isfinite() and not weight.isfinite().all():
            raise UsageError(f"{owner} has weights that are not finite (NaN or infinite): {name}")


def check_vocabulary(owner: object, folder: Path, tokenizer: PieceTokenizer, rows: int) -> None:
    """Compare the tokenizer with the table of v embeddings, ``rows``, and with its folder's own
    files.
    """
    size = len(tokenizer.items())
    highest = tokenizer.highest
    if highest >= rows:
        last = f"{highest} ({shorten(tokenizer.text(highest))}): they are not of one model"
        raise UsageError(
            f"{owner} has {rows} rows of embeddings, and its vocabulary goes to id {last}"
        )
    if size < highest + 1:
        for item in _repeated_items(folder):
            raise UsageError(f"the vocabulary of {owner} has {shorten(item)} twice")
    if 2 * size <= rows:
        raise UsageError(
            f"{owner} has {rows} rows of embeddings, only {size} tokens in its vocabulary: it is"
            " cut short"
        )
    texts = [tokenizer.text(token) for token in sorted(tokenizer.specials)]
    for text in _invented_tokens(folder, [text for text in texts if not tokenizer.knows(text)]):
        raise UsageError(f"the vocabulary of {owner} has no {text}, which its tokenizer needs")
    others = {*tokenizer.start, *tokenizer.end, tokenizer.unk}
    if tokenizer.mask is not None and tokenizer.mask in others:
        raise UsageError(
            f"the mask token of {owner} is {shorten(tokenizer.mask_text)}, which means something"
            " else"
        )


def _repeated_items(folder: Path) -> list[str]:
    """Return the entries that the vocabulary file has more than once."""
    items: list[str] = []
    if (folder / TOKENIZER).is_file():  # an object is read as its pairs
        content = json.loads((folder / TOKENIZER).read_bytes(), object_pairs_hook=list)
        items = [piece for piece, _ in dict(dict(content)["model"])["vocab"]]
    elif (folder / "vocab.txt").is_file():
        items = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return [item for item, times in Counter(items).items() if times > 1]


def _invented_tokens(folder: Path, added: Sequence[str]) -> list[str]:
    """Return the added special tokens that no file of the folder has: the library invented them."""
    names = [name for name in _VOCABULARIES if (folder / name).is_file()]
    if not names or not added:
        return []  # SentencePiece alone: its families have their own special tokens
    paths = [folder / name for name in (*names, "added_tokens.json")]
    content = "".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())
    decoder = json_field(folder / TOKENIZER_CONFIG, "added_tokens_decoder")
    content += json.dumps(decoder, ensure_ascii=False)
    return [text for text in added if json.dumps(text, ensure_ascii=False) not in content]
