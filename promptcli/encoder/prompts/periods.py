"""The end mark that PromptBERT's evaluation gives a sentence without one, in the sentence's own script.

For Latin and every script that is not in the table it is the published rule, mark for mark (a "!" gets a period, too).
"""

import unicodedata
from dataclasses import dataclass

_PUBLISHED = (".", "?", '"', "'")
#: Marks that end sentences of other scripts, whatever script the last word is written in (a name, a number).
_STOPS = tuple("。．｡！？।॥؟۔։።፧។៕။།༎᠃")  # noqa: RUF001 - the full-width ones are meant
_CLOSING = ("!", "…", "”", "’", "»")  # noqa: RUF001


@dataclass(frozen=True)
class Ending:
    """How sentences of a script end."""

    stop: str  #: put after a sentence that has no end mark; empty where the script has none
    closing: tuple[str, ...] = _CLOSING  #: what may end a sentence beyond the marks taken in every script


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
