"""Checks of a foreign tokenizer's files before its library reads them.

The library aborts the process when memory runs out, and a replacement may turn a letter into
megabytes. So each step of a tokenizer is tried alone: on letters, on the texts that the steps name,
and on the results of earlier steps.
"""

import base64
import functools
import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from promptcli.backbones.model_folder import json_or_none
from promptcli.errors import UsageError, shorten
from promptcli.storage.files import inside

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
_SPECIALS = "special_tokens_map.json"
#: Fields of a token known to the library; a definition also has its id, transformers' settings its
#: type.
_TOKEN_FIELDS = {"content", "single_word", "lstrip", "rstrip", "normalized", "special"}
#: Parts of a model that are long and are not read.
_VOCABULARY = {"vocab", "merges"}

#: Largest number of characters that may result from one.
_MOST_CHARACTERS = 256
#: Field with a text that a step inserts (the model's for each unknown word or piece) -> the largest
#: number of characters.
_INSERTED = {
    **dict.fromkeys(("content", "prepend", "precompiled_charsmap"), _MOST_CHARACTERS),
    **dict.fromkeys(("unk_token", "continuing_subword_prefix"), _MOST_CHARACTERS),
    "end_of_word_suffix": _MOST_CHARACTERS,
    "special_tokens": 16 * _MOST_CHARACTERS,  # of all in a template
}
#: Largest number of places of a template that hold the text, e.g. a pair of a text with itself.
_MOST_COPIES = 4
#: Texts passed through the steps, besides those that the steps name.
_LETTERS = ("a", "A", " ", ".", "1", "é", "İ", "ﷺ", "字", "😀")
#: Repetitions of each text, so that steps also meet the joins of earlier results.
_REPEATS = 4
_MOST_STEPS = 512
_MOST_TEXTS = 1024
#: Keys under which a part of a definition lists its parts.
_PARTS = ("normalizers", "pretokenizers", "decoders", "processors")
#: A ``tokenizer.json`` that changes nothing. No decoder is ever run.
_IDENTITY: dict[str, Any] = {
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""},
}


