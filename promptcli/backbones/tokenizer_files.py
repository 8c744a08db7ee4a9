"""The files of a stranger's tokenizer, looked at before its library reads them.

The library prints on standard output, where results go, each field of a token that it does not
know. So it is given a copy without such fields.
"""

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from promptcli.backbones.tokenizer_growth import check_growth
from promptcli.storage.paths import inside

DEFINITION = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
_SPECIALS = "special_tokens_map.json"
#: What the library knows of a token.
_TOKEN = frozenset(("content", "single_word", "lstrip", "rstrip", "normalized", "special"))
#: Marks an object of the settings that is a token, and is taken out before the token is made.
_TYPE = "__type"
#: Settings that transformers takes from the definition alone, and hands on with all their fields.
_HANDED_ON = ("tokenizer_padding", "tokenizer_truncation", "_json_padding", "_json_truncation")
#: Files of a folder that a tokenizer may be read from.
_SUFFIXES = (".json", ".txt", ".model")


class _ModelTexts(msgspec.Struct):
    """The texts of a model that it may repeat."""

    unk_token: Any = None
    continuing_subword_prefix: Any = None
    end_of_word_suffix: Any = None


class _WithoutVocabulary(msgspec.Struct):
    """What is read of a definition: its vocabulary, which is long, is passed over."""

    added_tokens: Any = None
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None
    model: _ModelTexts | None = None


class _Model(msgspec.Struct):
    unk_id: int | None = None


class _Unigram(msgspec.Struct):
    model: _Model


def unigram_unknown(definition: bytes) -> int | None:
    """Return the id of the unknown token of a Unigram model; None if it has none."""
    return msgspec.json.decode(definition, type=_Unigram).model.unk_id


class _Part(msgspec.Struct):
    """A normalizer or a pre-tokenizer."""

    type: str = ""
    normalizers: "list[_Part]" = []
    pattern: Any = None


class _Typed(msgspec.Struct):
    type: str = ""


class _Steps(msgspec.Struct):
    """What a tokenizer does to a text, without its vocabulary."""

    model: _Typed
    normalizer: _Part | None = None
    pre_tokenizer: _Part | None = None
    added_tokens: list[Any] = []
    truncation: Any = None


def encodes_by_words(definition: bytes) -> bool:
    """Return whether a text's tokens are those of its words, if the text is in form NFKC.

    Words end at spaces and at ASCII punctuation, as BERT's do: no step looks further, and no token
    is added to the vocabulary.
    """
    steps = msgspec.json.decode(definition, type=_Steps)
    parts = []
    if steps.normalizer is not None:
        parts = steps.normalizer.normalizers or [steps.normalizer]
    starts_composed = bool(parts) and parts[0].type == "NFKC"
    return (
        starts_composed
        and all(map(_is_of_characters, parts[1:]))
        and steps.pre_tokenizer is not None
        and steps.pre_tokenizer.type == "BertPreTokenizer"
        and steps.model.type in ("WordPiece", "Unigram")
        and not steps.added_tokens
        and steps.truncation is None
    )


#: A pattern of one character: a class of such without another inside.
_CLASS_OF_CHARACTERS = re.compile(r"\[\^?(?:[^\[\]\\&]|\\.)+\]", re.DOTALL)


def _is_of_characters(part: _Part) -> bool:
    """Return whether a normalizer changes characters one by one."""
    if part.type == "Replace":
        old = part.pattern or {}
        return len(old.get("String", "")) == 1 or bool(
            _CLASS_OF_CHARACTERS.fullmatch(old.get("Regex", ""))
        )
    return part.type == "Lowercase"


