"""A note about texts that a model cannot read: most of their letters are unknown to its
vocabulary, or the common words of their language are.
"""

from collections.abc import Sequence

from promptcli.encoder.languages import (
    LEARNED,
    common_words,
    foreign_language,
    language_of_script,
)
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.notes import keyword, note

_TEXTS, _CHARACTERS = 200, 1000  #: that are looked at, and of each text
#: Share of unknown letters above which a note is due. With the vocabularies of `mini` and
#: all-MiniLM-L6-v2, sentences of English have 0.02, of six other languages in Latin letters 0.05 to
#: 0.25, of Russian, Greek, Hebrew, Arabic, Hindi, Thai, Chinese and Korean 0.7 and more.
_MOST = 0.5
#: Texts of the Latin alphabet with fewer letters are abbreviations, maybe, of any language.
_FEW = 40
#: Tokens of a common word from which its language was not learned. English vocabularies have 2.3 to
#: 3.1 for 15 other languages in Latin letters.
_IN_PIECES = 1.9


def note_unknown_letters(encoder: Encoder, texts: Sequence[str]) -> None:
    """Tell the user if the encoder's vocabulary knows few letters, or words, of the texts."""
    step = max(1, len(texts) // _TEXTS)
    sample = [text[:_CHARACTERS] for text in texts[::step]]
    unknown, letters = encoder.pieces.unknown_letters(sample)
    is_short = letters < _FEW and all(text.isascii() for text in sample)
    name = encoder.name or encoder.origin.backbone
    if unknown > _MOST * letters and not is_short:
        note(
            f"{name!r} has not learned the language of these texts, so their vectors mean little:"
            f" {unknown / letters:.0%} of the letters are unknown to its vocabulary, or known only"
            f" as single letters; {_remedy(language_of_script(sample), 'another')}"
        )
        return
    language = foreign_language(sample)
    if language and encoder.pieces.pieces_per_word(common_words(language)) >= _IN_PIECES:
        note(
            f"{name!r} has not learned {language}, in which these texts seem to be: it knows common"
            f" words in pieces only, and finds little by meaning; {_remedy(language)}"
        )


def _remedy(language: str, other: str = "a multilingual") -> str:
    """Return what to give instead: the shipped model of the language if there is one."""
    if language in LEARNED:
        return f"give {keyword('model')} mini-multi"
    return f"give {other} {keyword('model')}"
