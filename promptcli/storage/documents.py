"""The one way to read a stored JSON or TOML document: a dataclass says what is in it, anything else is one line.

A document's class may have a field ``schema_version`` with the version it describes as its default; a file of another
version is refused, one without a version counts as the oldest.
"""

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from promptcli.errors import CheckFailedError, PromptcliError, did_you_mean

#: Containers in each other; every document of ours has fewer than ten.
DEEPEST = 64
#: Characters of a value or reason that a message shows.
_SHOWN = 80

#: What msgspec calls a type, and what a reader of a JSON or TOML file calls it.
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
    "object": "a table of keys and values",
    "array": "a list",
}

Document = TypeVar("Document")


def read_document(
    path: Path, kind: type[Document], *, mend: str, error: type[PromptcliError] = CheckFailedError, closed: bool = False
) -> Document:
    """Read a document, TOML where the file's name ends so, else JSON.

    Args:
        path: The file; it is there.
        kind: A dataclass, or a type such as ``dict[str, str]``.
        mend: What the user is to do about a wrong file; ends the message.
        error: ``CheckFailedError`` for files that promptcli wrote, ``UsageError`` for the user's.
        closed: Refuse keys that are no fields.

    Raises:
        PromptcliError: of class ``error``: which file, which field, what it holds, what to do.
    """
    if path.exists() and not path.is_file():
        raise error(f"{path} is no regular file; {mend}")
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}; {mend}") from None
    toml = path.suffix == ".toml"
    return parse_document(content, kind, name=str(path), mend=mend, error=error, closed=closed, toml=toml)


def parse_document(
    content: bytes | str,
    kind: type[Document],
    *,
    name: str,
    mend: str,
    error: type[PromptcliError] = CheckFailedError,
    closed: bool = False,
    toml: bool = False,
) -> Document:
    """Read a document from its content; ``name`` stands for it in messages. See ``read_document``."""
    try:
        values = parse_toml(content) if toml else parse_json(content)
        check_version(values, kind)
        return convert(values, kind, closed=closed)
    except ValueError as problem:
        raise error(f"{name}: {problem}; {mend}") from None


def parse_json(content: bytes | str) -> Any:
    """Return the value of JSON text, each number finite and of at most 64 bits, each text UTF-8, each key once.

    Raises:
        ValueError: it is none; the message is the reason, one short line.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_number, parse_int=_integer)
    except UnicodeDecodeError as problem:
        raise ValueError(f"no UTF-8 at byte {problem.start}") from None
    except json.JSONDecodeError as problem:
        at = f"line {problem.lineno}, column {problem.colno}"
        raise ValueError(f"no JSON: {problem.msg[:1].lower()}{problem.msg[1:]} ({at})") from None
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from None
    _check_values(value)
    return value


def parse_toml(content: bytes | str) -> Any:
    """Return the value of TOML text; see ``parse_json``.

    Raises:
        ValueError: it is none; the message is the reason, one short line.
    """
    try:
        value = tomllib.loads(content if isinstance(content, str) else content.decode("utf-8"))
    except UnicodeDecodeError as problem:
        raise ValueError(f"no UTF-8 at byte {problem.start}") from None
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from None
    except ValueError as problem:  # also an integer of more digits than Python reads
        raise ValueError(f"no TOML: {str(problem)[:_SHOWN]}") from None
    _check_values(value)
    return value


def convert(values: Any, kind: type[Document], *, closed: bool = False) -> Document:
    """Return plain values as a dataclass or another type.

    Raises:
        ValueError: a field is missing or of another type; the message names it and what it holds.
    """
    import msgspec

    if closed and dataclasses.is_dataclass(kind) and isinstance(values, dict):
        known = [field.name for field in dataclasses.fields(kind)]
        for key in values:
            if key not in known:
                raise ValueError(f"unknown key {shown(key)}; valid: {', '.join(known)}{did_you_mean(key, known)}")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as problem:
        raise ValueError(_described(str(problem), values)) from None
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from None


def check_version(values: Any, kind: type[Any]) -> None:
    """Refuse a document of a version that its class does not describe.

    Raises:
        ValueError: with both versions.
    """
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    wanted: Any = next((field.default for field in fields if field.name == "schema_version"), None)
    if wanted is None or not isinstance(values, Mapping):
        return
    version = values.get("schema_version", 1)
    if type(version) is not int or not 1 <= version <= wanted:
        raise ValueError(f"it has version {shown(version)}; this promptcli reads versions up to {wanted}")


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


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {shown(next(key for key in keys if keys.count(key) > 1))} is there twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"it holds {text}, which is no number")


def _integer(text: str) -> int:
    if len(text) > 20:
        raise ValueError(f"it holds an integer of {len(text)} digits")
    return int(text)


def _check_values(value: Any) -> None:
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        if isinstance(item, dict):
            waiting += ((part, depth + 1) for pair in item.items() for part in pair)
        elif isinstance(item, list):
            waiting += ((part, depth + 1) for part in item)
        elif isinstance(item, float) and not math.isfinite(item):
            raise ValueError("it holds a number that is not finite")
        elif isinstance(item, int) and abs(item) >= 1 << 63:
            raise ValueError("it holds an integer of more than 64 bits")
        elif isinstance(item, str) and not item.isascii():
            try:
                item.encode("utf-8")
            except UnicodeEncodeError:
                raise ValueError(f"{shown(item)} holds half of a surrogate pair, which is no text") from None


def _described(message: str, values: Any) -> str:
    """Turn msgspec's ``Expected `int`, got `str` - at `$.a[0]` `` into which field, what it holds, what is allowed."""
    reason, _, path = message.partition(" - at `")
    path = path.rstrip("`").removeprefix("$").removeprefix(".")
    missing = re.fullmatch(r"Object missing required field `(.*)`", reason)
    if missing:
        return f"the field {'.'.join(filter(None, [path, missing[1]]))!r} is missing"
    wanted = re.match(r"Expected `(.*?)`", reason)
    if wanted:
        allowed = "it must be " + " or ".join(_WORDS.get(name, name) for name in wanted[1].split(" | "))
    else:
        allowed = reason[:1].lower() + reason[1:]
    if not path:
        return f"it holds {shown(values)}, and {allowed}"
    for key in re.findall(r"\[(\d+)\]|\.?([^.\[\]]+)|(\[\.\.\.\])", path):
        try:
            values = values[int(key[0])] if key[0] else values[key[1]]
        except (KeyError, IndexError, TypeError):  # msgspec does not say which key of a mapping
            return f"the field {path!r} does not hold what it must: {allowed}"
    return f"the field {path!r} holds {shown(values)}, and {allowed}"