@contextlib.contextmanager
def without_unknown_fields(folder: Path) -> Iterator[Path]:
    """Yield a folder of a tokenizer, or a temporary copy if a token has fields that its library
    does not know; refuse one that makes megabytes of a letter.
    """
    known = {name: content for name, content in _cleaned_files(folder) if content is not None}
    if not known:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="promptcli-") as temporary:
        copy = Path(temporary)
        for path in folder.iterdir():
            if path.suffix in _SUFFIXES and path.name not in known and path.is_file():
                shutil.copyfile(path, copy / path.name)
        for name, content in known.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_text(json.dumps(content), encoding="utf-8")
        yield copy


def _cleaned_files(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the names of the files that have tokens, and their content without unknown fields.

    The content is None if they have none.
    """
    settings = json_or_none(folder / SETTINGS)
    yield SETTINGS, _content_after(settings, _clean_settings)
    yield _SPECIALS, _content_after(json_or_none(folder / _SPECIALS), _clean_specials)
    for name in definition_names(settings):
        path = inside(folder, name)
        if path is None:
            continue
        if _has_unknown(checked_definition(folder.name, path).get("added_tokens")):
            yield name, _content_after(json_or_none(path), _clean_definition)


def definition_names(settings: Any) -> list[str]:
    """Return the names of the definitions of a tokenizer, by its settings: several for several
    versions.
    """
    versions = settings.get("fast_tokenizer_files") if isinstance(settings, dict) else None
    if not isinstance(versions, list):
        versions = []
    return list(dict.fromkeys((DEFINITION, *filter(_is_text, versions))))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def json_or_none(path: Path) -> Any:
    """Return the content of a JSON file; None if it is missing or wrong, which is said by whoever
    needs the file.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError):
        return None


def checked_definition(what: str, path: Path) -> dict[str, Any]:
    """Return a definition without its vocabulary; empty if it is missing or wrong, which its
    library says.

    Refuse one that makes megabytes of a letter.
    """
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_WithoutVocabulary)
        definition: Any = msgspec.to_builtins(content)
    except OSError:
        definition = None
    except (msgspec.DecodeError, ValueError, RecursionError):  # Python's reader allows more
        definition = json_or_none(path)
    if not isinstance(definition, dict):
        return {}
    check_growth(what, definition)
    return definition


def _content_after(content: Any, clean: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return the content of a file as ``clean`` leaves it; None if that changes nothing."""
    if not isinstance(content, dict):
        return None
    cleaned = clean(content)
    return None if cleaned == content else cleaned


def _clean_settings(settings: dict[str, Any]) -> dict[str, Any]:
    cleaned = {name: _clean(value) for name, value in settings.items() if name not in _HANDED_ON}
    decoder = cleaned.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        cleaned["added_tokens_decoder"] = {key: _token(token) for key, token in decoder.items()}
    return cleaned


def _clean(value: Any) -> Any:
    """Return a value of the settings in which each object that is marked as a token has known
    fields only.
    """
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get(_TYPE) == "AddedToken":
        return {_TYPE: value[_TYPE], **_token(value)}
    return {key: _clean(item) for key, item in value.items()}


def _clean_specials(specials: dict[str, Any]) -> dict[str, Any]:
    cleaned = {name: _token(value) for name, value in specials.items()}
    extra = specials.get("extra_special_tokens")
    if isinstance(extra, list):
        cleaned["extra_special_tokens"] = list(map(_token, extra))
    elif extra is not None:  # texts by their names
        cleaned["extra_special_tokens"] = extra
    return cleaned


def _clean_definition(definition: dict[str, Any]) -> dict[str, Any]:
    tokens = definition.get("added_tokens")
    if not isinstance(tokens, list):
        return definition
    return {**definition, "added_tokens": [_token(token, "id") for token in tokens]}


def _has_unknown(tokens: Any) -> bool:
    if not isinstance(tokens, list):
        return False
    return any(_token(token, "id") != token for token in tokens)


def _token(token: Any, *more: str) -> Any:
    """Return a token with the fields that the library knows, and ``more``."""
    if not isinstance(token, dict):
        return token
    return {name: value for name, value in token.items() if name in _TOKEN or name in more}
