"""The language of texts, by which their words are stemmed, and whether a model has learned it.

If the script belongs to one language, the script decides. For Latin letters py3langid decides. It
takes half a second to load, so it is used only if the English vocabulary splits many words.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from promptcli.backbones.model_folder import SHIPPED_BACKBONES
from promptcli.backbones.tokenizer import PieceTokenizer, shipped_tokenizer
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.notes import note

ENGLISH = "English"
_NAMES = {
    "en": ENGLISH,
    "de": "German",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ru": "Russian",
    "zh": "Chinese",
    "ja": "Japanese",
    "tr": "Turkish",
    "sv": "Swedish",
    "da": "Danish or Norwegian",
    "no": "Danish or Norwegian",
    "nb": "Danish or Norwegian",
    "nn": "Danish or Norwegian",
    "fi": "Finnish",
    "cs": "Czech",
    "ro": "Romanian",
    "hu": "Hungarian",
    "id": "Indonesian or Malay",
    "ms": "Indonesian or Malay",
}
_SAMPLE_TEXTS = 200
_SAMPLE_CHARACTERS = 1000  # of each text
#: Largest number of tokens of the English vocabulary per word of an English text. Of 300 sentences,
#: 11% have more in English, 96% in French, and all in German, Spanish, Italian, Dutch, Polish and
#: Portuguese.
_MAX_ENGLISH_PIECES = 1.3
#: Lowest probability at which py3langid is trusted: it mistakes none of 300 English sentences, and
#: identifies 98% or more of the others.
_MIN_PROBABILITY = 0.3
_MIN_FOREIGN_SHARE = 1 / 3  #: of texts that seem not to be English, for py3langid to be used
#: Largest number of tokens per word of a model that has learned the language, as a share of the
#: English vocabulary's.
_MAX_PIECES_SHARE = 0.9
#: The language of texts in a script that several languages share, or that is not identified here.
_UNNAMED = "the language of these texts"
_UNDECIDED = ""  #: the language of texts in Latin letters that are too short or may be names
_LATIN = re.compile("[A-Za-zÀ-ÖØ-öø-ɏ]")
_CYRILLIC = re.compile("[Ѐ-ӿ]")
_NOT_RUSSIAN = re.compile("[іїєґўјљњћџђѓќѕҐ-ӿ]", re.IGNORECASE)
_KANA = re.compile("[぀-ヿ]")
_HAN = re.compile("[㐀-鿿]")


def main_language(texts: Iterable[str]) -> str:
    """Return the language of the most texts; English if it cannot be identified."""
    language = _language_of_most(texts)
    return language if language in _NAMES.values() else ENGLISH


def note_unread(encoder: Encoder, texts: Sequence[str]) -> None:
    """Warn the user if the encoder's vocabulary splits the texts' words into small pieces."""
    sampled = sample(texts)
    pieces = encoder.piece_tokenizer.pieces_per_word(sampled)
    if pieces <= _MAX_ENGLISH_PIECES:
        return
    if pieces < _MAX_PIECES_SHARE * _english().pieces_per_word(sampled):
        return
    language = _language_of_most(sampled)
    if language in (ENGLISH, _UNDECIDED):
        return
    name = encoder.name or encoder.backbone_provenance.backbone
    note(
        f"{name!r} has not learned {language}: it knows the words of these texts in pieces only,"
        " and finds little by meaning; use the model mini-multi, or another that has learned it"
    )


def sample(texts: Iterable[str]) -> list[str]:
    """Return the beginnings of some texts: spread over a list, but the first of an iterator."""
    if isinstance(texts, Sequence):
        texts = texts[:: math.ceil(len(texts) / _SAMPLE_TEXTS) or 1]
    return [text[:_SAMPLE_CHARACTERS] for text, _ in zip(texts, range(_SAMPLE_TEXTS), strict=False)]


def _language_of_most(texts: Iterable[str]) -> str:
    """Return the language of the most texts, or ``_UNNAMED``, or ``_UNDECIDED``."""
    counts = Counter[str]()
    latin = list[str]()
    for text in sample(texts):
        letters = sum(map(str.isalpha, text))
        if not letters:
            continue
        kana = len(_KANA.findall(text))
        if 2 * (kana + len(_HAN.findall(text))) > letters:
            counts["Japanese" if kana else "Chinese"] += 1
        elif 2 * len(_CYRILLIC.findall(text)) > letters:
            counts[_UNNAMED if _NOT_RUSSIAN.search(text) else "Russian"] += 1
        elif 2 * len(_LATIN.findall(text)) > letters:
            latin.append(text)
        else:
            counts[_UNNAMED] += 1
    foreign = [text for text in latin if _english().pieces_per_word([text]) > _MAX_ENGLISH_PIECES]
    counts[ENGLISH] += len(latin) - len(foreign)
    if len(foreign) < _MIN_FOREIGN_SHARE * len(latin):
        counts[_UNDECIDED] += len(foreign)
        foreign = []
    for text in foreign:
        counts[_NAMES.get(_identifier().classify(text)[0], _UNDECIDED)] += 1
    return max(counts, key=counts.__getitem__)


@functools.cache
def _english() -> PieceTokenizer:
    """Return the English vocabulary of the shipped encoders."""
    return shipped_tokenizer(SHIPPED_BACKBONES["mini-bert"])


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(
        MODEL_FILE, norm_probs=True, min_confidence=_MIN_PROBABILITY
    )
