"""The one way to read a stored JSON or TOML document: a dataclass says what is in it, anything else is one line.

A document's class may have a field ``schema_version`` with the version it describes as its default; a file of another
version is refused.
"""

import dataclasses
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from promptcli.errors import CheckFailedError, PromptcliError, did_you_mean

#: Containers in each other; every document of ours has fewer than ten.
DEEPEST = 64
_TOO_DEEP = f"it is nested deeper than {DEEPEST} levels"
#: Characters of a value or reason that a message shows.
_SHOWN = 80

#: What msgspec calls a type, and what a reader of a JSON or TOML file calls it.
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a table of keys and values",
    "array": "a list",
}

Document = TypeVar("Document")


def read_document(
    path: Path,
    kind: type[Document],
    *,
    hint: str,
    error: type[PromptcliError] = CheckFailedError,
    closed: bool = False,
    content: bytes | str | None = None,
) -> Document:
    """Read a document, TOML where the file's name ends so, else JSON.

    Args:
        path: The file; it is there.
        kind: A dataclass, or a type such as ``dict[str, str]``.
        hint: What the user is to do about a wrong file; ends the message.
        error: ``CheckFailedError`` for files that promptcli wrote, ``UsageError`` for the user's.
        closed: Refuse keys that are no fields.
        content: What was read of the file already.

    Raises:
        PromptcliError: of class ``error``: which file, which field, what is allowed, what to do.
    """
    try:
        if content is None:
            if path.exists() and not path.is_file():
                raise ValueError("it is no regular file")
            content = path.read_bytes()
        return convert(parse_toml(content) if path.suffix == ".toml" else parse_json(content), kind, closed=closed)
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}; {hint}") from None
    except ValueError as problem:
        raise error(f"{path}: {problem}; {hint}") from None


def parse_json(content: bytes | str) -> Any:
    """Return the value of JSON text, each number finite and each integer of at most 64 bits.

    Raises:
        ValueError: it is none; the message is the reason, one short line.
    """
    return _parsed(content, "JSON")


def parse_toml(content: bytes | str) -> Any:
    """Return the value of TOML text; see ``parse_json``."""
    return _parsed(content, "TOML")


def _parsed(content: bytes | str, language: str) -> Any:
    import msgspec

    try:
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        value = msgspec.json.decode(data) if language == "JSON" else tomllib.loads(data.decode("utf-8"))
    except UnicodeError as problem:
        raise ValueError(f"no UTF-8 at byte {problem.start}") from None  # type: ignore[attr-defined]
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (msgspec.DecodeError, ValueError) as problem:  # the latter of tomllib, also for an endless integer
        raise ValueError(f"no {language}: {str(problem)[:_SHOWN]}") from None
    _check_values(value)
    return value


def _check_values(value: Any) -> None:
    """Refuse what such text may hold and nothing here can use."""
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > DEEPEST:
            raise ValueError(_TOO_DEEP)
        if isinstance(item, int | float) and not abs(item) < (1 << 63 if isinstance(item, int) else math.inf):
            raise ValueError("it holds a number that is not finite, or an integer of more than 64 bits")
        inside = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        waiting += [(part, depth + 1) for part in inside]


def convert(values: Any, kind: type[Document], *, closed: bool = False) -> Document:
    """Return plain values as a dataclass or another type.

    Raises:
        ValueError: another version, a field that is missing or of another type; the message names it.
    """
    import msgspec

    version: Any = getattr(kind, "schema_version", None)
    found = values.get("schema_version", version) if isinstance(values, dict) else version
    if version is not None and found != version:
        raise ValueError(f"it has version {shown(found)}; this promptcli reads version {version}")
    if closed and dataclasses.is_dataclass(kind) and isinstance(values, dict):
        known = [field.name for field in dataclasses.fields(kind)]
        for key in values:
            if key not in known:
                raise ValueError(f"unknown key {shown(key)}; valid: {', '.join(known)}{did_you_mean(key, known)}")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as problem:
        raise ValueError(_described(str(problem))) from None


def _described(message: str) -> str:
    """Turn msgspec's ``Expected `int`, got `str` - at `$.a[0]` `` into which field, what is allowed, what it holds."""
    reason, _, path = message.partition(" - at `$")
    field = path.rstrip("`").removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason):
        return f"the field {'.'.join(filter(None, [field, missing[1]]))!r} is missing"
    if types := re.fullmatch(r"Expected `(.+)`, got `(.+)`", reason):
        wanted, found = (" or ".join(_WORDS.get(name, name) for name in each.split(" | ")) for each in types.groups())
        reason = f"must be {wanted}, not {found}"
    return f"the field {field!r}: {reason}" if field else f"it {reason}"


def to_json(document: Any, *, indent: int | None = 2) -> str:
    """Return a dataclass or JSON-ready values as the text of a file; of a name that is no UTF-8, ``?`` remains.

    Raises:
        TypeError, ValueError: something in it is not JSON.
    """
    values = dataclasses.asdict(document) if dataclasses.is_dataclass(document) else document  # type: ignore[arg-type]
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", "replace").decode() + "\n"


def shown(value: Any) -> str:
    """Return a value for a message, cut, without control characters or anything that is not UTF-8."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
