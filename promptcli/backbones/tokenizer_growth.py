"""How long a stranger's tokenizer makes a text, judged by its definition before it reads any.

Its library ends the process when memory does, and a replacement may make megabytes of a letter. So
the steps are tried here with the texts that they look for, and with letters that grow.
"""

import base64
import binascii
import functools
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

from promptcli.errors import UsageError

#: The most characters that may become of one, and of a text that a step or the model puts in.
_MOST = 256
#: Texts that are gone through the steps; those that the steps name are added to them.
_LETTERS = ("a", "A", " ", ".", "1", "é", "İ", "ﷺ", "字", "😀")
#: Times that each is repeated, so that steps meet what earlier ones have made of neighbours.
_TIMES = 4
_MOST_STEPS = 512
_MOST_TEXTS = 1024
#: Places of a template into which a text is put, e.g. a pair of one text with itself.
_MOST_COPIES = 4
#: Where a part of a definition lists its own parts.
_PARTS = ("normalizers", "pretokenizers", "decoders", "processors")
#: What the model repeats for each unknown word or piece of a word.
_REPEATED = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix")
_CJK = re.compile("([\u4e00-\u9fff])")
#: Patterns that match no empty place: letters and classes of them, perhaps repeated.
_ATOM = r"(?:\\[sSdDwW]|\\[pP]\{\w+\}|\\[^\w]|\[[^\]\[]+\]|[^\\\[\](){}.*+?|^$])"
_NOT_EMPTY = re.compile(rf"(?:{_ATOM}(?:\+|\{{[1-9]\d*(?:,\d*)?\}})?)+")
#: Type of a step -> the longest that it makes of a text. Bytes become letters of up to two bytes.
_CHANGES: dict[str, Callable[[str], str]] = {
    **{form: functools.partial(unicodedata.normalize, form) for form in ("NFC", "NFD", "NFKC")},
    **dict.fromkeys(("NFKD", "Precompiled"), functools.partial(unicodedata.normalize, "NFKD")),
    "Lowercase": str.lower,
    "BertNormalizer": lambda text: _CJK.sub(r" \1 ", unicodedata.normalize("NFD", text.lower())),
    "ByteLevel": lambda text: text.encode("utf-8", "replace").decode("latin-1"),
}


def check_growth(what: str, definition: dict[str, Any]) -> None:
    """Refuse a tokenizer that makes more than a few hundred characters, or copies, of one.

    Args:
        what: Whose it is, for the message.
        definition: Content of a ``tokenizer.json``, with or without its vocabulary.
    """
    reading = [*_steps(definition.get("normalizer")), *_steps(definition.get("pre_tokenizer"))]
    writing = [*_steps(definition.get("decoder"))]
    fault = (
        _fault_of_texts([definition.get("model"), *reading, *writing])
        or _fault_of_steps(reading)
        or _fault_of_steps(writing)
        or _fault_of_template([*_steps(definition.get("post_processor"))])
    )
    if fault:
        raise UsageError(
            f"the tokenizer of {what} makes too much of a text ({fault}); take one whose"
            " replacements are short"
        )


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


def _fault_of_texts(steps: list[Any]) -> str:
    """Return what is wrong with the texts that steps, or the model, put into a text."""
    for step in steps:
        if not isinstance(step, dict):
            continue
        for name in ("content", "prepend", *_REPEATED):
            text = step.get(name)
            if isinstance(text, str) and len(text) > _MOST:
                return f"its {name} has {len(text):,} characters"
        try:
            content = base64.b64decode(step.get("precompiled_charsmap") or "")
        except (binascii.Error, TypeError, ValueError):
            continue  # said by its library
        # SentencePiece's: the size of its index, the index, texts with a zero after each
        begin = 4 + int.from_bytes(content[:4], "little")
        longest = max(map(len, content[begin:].split(b"\0")))
        if longest > _MOST:
            return f"its map of letters has a text of {longest:,} bytes"
    return ""


def _fault_of_steps(steps: list[dict[str, Any]]) -> str:
    """Return what is wrong with the length to which steps, one after the other, bring a text."""
    if len(steps) > _MOST_STEPS:
        return f"it has {len(steps):,} steps"
    texts = set(_LETTERS)
    for step in steps:
        for text in (*_pattern(step), step.get("content")):
            if isinstance(text, str):
                texts |= {text, *text[:_MOST]}
    if len(texts) > _MOST_TEXTS:
        return f"its steps name {len(texts):,} texts"
    for text in texts - {""}:
        grown = text * _TIMES
        for step in steps:
            grown = _apply(step, grown)
            if len(grown) > _MOST * _TIMES * len(text):
                return f"a step {step.get('type')} makes more than {_MOST} of one"
    return ""


def _pattern(step: dict[str, Any]) -> tuple[str, str]:
    """Return what a step replaces as a text and as a regular expression; empty if not so given."""
    pattern = step.get("pattern")
    if step.get("type") != "Replace" or not isinstance(pattern, dict):
        return "", ""
    return str(pattern.get("String", "")), str(pattern.get("Regex", ""))


def _apply(step: dict[str, Any], text: str) -> str:
    """Return a text after a step, or one of the greatest length that it may have."""
    kind = step.get("type")
    if kind == "Prepend":
        return str(step.get("prepend", "")) + text
    if kind != "Replace":
        return _CHANGES.get(str(kind), str)(text)
    wanted, expression = _pattern(step)
    made = step.get("content")
    if not isinstance(made, str) or not made:
        return text
    if wanted:
        return text.replace(wanted, made)
    if not _NOT_EMPTY.fullmatch(expression):  # a place before each letter
        return "".join(letter + made for letter in text)
    return text if len(made) == 1 else made * len(text)


def _fault_of_template(steps: list[dict[str, Any]]) -> str:
    """Return what is wrong with the number of texts, or of tokens, that templates put in."""
    copies = 1
    for step in steps:
        single = step.get("single")
        if not isinstance(single, list):
            continue
        names = [name for piece in single if isinstance(piece, dict) for name in piece]
        copies *= max(1, names.count("Sequence"))
        if copies > _MOST_COPIES or len(names) > _MOST:
            return f"its template has {len(names):,} parts and puts a text into {copies} places"
        tokens = step.get("special_tokens")
        for token in tokens.values() if isinstance(tokens, dict) else ():
            ids = token.get("ids") if isinstance(token, dict) else None
            if isinstance(ids, list) and len(ids) > _MOST:
                return f"its template has {len(ids):,} tokens for one"
    return ""
