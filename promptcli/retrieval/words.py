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
#: A name such as C# or C++; it is a word in addition to its letters.
_SIGNED_WORD = re.compile(r"\w+[#+]+(?!\w)")
#: Translates an ASCII byte to its lower case, or to a space outside of words. The upper half of the
#: table is never used.
_ASCII_LETTERS = bytes(
    ord(chr(code).lower()) if _ASCII_WORD.match(chr(code)) else ord(" ") for code in range(128)
).ljust(256)
#: A text of Latin letters without combining marks, and of common punctuation.
_LATIN_TEXT = re.compile("[\0-\u02ff\u2010-\u205e\u20a0-\u20bf]*")
_LATIN_WORD = re.compile(r"\w+")
#: Optional signs inside a word: soft hyphens, joiners, Arabic's long strokes, and the points of
#: Hebrew and Arabic vowels.
_OPTIONAL_SIGNS = re.compile(
    r"[\u00ad\u200c\u200d\u2060\ufeff\ufe00-\ufe0f\u0640\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u064b-\u0652\u0670]"
)
#: Letters that lose their marks. Russian ё is also written е, but й is another letter than и.
_MARKED_LETTER = re.compile("([a-z\u0370-\u03ff])[\u0300-\u036f]+|(\u0435)\u0308")
#: Latin letters that Unicode does not decompose into a letter and marks.
_UNMARKED_LETTERS = str.maketrans(
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
#: Language in Latin script (a name of ``models.language``) -> Snowball stemmer.
_LATIN_STEMMERS = {
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
#: Script (the first word of its letters' Unicode names) -> stemmer for texts of any language.
_SCRIPT_STEMMERS = {"CYRILLIC": "russian", "GREEK": "greek"}
#: The unmarked forms of the endings by which Snowball recognises Portuguese nouns.
_PORTUGUESE_NOUN = re.compile("cao$|coes$")
_MAX_CACHED_STEMS = 1 << 17


@functools.cache
def _patterns() -> tuple[Any, Any]:
    """Return the patterns of a run of characters of one kind, and of a character with its marks."""
    import regex  # the import takes 0.05 s, and texts in Latin letters do not need it

    run = (
        rf"(?V1)(?P<spaceless>[{_SPACELESS}][{_SPACELESS}ー\p{{M}}]*)"
        rf"|[[{_WORD}]--[{_SPACELESS}]]+"
    )
    return regex.compile(run), regex.compile(r"\X")


def words(text: str, *, query: bool = False) -> list[str]:
    """Return the words of a text: runs of letters, digits and underscores, without case, accents or
    differences of Unicode form.

    In scripts without spaces, words are single characters and pairs of neighbours. In a query, only
    the pairs and isolated characters are words.

    Example:
        >>> words("Le CAFÉ, 2 fois"), words("猫在"), words("猫在", query=True)
        (['le', 'cafe', '2', 'fois'], ['猫', '在', '猫在'], ['猫在'])
    """
    if text.isascii():
        letters = text.encode().translate(_ASCII_LETTERS)
        return letters.decode().split() + _signed_words(text.lower())
    text = _OPTIONAL_SIGNS.sub("", unicodedata.normalize("NFKC", text))
    text = _remove_marks(unicodedata.normalize("NFKC", text.casefold()))
    text_words = _signed_words(text)
    if _LATIN_TEXT.fullmatch(text):
        return _LATIN_WORD.findall(text) + text_words
    run_pattern, character_pattern = _patterns()
    for run in run_pattern.finditer(text):
        if run["spaceless"] is None:
            text_words.append(run[0])
            continue
        characters = character_pattern.findall(run[0])
        pairs = [first + second for first, second in itertools.pairwise(characters)]
        if not (query and pairs):
            text_words += characters
        text_words += pairs
    return text_words


def _signed_words(text: str) -> list[str]:
    return _SIGNED_WORD.findall(text) if "#" in text or "+" in text else []


def words_of_each(texts: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the words of m texts, text by text, and the number of each word's text, from 0."""
    words_by_text = [words(text) for text in texts]
    rows = np.repeat(np.arange(len(texts)), list(map(len, words_by_text)))
    return list(itertools.chain.from_iterable(words_by_text)), rows


@functools.cache
def stemmer_of(language: str) -> Callable[[str], str]:
    """Return the function that maps a word to its stem, shared by the forms of a word.

    Words with digits or underscores are codes and stay unchanged. A word in Latin letters is
    stemmed by the given language, one of ``models.language``, or by English.

    Example:
        >>> stem = stemmer_of("German")
        >>> stem("rechnungen"), stem("rechnung"), stem("mueller"), stem("muller"), stem("kx4831")
        ('rechnung', 'rechnung', 'mull', 'mull', 'kx4831')
    """
    import Stemmer

    algorithms = _SCRIPT_STEMMERS | {"LATIN": _LATIN_STEMMERS.get(language, "english")}
    stemmers = {
        script: Stemmer.Stemmer(algorithm, 0).stemWord for script, algorithm in algorithms.items()
    }

    @functools.lru_cache(_MAX_CACHED_STEMS)
    def stem(word: str) -> str:
        if word.isascii() and word.isalpha():
            script = "LATIN"
        else:
            script = unicodedata.name(word[0], "").partition(" ")[0]
            if script not in stemmers or re.search(r"[\d_#+]", word):
                return word
        noun = _PORTUGUESE_NOUN.search(word) if language == "Portuguese" else None
        if noun is not None:
            ending = {"cao": "ção", "coes": "ções"}[noun[0]]
            word_stem = stemmers[script](word[: noun.start()] + ending)
            return _remove_marks(word_stem.rstrip("ãõ"))
        return _remove_marks(stemmers[script](word))

    return stem


def _remove_marks(text: str) -> str:
    """Return a text in lower case without the accents of its Latin and Greek letters."""
    if text.isascii():
        return text
    unmarked = _MARKED_LETTER.sub(r"\1\2", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", unmarked).translate(_UNMARKED_LETTERS)
