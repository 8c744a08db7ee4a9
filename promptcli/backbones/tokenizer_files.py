"""The files of a stranger's tokenizer, looked at before its library reads them.

The library prints on standard output, where results go, each field of a token that it does not
know. So it is given a copy without such fields.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
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
#: Parts of a model that are long, and are passed over.
_VOCABULARY = {"vocab", "merges"}
#: Files of a folder that a tokenizer may be read from.
_SUFFIXES = (".json", ".txt", ".model")


@contextlib.contextmanager
def without_unknown_fields(folder: Path) -> Iterator[Path]:
    """Yield a folder of a tokenizer, or a temporary copy if a token has fields that its library
    does not know; refuse one that makes megabytes of a letter.
    """
    settings = json_or_none(folder / SETTINGS)
    versions = settings.get("fast_tokenizer_files") if isinstance(settings, dict) else None
    cleaned: dict[str, Any] = {}
    for name in [DEFINITION, *(versions if isinstance(versions, list) else ())]:
        path = inside(folder, str(name))
        if path is not None:
            definition = read_definition(path)
            check_growth(folder.name, definition)
            tokens = definition.get("added_tokens")
            known = _clean(tokens, {"id"})
            if known != tokens:
                cleaned[str(name)] = json_or_none(path) | {"added_tokens": known}
    if isinstance(settings, dict):
        known = {name: value for name, value in settings.items() if name not in _HANDED_ON}
        known = _clean(known, {_TYPE})
        if "added_tokens_decoder" in known:
            known["added_tokens_decoder"] = _clean(known["added_tokens_decoder"], set())
        cleaned |= {SETTINGS: known} if known != settings else {}
    specials = json_or_none(folder / _SPECIALS)
    known = _clean(specials, set())
    cleaned |= {_SPECIALS: known} if known != specials else {}
    if not cleaned:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="promptcli-") as temporary:
        copy = Path(temporary)
        for path in folder.iterdir():
            if path.suffix in _SUFFIXES and path.is_file():
                shutil.copyfile(path, copy / path.name)
        for name, content in cleaned.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_text(json.dumps(content), encoding="utf-8")
        yield copy


def _clean(value: Any, more: set[str]) -> Any:
    """Return a content in which each token has the fields that the library knows, and ``more``."""
    if isinstance(value, list):
        return [_clean(item, more) for item in value]
    if not isinstance(value, dict):
        return value
    if "content" in value:
        return {name: item for name, item in value.items() if name in _TOKEN | more}
    return {name: _clean(item, more) for name, item in value.items()}


def json_or_none(path: Path) -> Any:
    """Return the content of a JSON file; None if it is missing or wrong, which is said by whoever
    needs the file.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError):
        return None


def read_definition(path: Path) -> dict[str, Any]:
    """Return a definition without its vocabulary; empty if it is missing or wrong, which its
    library says.
    """
    try:
        parts = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        model = msgspec.json.decode(
            parts.pop("model", msgspec.Raw(b"{}")), type=dict[str, msgspec.Raw]
        )
        definition: Any = _decoded(parts)
        definition["model"] = _decoded({name: model[name] for name in model.keys() - _VOCABULARY})
    except OSError:
        definition = None
    except (msgspec.DecodeError, ValueError, RecursionError):  # Python's reader allows more
        definition = json_or_none(path)
    return definition if isinstance(definition, dict) else {}


def _decoded(parts: dict[str, msgspec.Raw]) -> dict[str, Any]:
    return {name: msgspec.json.decode(part) for name, part in parts.items()}
