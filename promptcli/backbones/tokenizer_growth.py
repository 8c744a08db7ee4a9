"""How long a stranger's tokenizer makes a text, tried step by step before it reads any.

Its library ends the process when memory does, and a replacement may make megabytes of a letter. So
each step is tried alone, on letters, on the texts that the steps name, and on what the steps before
it made of them.
"""

import base64
import functools
import itertools
import json
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import Tokenizer

from promptcli.errors import UsageError

#: The most characters that may become of one, and of a text that a step or the model puts in.
_MOST = 256
#: Texts that are gone through the steps; those that the steps name are added to them.
_LETTERS = ("a", "A", " ", ".", "1", "é", "İ", "ﷺ", "字", "😀")
#: Times that each is repeated, so that steps meet what earlier ones have made of neighbours.
_TIMES = 4
_MOST_PARTS = 512
_MOST_TEXTS = 1024
#: Places of a template into which a text is put, e.g. a pair of one text with itself.
_MOST_COPIES = 4
#: Where a part of a definition lists its own parts.
_PARTS = ("normalizers", "pretokenizers", "decoders", "processors")
#: Fields whose text a step puts into others; the model's are put in for each unknown word or piece.
_PUT_IN = (
    "content",
    "prepend",
    "precompiled_charsmap",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
)
#: A ``tokenizer.json`` that does nothing. (No decoder is ever run.)
_EMPTY: dict[str, Any] = {
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""},
}


def check_growth(what: str, definition: dict[str, Any]) -> None:
    """Refuse a tokenizer that makes more than a few hundred characters, or copies, of one.

    Args:
        what: Whose it is, for the message.
        definition: Content of a ``tokenizer.json``, with or without its vocabulary.
    """
    names = ("normalizer", "pre_tokenizer", "decoder", "post_processor", "model")
    parts = {name: [*steps_of(definition.get(name))] for name in names}
    fault = _fault_of_sizes([*itertools.chain(*parts.values())]) or _fault_of_steps(parts)
    copies = 1
    for step in parts["post_processor"]:
        copies *= max(1, str(step.get("single")).count("'Sequence'"))
    if fault or copies > _MOST_COPIES:
        raise UsageError(
            f"the tokenizer of {what} makes too much of a text"
            f" ({fault or 'its template puts it into many places'}); take one whose replacements"
            " are short"
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


def _fault_of_sizes(steps: list[dict[str, Any]]) -> str:
    """Return what is wrong with the texts that steps put into a text, and with their number."""
    for step in steps:
        for name in _PUT_IN:
            longest = _length(name, step.get(name))
            if longest > _MOST:
                return f"its {name} has {longest:,} characters"
        tokens = step.get("special_tokens")
        lists = [step.get("single"), *(tokens.values() if isinstance(tokens, dict) else ())]
        for part in lists:
            ids = part.get("ids") if isinstance(part, dict) else part
            if isinstance(ids, list) and len(ids) > _MOST:
                return f"its template has {len(ids):,} parts"
    return ""


def _length(name: str, text: Any) -> int:
    """Return how long a text is that a step puts in; of a map, the longest of its texts."""
    if not isinstance(text, str):
        return 0
    if name != "precompiled_charsmap":
        return len(text)
    try:
        content = base64.b64decode(text)
    except ValueError:
        return 0  # said by its library
    # SentencePiece's: the size of its index, the index, texts with a zero after each
    begin = 4 + int.from_bytes(content[:4], "little")
    return max(map(len, content[begin:].split(b"\0")))


def _fault_of_steps(parts: dict[str, list[dict[str, Any]]]) -> str:
    """Return what is wrong with the length to which the steps, one after the other, bring a
    text.
    """
    steps = [(name, step) for name in ("normalizer", "pre_tokenizer") for step in parts[name]]
    texts = {*_LETTERS}
    for _, step in steps:
        pattern = step.get("pattern")
        named = pattern.values() if isinstance(pattern, dict) else ()
        for text in (*named, step.get("content")):
            if isinstance(text, str):
                texts |= {text, *text[:_MOST]}
    if len(steps) > _MOST_PARTS or len(texts) > _MOST_TEXTS:
        return f"it has {len(steps):,} steps that name {len(texts):,} texts"
    tried = [(step.get("type"), _function(part, step)) for part, step in steps]
    for text in texts - {""}:
        grown = text * _TIMES
        for kind, function in tried:
            grown = function(grown)
            if len(grown) > _MOST * _TIMES * len(text):
                return f"a step {kind} makes more than {_MOST} of one"
    return ""


def _function(part: str, step: dict[str, Any]) -> Callable[[str], str]:
    """Return what the library makes of a text by one step alone; nothing if it refuses the step.

    A map of SentencePiece's, whose texts are short, is taken for the usual one.
    """
    if step.get("type") == "Precompiled":
        return functools.partial(unicodedata.normalize, "NFKD")
    try:
        alone = Tokenizer.from_str(json.dumps({**_EMPTY, part: step}))
    except Exception:  # the library's only class; it is said when the whole is opened
        return str
    if part == "normalizer":
        return alone.normalizer.normalize_str  # type: ignore[no-any-return]
    return lambda text: "".join(piece for piece, _ in alone.pre_tokenizer.pre_tokenize_str(text))
