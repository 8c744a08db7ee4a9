"""How long a stranger's tokenizer makes a text, judged by its definition before it reads any.

Its library ends the process when memory does, and a replacement may make megabytes of a letter. So
the steps are tried here with the texts that they look for, and with letters that grow.
"""

import base64
import functools
import itertools
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
_CJK = re.compile("([\u4e00-\u9fff])")
#: Patterns that match no empty place: letters and classes of them, perhaps repeated.
_ATOM = r"(?:\\[sSdDwW]|\\[pP]\{\w+\}|\\[^\w]|\[[^\]\[]+\]|[^\\\[\](){}.*+?|^$])"
_NOT_EMPTY = re.compile(rf"(?:{_ATOM}(?:\+|\{{[1-9]\d*(?:,\d*)?\}})?)+")
_NFKD = functools.partial(unicodedata.normalize, "NFKD")
#: Type of a step -> the longest that it makes of a text. Bytes become letters of up to two bytes.
_CHANGES: dict[Any, Callable[[str], str]] = {
    **dict.fromkeys(("NFC", "NFD", "NFKC", "NFKD", "Precompiled"), _NFKD),
    "Lowercase": str.lower,
    "BertNormalizer": lambda text: _CJK.sub(r" \1 ", _NFKD(text.lower())),
    "ByteLevel": lambda text: text.encode("utf-8", "replace").decode("latin-1"),
}


def check_growth(what: str, definition: dict[str, Any]) -> None:
    """Refuse a tokenizer that makes more than a few hundred characters, or copies, of one.

    Args:
        what: Whose it is, for the message.
        definition: Content of a ``tokenizer.json``, with or without its vocabulary.
    """
    names = ("normalizer", "pre_tokenizer", "decoder", "post_processor", "model")
    before, splitting, writing, templates, model = (
        [*_steps(definition.get(name))] for name in names
    )
    reading = before + splitting
    fault = (
        _fault_of_sizes([*reading, *writing, *templates, *model])
        or _fault_of_steps(reading)
        or _fault_of_steps(writing)
    )
    copies = 1
    for step in templates:
        copies *= max(1, str(step.get("single")).count("'Sequence'"))
    if fault or copies > _MOST_COPIES:
        raise UsageError(
            f"the tokenizer of {what} makes too much of a text"
            f" ({fault or 'its template puts it into many places'}); take one whose replacements"
            " are short"
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


def _fault_of_steps(steps: list[dict[str, Any]]) -> str:
    """Return what is wrong with the length to which steps, one after the other, bring a text."""
    named = itertools.chain.from_iterable((*_pattern(step), step.get("content")) for step in steps)
    texts = {*_LETTERS}
    for text in named:
        if isinstance(text, str):
            texts |= {text, *text[:_MOST]}
    if len(steps) > _MOST_PARTS or len(texts) > _MOST_TEXTS:
        return f"it has {len(steps):,} steps that name {len(texts):,} texts"
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
