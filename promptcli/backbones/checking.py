"""Checks that the files of a foreign model must pass before use.

transformers would fill in missing tensors with random numbers and missing tokens with its own; here
a folder without them is refused. The library of tokenizers aborts the process when memory runs
out, and a replacement may turn a letter into megabytes; so each step of a tokenizer is first tried
alone.
"""

import base64
import functools
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from promptcli.backbones.model_folder import (
    ADAPTER_CONFIG,
    CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    ModelFolder,
    json_field,
    json_or_none,
)
from promptcli.backbones.tokenizer import PieceTokenizer, steps_of
from promptcli.errors import UsageError, join_lines, short_repr
from promptcli.storage.files import path_inside

#: Fields of a configuration that determine the memory. A size of the first list must be a side of
#: some tensor; one of the second has a largest allowed value.
_TENSOR_SIDES = (
    "vocab_size hidden_size intermediate_size embedding_size dim hidden_dim"
    " relative_attention_num_buckets"
).split()
_LARGEST_SIZES: dict[str, int] = {
    **dict.fromkeys(
        "num_hidden_layers n_layers n_layer num_attention_heads n_heads n_head".split(), 1000
    ),
    **dict.fromkeys("max_position_embeddings n_positions type_vocab_size".split(), 1 << 24),
}
#: Field of a configuration that is refused if it is set -> the reason.
_REFUSED_FIELDS = {
    "quantization_config": "has quantised weights (quantization_config); use the checkpoint from"
    " which they were made",
    "is_decoder": "is a decoder (is_decoder in config.json); its tokens do not see the whole"
    " sentence",
}
_ATTENTION_FIELDS = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
_VOCABULARY_FILES = (TOKENIZER, "vocab.txt", "vocab.json")

#: Fields of a token that the library knows. A token of a definition also has its id, and a token of
#: transformers' settings its type.
_TOKEN_FIELDS = {"content", "single_word", "lstrip", "rstrip", "normalized", "special"}
#: Fields of a tokenizer's model that are long and are not read.
_UNREAD_FIELDS = {"vocab", "merges"}
_MAX_CHARACTERS = 256  #: that a tokenizer may make of one character
#: Field with a text that a step inserts (the model's for each unknown word or piece) -> the largest
#: number of characters.
_MAX_INSERTED = {
    **dict.fromkeys(("content", "prepend", "precompiled_charsmap"), _MAX_CHARACTERS),
    **dict.fromkeys(("unk_token", "continuing_subword_prefix"), _MAX_CHARACTERS),
    "end_of_word_suffix": _MAX_CHARACTERS,
    "special_tokens": 16 * _MAX_CHARACTERS,  # of all in a template
}
_MAX_COPIES = 4  #: places of a template that hold the text, e.g. a pair of a text with itself
_MAX_STEPS = 512
_MAX_PROBES = 1024
#: Texts that are passed through the steps, and the texts that the steps name.
_PROBES = ("a", "A", " ", ".", "1", "é", "İ", "ﷺ", "字", "😀")
_SPLITTING = ("normalizer", "pre_tokenizer")  #: sections of a definition whose steps are tried
_REPEATS = 4  #: of each probe, so that steps also meet the joins of earlier results
#: A ``tokenizer.json`` that changes nothing. No decoder is ever run.
_IDENTITY: dict[str, Any] = {
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""},
}
_SHOWN_CHARACTERS = 200  # of a library's text in a message
#: Exceptions whose text says little without their class.
_TERSE_ERRORS = (LookupError, TypeError, AttributeError, ArithmeticError, AssertionError)


def describe_error(error: BaseException) -> str:
    """Return a library's message as one printable line, cut."""
    text = join_lines(error)
    if not text:
        text = type(error).__name__
    elif isinstance(error, _TERSE_ERRORS):
        text = f"{type(error).__name__}: {text}"
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SHOWN_CHARACTERS])


def check_model(folder: ModelFolder) -> dict[str, str]:
    """Refuse a folder that would run foreign code, change the weights on loading, be completed
    silently, or take more memory than its files.

    Return the safetensors dtype of every tensor.
    """
    weights = folder.weight_files()
    _check_settings(folder)
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
                f"has weights {path.name} marked format {short_repr(form)}, not 'pt'; convert them"
            )
    _check_sizes(folder, sides)
    return dtypes


