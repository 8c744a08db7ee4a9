"""The language of texts, by which their words are stemmed, and whether a model has learned it.

The script decides if it can. For Latin letters py3langid decides; it takes half a second to load,
so it is used only if the English vocabulary splits many words.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from promptcli.backbones.names import SHIPPED_BACKBONES
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.backbones.word_tables import shipped_tokenizer
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
_TEXTS, _CHARACTERS = 200, 1000  # that are looked at, and of each text
#: Tokens of a word in an English vocabulary. Of 300 sentences 11% have more in English, 96% in
#: French, all in German, Spanish, Italian, Dutch, Polish and Portuguese.
_PIECES = 1.3
#: Lowest probability at which py3langid is trusted: it mistakes none of 300 English sentences, and
#: identifies 98% or more of the others.
_SURE = 0.3
_SHARE = 3  # py3langid is asked if a third of the texts, or more, seem to be of another language
#: Tokens of a word per token in the English vocabulary: a model that has learned a language has
#: fewer
_UNLEARNED = 0.9
#: Language of a script that several languages share, or that is not identified here.
_OF_SCRIPT = "the language of these texts"
_UNTOLD = ""  #: the language of texts in Latin letters that may be names, or are too short
_LATIN = re.compile("[A-Za-zÀ-ÖØ-öø-ɏ]")
_CYRILLIC = re.compile("[Ѐ-ӿ]")
_NOT_RUSSIAN = re.compile("[іїєґўјљњћџђѓќѕҐ-ӿ]", re.IGNORECASE)
_KANA = re.compile("[぀-ヿ]")
_HAN = re.compile("[㐀-鿿]")


def main_language(texts: Iterable[str]) -> str:
    """Return the language of most texts if it can be identified, else English."""
    language = _language_of_most(texts)
    return language if language in _NAMES.values() else ENGLISH


def note_unread(encoder: Encoder, texts: Sequence[str]) -> None:
    """Warn the user if the encoder's vocabulary splits the texts' words into small pieces."""
    looked_at = sample(texts)
    pieces = encoder.piece_tokenizer.pieces_per_word(looked_at)
    if pieces <= _PIECES or pieces < _UNLEARNED * _english().pieces_per_word(looked_at):
        return
    language = _language_of_most(looked_at)
    if language in (ENGLISH, _UNTOLD):
        return
    name = encoder.name or encoder.backbone_provenance.backbone
    note(
        f"{name!r} has not learned {language}: it knows the words of these texts in pieces only,"
        " and finds little by meaning; give the model mini-multi, or another that has"
    )


def sample(texts: Iterable[str]) -> list[str]:
    """Return the beginnings of some texts: spread over a list, else the first texts."""
    if isinstance(texts, Sequence):
        texts = texts[:: max(1, len(texts) // _TEXTS)]
    return [text[:_CHARACTERS] for text, _ in zip(texts, range(_TEXTS), strict=False)]


def _language_of_most(texts: Iterable[str]) -> str:
    """Return the language of most texts, or ``_OF_SCRIPT``, or ``_UNTOLD``."""
    counts = Counter[str]()
    latin = list[str]()
    for text in sample(texts):
        letters = sum(map(str.isalpha, text))
        if not letters:
            continue
        kana, han = len(_KANA.findall(text)), len(_HAN.findall(text))
        if 2 * (kana + han) > letters:
            counts["Japanese" if kana else "Chinese"] += 1
        elif 2 * len(_CYRILLIC.findall(text)) > letters:
            counts[_OF_SCRIPT if _NOT_RUSSIAN.search(text) else "Russian"] += 1
        elif 2 * len(_LATIN.findall(text)) > letters:
            latin.append(text)
        else:
            counts[_OF_SCRIPT] += 1
    odd = [text for text in latin if _english().pieces_per_word([text]) > _PIECES]
    counts[ENGLISH] += len(latin) - len(odd)
    if _SHARE * len(odd) < len(latin):
        counts[_UNTOLD] += len(odd)
        odd = []
    for text in odd:
        counts[_NAMES.get(_identifier().classify(text)[0], _UNTOLD)] += 1
    return max(counts, key=counts.__getitem__)


@functools.cache
def _english() -> PieceTokenizer:
    """Return the English vocabulary of the shipped encoders."""
    return shipped_tokenizer(SHIPPED_BACKBONES["mini-bert"])


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=_SURE)
