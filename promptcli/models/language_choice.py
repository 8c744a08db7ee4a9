"""Which model reads texts if none is named: that which is kept for their folder, else a shipped
one, ``mini-multi`` those in its languages other than English.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from promptcli.backbones.locating import SHIPPED
from promptcli.backbones.word_tables import open_table, shipped_tokenizer
from promptcli.encoder.languages import (
    LEARNED,
    foreign_language,
    language_of_script,
    latin_words,
    sample,
)
from promptcli.models.folder_choices import KeptChoice, choice_for
from promptcli.models.loading import DEFAULT_MODEL, MULTILINGUAL, Model
from promptcli.notes import keyword, note
from promptcli.recipe import Choice, is_named

OTHER = "another language than English"
_ENGLISH = "mini-bert"  # whose vocabulary the shipped encoders have
#: Words up to which texts are told by their pieces: more have function words.
_FEW = 60
#: Tokens of a word in an English vocabulary for one in the multilingual vocabulary. For 50
#: sentences of each language they are 1.2 to 3.8, in English up to 1.18.
_MORE_PIECES = 1.25
_LEAST = 2  #: and the least number of further tokens, since a name does not show a language


def model_for(
    model: Model | None,
    texts: Iterable[str],
    default: str = DEFAULT_MODEL,
    kept: KeptChoice | None = None,
) -> Model:
    """Return the model of texts if none is named: the one that is ``kept`` for their files, else
    ``mini-multi`` if they are in one of its other languages.

    Else return the given model, or the default for None. The choice is noted.
    """
    if model is not None and not _names_nothing(model):
        return model
    if kept is not None and kept.model is not None:
        note(f"using {kept.model}, kept for {kept.path}; {keyword('model')} decides otherwise")
        return _with_name(model, kept.model)
    language = language_of(texts)
    name = MULTILINGUAL if language else default
    if language:
        looks = f"look {language}" if language in LEARNED else f"are in {language}"
        note(f"using {MULTILINGUAL}: the texts {looks}; {keyword('model')} decides otherwise")
    elif isinstance(model, Choice) and default == DEFAULT_MODEL:
        return model
    return _with_name(model, name)


def kept_choice(model: Model | None, files: Sequence[str]) -> KeptChoice | None:
    """Return the model and ranking that are kept for files, unless the user named a model."""
    if is_named(model):
        return None
    return choice_for(files)


def _with_name(model: Model | None, name: str) -> Model:
    """Return the shipped or kept model of a name, with the other choices of ``model``."""
    return dataclasses.replace(model, model=name) if isinstance(model, Choice) else name


def _names_nothing(model: Model) -> bool:
    """Return whether a choice leaves the model open, and all that would not suit each model."""
    if not isinstance(model, Choice) or model.changes:
        return False
    return (model.model, model.dim, model.backend) == (None, None, "torch")


def language_of(texts: Iterable[str]) -> str:
    """Return the language of texts that ``mini-multi`` has learned; empty for English, and others.

    Texts of few words are told by their pieces, since they may be without function words:
    ``OTHER``. Words with a capital may be names.
    """
    looked_at = sample(texts)
    language = language_of_script(looked_at) or foreign_language(looked_at)
    if language:
        return language if language in LEARNED else ""
    words = [word for text in looked_at for word in latin_words(text) if not word[0].isupper()]
    if len(words) <= _FEW and _has_more_pieces(words):
        return OTHER
    return ""


def _has_more_pieces(words: list[str]) -> bool:
    """Return whether words have clearly more tokens in the English vocabulary than in the other."""
    english = shipped_tokenizer(SHIPPED[_ENGLISH]).pieces_per_word(words) * len(words)
    if english < len(words) + _LEAST:
        return False  # the other vocabulary, which takes 0.3 s to open, is not asked
    table = open_table(MULTILINGUAL, None)
    assert table is not None
    others = table.tokenizer.pieces_per_word(words) * len(words)
    return english >= max(_MORE_PIECES * others, others + _LEAST)
