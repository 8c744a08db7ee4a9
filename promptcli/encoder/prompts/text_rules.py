"""Text rules applied to a sentence before it enters a template: end marks, and the rules of papers."""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from promptcli.errors import look_up

_PUBLISHED = (".", "?", '"', "'")
#: Marks that end sentences of other scripts, whatever script the last word is written in (a name, a number).
_STOPS = tuple("。．｡！？।॥؟۔։።፧។៕။།༎᠃")  # noqa: RUF001 - the full-width ones are meant
_CLOSING = ("!", "…", "”", "’", "»")  # noqa: RUF001


@dataclass(frozen=True)
class Ending:
    """How sentences of a script end."""

    stop: str  #: appended to a sentence without an end mark; empty if the script has none
    closing: tuple[str, ...] = _CLOSING  #: further end marks beside those of every script


_EAST_ASIAN = Ending("。", (*_CLOSING, "」", "』", "】", "〟"))
_DANDA = Ending("।")
#: Script, as the first word of its letters' Unicode names, -> how its sentences end.
ENDINGS: dict[str, Ending] = {
    **dict.fromkeys(("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "BOPOMOFO"), _EAST_ASIAN),
    **dict.fromkeys(("DEVANAGARI", "BENGALI", "GURMUKHI", "ORIYA"), _DANDA),
    "ARABIC": Ending("."),
    "ARMENIAN": Ending("։", (*_CLOSING, ":", "՞", "՜")),  # noqa: RUF001
    "ETHIOPIC": Ending("።"),
    "KHMER": Ending("។"),
    "MYANMAR": Ending("။"),
    "TIBETAN": Ending("།"),
    "MONGOLIAN": Ending("᠃"),  # noqa: RUF001
    "GREEK": Ending(".", (*_CLOSING, ";", "\u037e")),
    "THAI": Ending(""),
    "LAO": Ending(""),
}
_ELSEWHERE = Ending(".", ())


def with_period(text: str) -> str:
    """Return a text with an end mark after it, unless it is empty or has one; the script is that of its last letter."""
    if not text or text.endswith(_PUBLISHED):
        return text
    if text.isascii():
        return text + "."
    if text.endswith(_STOPS):
        return text
    letter = next((sign for sign in reversed(text) if sign.isalpha()), "")
    ending = ENDINGS.get(unicodedata.name(letter, "").partition(" ")[0], _ELSEWHERE) if letter else _ELSEWHERE
    return text if text.endswith(ending.closing) else text + ending.stop


def _prompteol(sentence: str) -> str:
    """Return the text with single quotes for double ones and with a full stop for a final question mark.

    PromptEOL's evaluation code (and all that follow it); the full stop that it appends is the recipe's ``period``.
    """
    quoted = sentence.replace('"', "'")
    return quoted[:-1] + "." if quoted.endswith("?") else quoted


TEXT_RULES: dict[str, Callable[[str], str]] = {"prompteol": _prompteol, "lower": str.lower}


def text_rule(name: str | None) -> Callable[[str], str]:
    """Return the rule of a recipe; without a name one that changes nothing."""
    return str if name is None else look_up("text rule", name, TEXT_RULES)
