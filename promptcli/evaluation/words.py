"""The words of a text in any script, for BM25."""

import functools
import itertools
import re
import unicodedata
from typing import Any

#: Scripts without spaces between words.
_SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = r"\w\p{M}"
#: Signs inside a word that writers may leave out: soft hyphens, joiners, Arabic's long strokes, and
#: the points of Hebrew and Arabic vowels.
_LEFT_OUT = re.compile(
    r"[\u00ad\u200c\u200d\u2060\ufeff\ufe00-\ufe0f\u0640\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u064b-\u0652\u0670]"
)


@functools.cache
def _patterns() -> tuple[Any, Any]:
    """Return the patterns of a run of characters of one kind, and of a character with its marks."""
    import regex  # which takes 0.05 s, and no text in ASCII needs it

    run = (
        rf"(?V1)(?P<spaceless>[{_SPACELESS}][{_SPACELESS}ー\p{{M}}]*)"
        rf"|[[{_WORD}]--[{_SPACELESS}]]+"
    )
    return regex.compile(run), regex.compile(r"\X")


def words(text: str, *, query: bool = False) -> list[str]:
    """Return the words of a text: runs of letters, digits and underscores, in any Unicode form and
    case.

    In scripts without spaces they are single characters and pairs of neighbours; of a query the
    pairs alone, and single characters.

    Example:
        >>> words("Le CAFÉ, 2 fois"), words("猫在"), words("猫在", query=True)
        (['le', 'café', '2', 'fois'], ['猫', '在', '猫在'], ['猫在'])
    """
    if text.isascii():
        return re.findall(r"\w+", text.lower())
    run_pattern, character_pattern = _patterns()
    found = list[str]()
    for run in run_pattern.finditer(_normalise(text)):
        if run["spaceless"] is None:
            found.append(run[0])
            continue
        characters = character_pattern.findall(run[0])
        pairs = [one + two for one, two in itertools.pairwise(characters)]
        if not (query and pairs):
            found += characters
        found += pairs
    return found


def _normalise(text: str) -> str:
    """Return a text without the signs that may be left out, in one Unicode form (NFKC) and without
    case.
    """
    plain = _LEFT_OUT.sub("", unicodedata.normalize("NFKC", text))
    return unicodedata.normalize("NFKC", plain.casefold())
