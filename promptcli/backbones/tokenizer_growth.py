"""How long a stranger's tokenizer makes a text, judged by its definition before it reads any.

Its library ends the process when memory does, and a replacement may make megabytes of a letter. So
the steps are tried here with the texts that they look for, and with letters that grow.
"""

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from promptcli.errors import UsageError

#: The most characters that may become of one.
_MOST = 256
#: Texts that are gone through the steps; patterns of the steps are added to them.
_LETTERS = ("a", "A", " ", ".", "1", "é", "İ", "ﷺ", "字", "😀")
#: Times that each is repeated, so that steps meet what earlier ones have made of neighbours.
_TIMES = 4
_MOST_STEPS = 512
_MOST_TEXTS = 1024
#: Texts of a template into which a text is put, e.g. a pair of one text with itself.
_MOST_COPIES = 4
#: Where a part of a definition lists its own parts.
_PARTS = ("normalizers", "pretokenizers", "decoders", "processors")
_CJK = re.compile("([\u4e00-\u9fff])")
#: Patterns that match no empty place: letters and classes of them, perhaps repeated.
_ATOM = r"(?:\\[sSdDwW]|\\[pP]\{\w+\}|\\[^\w]|\[[^\]\[]+\]|[^\\\[\](){}.*+?|^$])"
_NOT_EMPTY = re.compile(rf"(?:{_ATOM}(?:\+|\{{[1-9]\d*(?:,\d*)?\}})?)+")


class _GrowthError(Exception):
    """A step that makes too much."""


def check_growth(what: str, definition: Any) -> None:
    """Refuse a tokenizer that makes more than a few hundred characters, or copies, of one.

    Args:
        what: Whose it is, for the message.
        definition: Content of a ``tokenizer.json``, with or without its vocabulary.
    """
    if not isinstance(definition, dict):
        return
    reading = [*_steps(definition.get("normalizer")), *_steps(definition.get("pre_tokenizer"))]
    try:
        for steps in (reading, list(_steps(definition.get("decoder")))):
            _check_steps(steps)
        _check_templates(list(_steps(definition.get("post_processor"))))
        _check_model(definition.get("model"))
    except _GrowthError as fault:
        raise UsageError(
            f"the tokenizer of {what} makes too much of a text ({fault}); take one whose"
            " replacements are short"
        ) from None


def _steps(part: Any) -> Iterator[dict[str, Any]]:
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


def _check_steps(steps: list[dict[str, Any]]) -> None:
    if len(steps) > _MOST_STEPS:
        raise _GrowthError(f"it has {len(steps):,} steps")
    for text in _texts(steps):
        grown = text
        for step in steps:
            grown = _apply(step, grown)
            if len(grown) > _MOST * len(text):
                raise _GrowthError(f"a step {step.get('type')} makes more than {_MOST} of one")


def _texts(steps: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the texts that the steps may lengthen: those that they look for, and their results."""
    texts = dict.fromkeys(_LETTERS)
    for step in steps:
        pattern, _ = _pattern(step)
        made = step.get("content")
        if isinstance(made, str):
            if len(made) > _MOST * max(1, len(pattern)):
                raise _GrowthError(f"a replacement has {len(made):,} characters")
            texts |= dict.fromkeys((made, *made[:_MOST]))
        texts |= dict.fromkeys((pattern, *pattern[:_MOST]))
    if len(texts) > _MOST_TEXTS:
        raise _GrowthError(f"its steps name {len(texts):,} texts")
    for text in texts:
        if text:
            yield text * _TIMES


def _pattern(step: dict[str, Any]) -> tuple[str, str]:
    """Return what a step replaces as a text and as a regular expression; empty if not so given."""
    pattern = step.get("pattern")
    if step.get("type") != "Replace" or not isinstance(pattern, dict):
        return "", ""
    return str(pattern.get("String", "")), str(pattern.get("Regex", ""))


def _apply(step: dict[str, Any], text: str) -> str:
    """Return a text after a step, or one of the greatest length that it may have."""
    kind = step.get("type")
    if kind == "Replace":
        return _replace(step, text)
    if kind == "Prepend":
        made = str(step.get("prepend", ""))
        if len(made) > _MOST:
            raise _GrowthError(f"it puts {len(made):,} characters before a text")
        return made + text
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return unicodedata.normalize(kind, text)
    if kind == "Precompiled":
        _check_map(step.get("precompiled_charsmap"))
        return unicodedata.normalize("NFKC", text)
    if kind == "Lowercase":
        return text.lower()
    if kind == "BertNormalizer":
        return _CJK.sub(r" \1 ", unicodedata.normalize("NFD", text.lower()))
    if kind == "ByteLevel":  # a letter for each byte, of which some take two bytes
        return text.encode("utf-8", "replace").decode("latin-1")
    return text


def _replace(step: dict[str, Any], text: str) -> str:
    wanted, expression = _pattern(step)
    made = step.get("content")
    if not isinstance(made, str) or not made:
        return text
    if wanted:
        times = text.count(wanted)
    else:
        times = len(text)
    if len(text) + times * len(made) > _MOST * _MOST * len(text):
        raise _GrowthError(f"a replacement has {len(made):,} characters")
    if wanted:
        return text.replace(wanted, made)
    if _NOT_EMPTY.fullmatch(expression):  # at most each letter
        return text if len(made) == 1 else made * times
    return "".join(letter + made for letter in text)


def _check_map(encoded: Any) -> None:
    """Refuse a map of SentencePiece with a long text: the size of its index, the index, texts with
    a zero after each.
    """
    try:
        content = base64.b64decode(encoded or "")
    except (binascii.Error, TypeError, ValueError):
        return  # said by its library
    begin = 4 + int.from_bytes(content[:4], "little")
    longest = max(map(len, content[begin:].split(b"\0")))
    if longest > _MOST:
        raise _GrowthError(f"its map of letters has a text of {longest:,} bytes")


def _check_templates(steps: list[dict[str, Any]]) -> None:
    """Refuse templates into which a text is put many times, or many tokens."""
    copies = 1
    for step in steps:
        single = step.get("single")
        if not isinstance(single, list):
            continue
        names = [name for piece in single if isinstance(piece, dict) for name in piece]
        copies *= max(1, names.count("Sequence"))
        if copies > _MOST_COPIES:
            raise _GrowthError(f"its template puts a text into {copies} places")
        if len(names) > _MOST:
            raise _GrowthError(f"its template has {len(names):,} parts")
        tokens = step.get("special_tokens")
        for token in tokens.values() if isinstance(tokens, dict) else ():
            ids = token.get("ids") if isinstance(token, dict) else None
            if isinstance(ids, list) and len(ids) > _MOST:
                raise _GrowthError(f"its template has {len(ids):,} tokens for one")


def _check_model(model: Any) -> None:
    """Refuse a text of the model that is repeated for each unknown word or piece of a word."""
    if not isinstance(model, dict):
        return
    for name in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        text = model.get(name)
        if isinstance(text, str) and len(text) > _MOST:
            raise _GrowthError(f"its {name} has {len(text):,} characters")
