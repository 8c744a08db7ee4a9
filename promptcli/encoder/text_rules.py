"""Changes of a sentence's characters before tokenisation: an end mark, and the rules of other
programs.
"""

import re
import string
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from promptcli.errors import look_up

_PUBLISHED = (".", "?", '"', "'")
#: Marks that end sentences of other scripts, whatever script the last word is written in (a name, a
#: number).
_STOPS = tuple("。．｡！？।॥؟۔։።፧។៕။།༎᠃")  # noqa: RUF001 - the full-width ones are meant
_CLOSING = ("!", "…", "”", "’", "»")  # noqa: RUF001
END_MARKS = (".", "?", "!", *_STOPS)  #: that end a sentence in any script


#: Script, as the first word of its letters' Unicode names, -> the stop that its sentences get, none
#: or one.
STOPS = {
    **dict.fromkeys(
        ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "BOPOMOFO"), "。"
    ),
    **dict.fromkeys(("DEVANAGARI", "BENGALI", "GURMUKHI", "ORIYA"), "।"),
    "ARABIC": ".",
    "ARMENIAN": "։",  # noqa: RUF001
    "ETHIOPIC": "።",
    "KHMER": "។",
    "MYANMAR": "။",
    "TIBETAN": "།",
    "MONGOLIAN": "᠃",  # noqa: RUF001
    "GREEK": ".",
    "THAI": "",
    "LAO": "",
}
#: Stop or script -> its further end marks, beside ``_CLOSING``.
_FURTHER = {"。": ("」", "』", "】", "〟"), "ARMENIAN": (":", "՞", "՜"), "GREEK": (";", "\u037e")}


def with_period(text: str) -> str:
    """Return a text with an end mark after it, unless it is empty or has one.

    The last letter decides the script.
    """
    if not text or text.endswith(_PUBLISHED):
        return text
    if text.isascii():
        return text + "."
    if text.endswith(_STOPS):
        return text
    letter = next((sign for sign in reversed(text) if sign.isalpha()), None)
    if letter is None:
        return text + "."
    script = unicodedata.name(letter, "").partition(" ")[0]
    if script not in STOPS:
        return text + "."
    closing = (*_CLOSING, *_FURTHER.get(script, ()), *_FURTHER.get(STOPS[script], ()))
    if text.endswith(closing):
        return text
    return text + STOPS[script]


def _prompteol(sentence: str) -> str:
    """Return the text with single quotes for double ones, a full stop for a final ? (PromptEOL's
    evaluation code).
    """
    quoted = sentence.replace('"', "'")
    if quoted.endswith("?"):
        return quoted[:-1] + "."
    return quoted


def _with_full_stop(text: str) -> str:
    """Return a text with " ." after it, unless punctuation ends it or it is empty (SNCSE's code).

    Scripts with their own end mark get that mark, as in ``with_period``.
    """
    ended = text.rstrip()
    if not ended or is_punctuation(ended[-1]):
        return text
    marked = with_period(ended)
    if marked != f"{ended}.":
        return marked
    return f"{text} ."


_TYPED_SPECIAL = re.compile(r"(\[(?:CLS|SEP|PAD|UNK|MASK)\])")


def lower(text: str) -> str:
    """Return the text in lower case.

    A typed special token stays unchanged, as with a tokenizer that lower-cases.
    """
    parts = _TYPED_SPECIAL.split(text)
    for number in range(0, len(parts), 2):  # the others are the special tokens
        parts[number] = parts[number].lower()
    return "".join(parts)


@dataclass(frozen=True)
class TextRule:
    """A rule that changes a sentence's characters."""

    change: Callable[[str], str]
    strips: bool = True  #: whether white space around the sentence is dropped before

    def apply(self, sentence: str, *, period: bool) -> str:
        """Return a sentence as the prompt takes it.

        ``period`` appends "." if the last character is not one of . ? " ' (PromptBERT's evaluation
        code; worth about 5 points without training), or another script's mark (``STOPS``); an empty
        sentence stays empty.
        """
        text = sentence.strip() if self.strips else sentence
        if period:
            text = with_period(text)
        return self.change(text)


PLAIN_TEXT = TextRule(str)  #: rule of a recipe without one
#: The last two are sentence-transformers' rules.
TEXT_RULES = {
    "prompteol": TextRule(_prompteol),
    "full-stop": TextRule(_with_full_stop),
    "lower": TextRule(lower, strips=False),
    "as-typed": TextRule(str, strips=False),
}


def text_rule(name: str | None) -> TextRule:
    """Return the rule of a recipe."""
    if name is None:
        return PLAIN_TEXT
    return look_up("text rule", name, TEXT_RULES)


def is_punctuation(sign: str) -> bool:
    """Return whether a character is a punctuation mark of any script."""
    return sign in string.punctuation or unicodedata.category(sign).startswith("P")