def check_tokenizer(folder: Path) -> None:
    """Refuse a tokenizer that turns a letter into megabytes, is outside its folder, or has tokens
    with unknown fields: the library prints those on standard output, where results go.
    """
    settings = json_or_none(folder / TOKENIZER_CONFIG)
    versions = settings.get("fast_tokenizer_files") if isinstance(settings, dict) else None
    parts = [(settings, "__type"), (json_or_none(folder / _SPECIALS), "__type")]
    for name in [TOKENIZER, *(versions if isinstance(versions, list) else ())]:
        path = inside(folder, str(name))
        if path is None:
            raise UsageError(
                f"{TOKENIZER_CONFIG} of {folder.name} has {shorten(name)}, which leads out of the"
                " folder"
            )
        definition = read_definition(path)
        check_growth(folder.name, definition)
        parts.append((definition.get("added_tokens"), "id"))
    for part, other_field in parts:
        for token in _tokens(part):
            if unknown := token.keys() - _TOKEN_FIELDS - {other_field}:
                raise UsageError(
                    f"a token of {folder.name} has the field {shorten(min(unknown))}, which its"
                    " library does not know; take it out"
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
    """Return a definition without its vocabulary; empty if it is missing or malformed, which its
    library reports.
    """
    try:
        parts = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        model = msgspec.json.decode(
            parts.pop("model", msgspec.Raw(b"{}")), type=dict[str, msgspec.Raw]
        )
        definition: Any = _decoded(parts)
        definition["model"] = _decoded({name: model[name] for name in model.keys() - _VOCABULARY})
    except OSError:
        definition = None
    except (msgspec.DecodeError, ValueError, RecursionError):  # Python's reader allows more
        definition = json_or_none(path)
    return definition if isinstance(definition, dict) else {}


def _decoded(parts: dict[str, msgspec.Raw]) -> dict[str, Any]:
    return {name: msgspec.json.decode(part) for name, part in parts.items()}


def check_growth(owner: str, definition: dict[str, Any]) -> None:
    """Refuse a tokenizer that turns one character into more than a few hundred characters or
    copies.

    Args:
        owner: Whose tokenizer it is, for the message.
        definition: Content of a ``tokenizer.json``, with or without its vocabulary.
    """
    parts = ("normalizer", "pre_tokenizer", "decoder", "post_processor", "model")
    steps = [(part, step) for part in parts for step in steps_of(definition.get(part))]
    fault = _size_fault(steps) or _growth_fault(steps)
    if fault:
        raise UsageError(
            f"the tokenizer of {owner} makes too much of a text ({fault}); take one whose"
            " replacements are short"
        )


def steps_of(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part of a definition, those of its parts in order."""
    waiting = [part]
    while waiting:
        step = waiting.pop(0)
        if not isinstance(step, dict):
            continue
        parts = next((step[name] for name in _PARTS if isinstance(step.get(name), list)), None)
        if parts is None:
            yield step
        else:
            waiting[:0] = parts


Steps = list[tuple[str, dict[str, Any]]]


def _size_fault(steps: Steps) -> str:
    """Return the fault of the texts that steps insert, or of their number; "" if none."""
    copies = 1
    for _, step in steps:
        for name, most in _INSERTED.items():
            longest = _length(name, step.get(name))
            if longest > most:
                return f"its {name} has {longest:,} characters"
        copies *= max(1, str(step.get("single")).count("'Sequence'"))
    return "its template puts it into many places" if copies > _MOST_COPIES else ""


def _length(name: str, value: Any) -> int:
    """Return the length of a text that a step inserts; for a map, of its longest text."""
    if name != "precompiled_charsmap":
        return len(str(value))
    try:
        content = base64.b64decode(str(value))
    except ValueError:
        return 0  # its library reports it
    # SentencePiece's form: the size of an index, the index, texts with a zero after each
    begin = 4 + int.from_bytes(content[:4], "little")
    return max(map(len, content[begin:].split(b"\0")))


def _growth_fault(steps: Steps) -> str:
    """Return the fault of the length of a text after all steps in order; "" if none."""
    steps = [(part, step) for part, step in steps if part in ("normalizer", "pre_tokenizer")]
    texts = {*_LETTERS}
    for _, step in steps:
        pattern = step.get("pattern")
        named = pattern.values() if isinstance(pattern, dict) else ()
        for text in (*named, step.get("content")):
            if isinstance(text, str):
                texts |= {text, *text[:_MOST_CHARACTERS]}
    if len(steps) > _MOST_STEPS or len(texts) > _MOST_TEXTS:
        return f"it has {len(steps):,} steps that name {len(texts):,} texts"
    functions = [(step.get("type"), _function(part, step)) for part, step in steps]
    for text in texts - {""}:
        result = text * _REPEATS
        for kind, function in functions:
            result = function(result)
            if len(result) > _MOST_CHARACTERS * _REPEATS * len(text):
                return f"a step {kind} makes more than {_MOST_CHARACTERS} of one"
    return ""


def _function(part: str, step: dict[str, Any]) -> Callable[[str], str]:
    """Return the library's function of one step alone; the identity if it refuses the step.

    A SentencePiece map, whose texts are short, is treated as the usual one.
    """
    if step.get("type") == "Precompiled":
        return functools.partial(unicodedata.normalize, "NFKD")
    try:
        alone = Tokenizer.from_str(json.dumps({**_IDENTITY, part: step}))
    except Exception:  # the library has no other class; opening the whole tokenizer reports it
        return str
    if part == "normalizer":
        return alone.normalizer.normalize_str  # type: ignore[no-any-return]
    return lambda text: "".join(piece for piece, _ in alone.pre_tokenizer.pre_tokenize_str(text))