def _check_settings(folder: ModelFolder) -> None:
    config = folder.config
    if folder.has(ADAPTER_CONFIG):
        raise folder.error(
            f"has an {ADAPTER_CONFIG}: merge it first (peft: merge_and_unload) or move it away"
        )
    for field in _ATTENTION_FIELDS:
        if "/" in json.dumps(config.get(field)):
            raise folder.error(
                f"names foreign code in {CONFIG} ({field} {short_repr(config[field])}),"
                " which is never run"
            )
    for file in (CONFIG, TOKENIZER_CONFIG):
        if json_field(folder.path / file, "auto_map"):
            raise folder.error(
                f"comes with its own code (auto_map in {file}), which is never run; remove the"
                " field to try without it"
            )
    for field, reason in _REFUSED_FIELDS.items():
        if config.get(field):
            raise folder.error(reason)
    if not any(map(folder.has, _VOCABULARY_FILES)) and not any(folder.path.glob("*.model")):
        raise folder.error("has no vocabulary: neither a tokenizer.json nor a vocab.txt")


def _check_sizes(folder: ModelFolder, sides: set[int]) -> None:
    """Compare the sizes in config.json with the tensors' before memory is taken."""
    sizes = {name: size for name, size in folder.config.items() if isinstance(size, int)}
    pad = sizes.get("pad_token_id")
    rows = sizes.get("vocab_size")
    if pad is not None and rows is not None and not 0 <= pad < rows:
        raise folder.error(f"has pad_token_id {pad} in {CONFIG}; its ids go from 0 to {rows - 1}")
    for name in sizes.keys() & _TENSOR_SIDES:
        if sizes[name] not in sides:
            raise folder.error(f"has {name} {sizes[name]}, and none of its tensors has that size")
    for name in sizes.keys() & _LARGEST_SIZES.keys():
        if sizes[name] > _LARGEST_SIZES[name]:
            raise folder.error(f"has {name} {sizes[name]}, which no model of its family has")


def check_tokenizer(folder: Path) -> None:
    """Refuse a tokenizer that turns a letter into megabytes, is outside its folder, or has tokens
    with unknown fields: the library prints those on standard output, where results go.
    """
    settings = json_or_none(folder / TOKENIZER_CONFIG)
    versions = settings.get("fast_tokenizer_files") if isinstance(settings, dict) else None
    special_tokens = json_or_none(folder / "special_tokens_map.json")
    sections = [(settings, "__type"), (special_tokens, "__type")]
    for name in [TOKENIZER, *(versions if isinstance(versions, list) else ())]:
        path = path_inside(folder, str(name))
        if path is None:
            raise UsageError(
                f"{TOKENIZER_CONFIG} of {folder.name} has {short_repr(name)}, which leads out of"
                " the folder"
            )
        definition = read_definition(path)
        check_growth(folder.name, definition)
        sections.append((definition.get("added_tokens"), "id"))
    for section, extra_field in sections:
        for token in _tokens(section):
            if unknown := token.keys() - _TOKEN_FIELDS - {extra_field}:
                raise UsageError(
                    f"a token of {folder.name} has the field {short_repr(min(unknown))}, which its"
                    " library does not know; remove it"
                )


