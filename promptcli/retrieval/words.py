"""The words of a text in any script, and their stems, for BM25."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Scripts without spaces between words.
_SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = r"\w\p{M}"
_ASCII_WORD = re.compile(r"\w+", re.ASCII)
#: A name such as C# and C++: one more word beside its letters.
_SIGNED_WORD = re.compile(r"\w+[#+]+(?!\w)")
#: A byte of a text in ASCII -> its letter in lower case, or a space if it is of no word; the upper
#: half does not occur.
_ASCII_LETTERS = bytes(
    ord(chr(code).lower()) if _ASCII_WORD.match(chr(code)) else ord(" ") for code in range(128)
).ljust(256)
#: Texts of Latin letters without combining marks, and of common punctuation.
_LATIN_TEXT = re.compile("[\0-\u02ff\u2010-\u205e\u20a0-\u20bf]*")
_LATIN_WORD = re.compile(r"\w+")
#: Signs inside a word that writers may leave out: soft hyphens, joiners, Arabic's long strokes, and
#: the points of Hebrew and Arabic vowels.
_LEFT_OUT = re.compile(
    r"[\u00ad\u200c\u200d\u2060\ufeff\ufe00-\ufe0f\u0640\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u064b-\u0652\u0670]"
)
#: Letters with marks, which words lose; Russian ё is written as е, but й is another letter than и.
_MARKED = re.compile("([a-z\u0370-\u03ff])[\u0300-\u036f]+|(\u0435)\u0308")
#: Latin letters that Unicode does not take for others with marks.
_PLAIN = str.maketrans(
    {
        "ø": "o",
        "ł": "l",
        "đ": "d",
        "ð": "d",
        "ħ": "h",
        "\u0131": "i",
        "æ": "ae",
        "œ": "oe",
        "þ": "th",
    }
)
#: A language of ``models.language`` in Latin letters -> Snowball's stemmer of it.
_LATIN = {
    "German": "german",
    "French": "french",
    "Spanish": "spanish",
    "Portuguese": "portuguese",
    "Italian": "italian",
    "Dutch": "dutch",
    "Turkish": "turkish",
    "Polish": "polish",
    "Swedish": "swedish",
    "Danish or Norwegian": "danish",
    "Finnish": "finnish",
    "Czech": "czech",
    "Romanian": "romanian",
    "Hungarian": "hungarian",
    "Indonesian or Malay": "indonesian",
}
#: Script, as Unicode's names of letters begin -> the stemmer of its words in texts of any language.
_SCRIPTS = {"CYRILLIC": "russian", "GREEK": "greek"}
#: The endings by which Snowball knows Portuguese nouns, without their marks.
_PORTUGUESE = re.compile("cao$|coes$")
_STEMS = 1 << 17  # words whose stems are remembered


@functools.cache
def _patterns() -> tuple[Any, Any]:
    """Return the patterns of a run of characters of one kind, and of a character with its marks."""
    import regex  # which takes 0.05 s, and texts in Latin letters do without it

    run = (
        rf"(?V1)(?P<spaceless>[{_SPACELESS}][{_SPACELESS}ー\p{{M}}]*)"
        rf"|[[{_WORD}]--[{_SPACELESS}]]+"
    )
    return regex.compile(run), regex.compile(r"\X")


def words(text: str, *, query: bool = False) -> list[str]:
    """Return the words of a text: runs of letters, digits and underscores, in any Unicode form and
    case, and without accents.

    In scripts without spaces they are single characters and pairs of neighbours; of a query the
    pairs alone, and single characters.

    Example:
        >>> words("Le CAFÉ, 2 fois"), words("猫在"), words("猫在", query=True)
        (['le', 'cafe', '2', 'fois'], ['猫', '在', '猫在'], ['猫在'])
    """
    if text.isascii():
        letters = text.encode().translate(_ASCII_LETTERS)
        return letters.decode().split() + _signed_words(text.lower())
    text = _normalise(text)
    found = _signed_words(text)
    if _LATIN_TEXT.fullmatch(text):
        return _LATIN_WORD.findall(text) + found
    run_pattern, character_pattern = _patterns()
    for run in run_pattern.finditer(text):
        if run["spaceless"] is None:
            found.append(run[0])
            continue
        characters = character_pattern.findall(run[0])
        pairs = [one + two for one, two in itertools.pairwise(characters)]
        if not (query and pairs):
            found += characters
        found += pairs
    return found


def _signed_words(text: str) -> list[str]:
    return _SIGNED_WORD.findall(text) if "#" in text or "+" in text else []


def words_of_each(texts: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the words of m texts, one text after the other, and the text, from 0, that each is
    of.
    """
    found = [words(text) for text in texts]
    rows = np.repeat(np.arange(len(texts)), list(map(len, found)))
    return list(itertools.chain.from_iterable(found)), rows


@functools.cache
def stemmer_of(language: str) -> Callable[[str], str]:
    """Return the function from a word to its stem, which the forms of a word have in common.

    Words with digits or underscores are codes, and remain unchanged. A word in Latin letters has
    the stem of the given language, one of ``models.language``, or English.

    Example:
        >>> stem = stemmer_of("German")
        >>> stem("rechnungen"), stem("rechnung"), stem("mueller"), stem("muller"), stem("kx4831")
        ('rechnung', 'rechnung', 'mull', 'mull', 'kx4831')
    """
    import Stemmer

    of_script = _SCRIPTS | {"LATIN": _LATIN.get(language, "english")}
    stemmers = {
        script: Stemmer.Stemmer(algorithm, 0).stemWord for script, algorithm in of_script.items()
    }

    @functools.lru_cache(_STEMS)
    def stem(word: str) -> str:
        if word.isascii() and word.isalpha():
            script = "LATIN"
        else:
            script = unicodedata.name(word[0], "").partition(" ")[0]
            if script not in stemmers or re.search(r"[\d_#+]", word):
                return word
        noun = _PORTUGUESE.search(word) if language == "Portuguese" else None
        if noun is not None:
            marked = {"cao": "ção", "coes": "ções"}[noun[0]]
            return _without_marks(stemmers[script](word[: noun.start()] + marked).rstrip("ãõ"))
        return _without_marks(stemmers[script](word))

    return stem


def _normalise(text: str) -> str:
    """Return a text without the signs that may be left out, in one Unicode form (NFKC), without
    case and without accents.
    """
    plain = _LEFT_OUT.sub("", unicodedata.normalize("NFKC", text))
    return _without_marks(unicodedata.normalize("NFKC", plain.casefold()))


def _without_marks(text: str) -> str:
    """Return a text in lower case without the accents of its Latin and Greek letters."""
    if text.isascii():
        return text
    bare = _MARKED.sub(r"\1\2", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", bare).translate(_PLAIN)
