"""The files of a stranger's tokenizer, looked at before its library reads them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from promptcli.backbones.tokenizer_growth import check_growth
from promptcli.errors import UsageError, shorten
from promptcli.storage.paths import inside

DEFINITION = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
_SPECIALS = "special_tokens_map.json"
#: What the library knows of a token; a definition also has its id, transformers' settings a type.
_TOKEN = {"content", "single_word", "lstrip", "rstrip", "normalized", "special"}
#: Parts of a model that are long, and are passed over.
_VOCABULARY = {"vocab", "merges"}


def check_tokenizer(folder: Path) -> None:
    """Refuse a tokenizer that makes megabytes of a letter, or whose tokens have unknown fields: the
    library prints those on standard output, where results go.
    """
    settings = json_or_none(folder / SETTINGS)
    versions = settings.get("fast_tokenizer_files") if isinstance(settings, dict) else None
    parts = [(settings, "__type"), (json_or_none(folder / _SPECIALS), "__type")]
    for name in [DEFINITION, *(versions if isinstance(versions, list) else ())]:
        path = inside(folder, str(name))
        if path is not None:
            definition = read_definition(path)
            check_growth(folder.name, definition)
            parts.append((definition.get("added_tokens"), "id"))
    for part, also in parts:
        for token in _tokens(part):
            if unknown := token.keys() - _TOKEN - {also}:
                raise UsageError(
                    f"a token of {folder.name} has the field {shorten(min(unknown))}, which its"
                    " library does not know; take it out"
                )


def _tokens(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the tokens in a content of JSON: objects with a text."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            if isinstance(item.get("content"), str):
                yield item
            else:
                waiting += item.values()


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