def _tokens(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the tokens in a JSON value: objects with a text, or listed as added tokens."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            if isinstance(item.get("content"), str):
                yield item
            else:
                added = item.get("added_tokens_decoder")
                if isinstance(added, dict):
                    yield from (token for token in added.values() if isinstance(token, dict))
                waiting += item.values()


def read_definition(path: Path) -> dict[str, Any]:
    """Return the content of a ``tokenizer.json`` without its vocabulary; empty if it is missing or
    malformed, which its library reports.
    """
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        raw_model = fields.pop("model", msgspec.Raw(b"{}"))
        model = msgspec.json.decode(raw_model, type=dict[str, msgspec.Raw])
        definition: Any = _decode(fields)
        definition["model"] = _decode({name: model[name] for name in model.keys() - _UNREAD_FIELDS})
    except OSError:
        definition = None
    except (msgspec.DecodeError, ValueError, RecursionError):  # Python's reader allows more
        definition = json_or_none(path)
    return definition if isinstance(definition, dict) else {}


def _decode(fields: dict[str, msgspec.Raw]) -> dict[str, Any]:
    return {name: msgspec.json.decode(content) for name, content in fields.items()}


def check_growth(owner: str, definition: dict[str, Any]) -> None:
    """Refuse a tokenizer that turns one character into more than a few hundred characters or
    copies.

    Args:
        owner: Whose tokenizer it is, for the message.
        definition: Content of a ``tokenizer.json``, with or without its vocabulary.
    """
    sections = ("normalizer", "pre_tokenizer", "decoder", "post_processor", "model")
    steps = [(section, step) for section in sections for step in steps_of(definition.get(section))]
    fault = _insertion_fault([step for _, step in steps]) or _growth_fault(steps)
    if fault:
        raise UsageError(
            f"the tokenizer of {owner} expands a text too far ({fault}); it is refused, because it"
            " could fill the memory"
        )


def _insertion_fault(steps: Sequence[dict[str, Any]]) -> str:
    """Return the fault of the texts that steps insert, or of their number; "" if none."""
    copies = 1
    for step in steps:
        for name, limit in _MAX_INSERTED.items():
            length = len(str(step.get(name)))
            if name == "precompiled_charsmap":
                length = _longest_in_charsmap(str(step.get(name)))
            if length > limit:
                return f"its {name} has {length:,} characters"
        copies *= max(1, str(step.get("single")).count("'Sequence'"))
    return "its template repeats the text too often" if copies > _MAX_COPIES else ""


def _longest_in_charsmap(encoded: str) -> int:
    """Return the length of the longest text in SentencePiece's map of characters, in base 64."""
    try:
        content = base64.b64decode(encoded)
    except ValueError:
        return 0  # its library reports it
    # the size of an index, the index, texts with a zero after each
    begin = 4 + int.from_bytes(content[:4], "little")
    return max(map(len, content[begin:].split(b"\0")))


def _growth_fault(steps: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Return the fault of the length of a text after all steps in order; "" if none."""
    steps = [(section, step) for section, step in steps if section in _SPLITTING]
    probes = {*_PROBES}
    for _, step in steps:
        pattern = step.get("pattern")
        patterns = pattern.values() if isinstance(pattern, dict) else ()
        for text in (*patterns, step.get("content")):
            if isinstance(text, str):
                probes |= {text, *text[:_MAX_CHARACTERS]}
    if len(steps) > _MAX_STEPS or len(probes) > _MAX_PROBES:
        return f"it has {len(steps):,} steps that name {len(probes):,} texts"
    functions = [(step.get("type"), _step_function(section, step)) for section, step in steps]
    for probe in probes - {""}:
        result = probe * _REPEATS
        for kind, function in functions:
            result = function(result)
            if len(result) > _MAX_CHARACTERS * _REPEATS * len(probe):
                return f"a step {kind} makes more than {_MAX_CHARACTERS} of one"
    return ""


def _step_function(section: str, step: dict[str, Any]) -> Callable[[str], str]:
    """Return the library's function of one step alone; the identity if it refuses the step.

    A SentencePiece map, whose texts are short, is treated as the usual one.
    """
    if step.get("type") == "Precompiled":
        return functools.partial(unicodedata.normalize, "NFKD")
    try:
        alone = Tokenizer.from_str(json.dumps({**_IDENTITY, section: step}))
    except Exception:  # the library has no other class; opening the whole tokenizer reports it
        return str
    if section == "normalizer":
        return alone.normalizer.normalize_str  # type: ignore[no-any-return]
    return lambda text: "".join(piece for piece, _ in alone.pre_tokenizer.pre_tokenize_str(text))


def check_tensors(
    owner: object, report: Mapping[str, Any], prefixes: str | tuple[str, ...] = ""
) -> None:
    """Refuse missing tensors and tensors of another shape: transformers would fill them with random
    numbers.

    Only names with one of the ``prefixes`` count.
    """
    for name, *shapes in sorted(report["mismatched_keys"]):
        if name.startswith(prefixes):
            stored, expected = (" x ".join(map(str, shape)) or "none" for shape in shapes)
            raise UsageError(
                f"{owner} has tensor {name} of shape {stored}, where config.json asks for"
                f" {expected}"
            )
    missing = [name for name in report["missing_keys"] if name.startswith(prefixes)]
    if missing:
        raise UsageError(
            f"{owner} lacks {len(missing)} of its tensors (e.g. {min(missing)}); the checkpoint"
            " is not complete"
        )


def check_loaded(owner: object, model: Any, report: Mapping[str, Any]) -> None:
    """Refuse a model with weights that are missing, of another shape, not finite, or without a
    place in the model; heads need no place.
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
            f"{owner} has {len(unexpected)} tensors for which its config.json has no place (e.g."
            f" {min(unexpected)})"
        )
    check_finite(owner, model)


def check_finite(owner: object, module: Any) -> None:
    """Refuse weights that are not numbers."""
    for name, weight in module.named_parameters():
        if not weight.sum().isfinite() and not weight.isfinite().all():
            raise UsageError(f"{owner} has weights that are not finite (NaN or infinite): {name}")


def check_vocabulary(owner: object, folder: Path, tokenizer: PieceTokenizer, rows: int) -> None:
    """Compare the tokenizer with its folder's files and with the number of rows of the table of
    embeddings.
    """
    size = len(tokenizer.items())
    highest = tokenizer.highest
    if highest >= rows:
        last = f"{highest} ({short_repr(tokenizer.text(highest))}): they belong to different models"
        raise UsageError(
            f"{owner} has {rows} rows of embeddings, and its vocabulary goes to id {last}"
        )
    if size < highest + 1 and (repeated := _repeated_items(folder)):
        raise UsageError(f"the vocabulary of {owner} has {short_repr(repeated[0])} twice")
    if 2 * size <= rows:
        raise UsageError(
            f"{owner} has {rows} rows of embeddings, but only {size} tokens; its vocabulary file"
            " seems cut off, so download it again"
        )
    if invented := _invented_tokens(folder, tokenizer):
        raise UsageError(
            f"the vocabulary of {owner} has no {invented[0]}, which its tokenizer needs"
        )
    if tokenizer.mask is not None and tokenizer.mask in {
        *tokenizer.start,
        *tokenizer.end,
        tokenizer.unk,
    }:
        raise UsageError(
            f"the mask token of {owner} is {short_repr(tokenizer.mask_text)}, which is already"
            " another special token"
        )


def _repeated_items(folder: Path) -> list[str]:
    """Return the entries that the vocabulary file has more than once."""
    items: list[str] = []
    if (folder / TOKENIZER).is_file():
        # an object is read as a list of its pairs
        content = json.loads((folder / TOKENIZER).read_bytes(), object_pairs_hook=list)
        items = [item for item, _ in dict(dict(content)["model"])["vocab"]]
    elif (folder / "vocab.txt").is_file():
        items = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return [item for item, times in Counter(items).items() if times > 1]


def _invented_tokens(folder: Path, tokenizer: PieceTokenizer) -> list[str]:
    """Return the special tokens that no file of the folder has: the library invented them."""
    files = [folder / name for name in _VOCABULARY_FILES if (folder / name).is_file()]
    texts = [tokenizer.text(token) for token in sorted(tokenizer.specials)]
    added = [text for text in texts if not tokenizer.knows(text)]
    if not files or not added:
        return []  # SentencePiece alone: its families have their own special tokens
    if (folder / "added_tokens.json").is_file():
        files.append(folder / "added_tokens.json")
    content = "".join(path.read_text(encoding="utf-8") for path in files)
    decoder = json_field(folder / TOKENIZER_CONFIG, "added_tokens_decoder")
    content += json.dumps(decoder, ensure_ascii=False)
    return [text for text in added if json.dumps(text, ensure_ascii=False) not in content]
