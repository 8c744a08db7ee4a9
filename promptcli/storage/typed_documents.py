"""JSON and TOML documents, read as a dataclass; a malformed document is an error in one line."""

import codecs
import dataclasses
import json
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from promptcli.errors import CheckFailedError, PromptcliError

_MAX_LEVELS = 64  # of nesting; our documents have fewer than ten
_TOO_DEEP = f"it is nested deeper than {_MAX_LEVELS} levels"

Document = TypeVar("Document")


def read_document(
    path: Path,
    kind: type[Document],
    *,
    hint: str,
    error: type[PromptcliError] = CheckFailedError,
) -> Document:
    """Read a document as a dataclass or another type, such as ``dict[str, str]``.

    It is TOML if the name of the file ends in .toml, else JSON. ``hint`` ends the message about a
    malformed file and names the remedy. ``error`` is ``UsageError`` for the user's files.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is not a regular file")
        content = path.read_bytes()
        parse = parse_toml if path.suffix == ".toml" else parse_json
        return convert(parse(content), kind)
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}; {hint}") from None
    except ValueError as problem:
        raise error(f"{path}: {problem}; {hint}") from None


def parse_json(content: bytes | str) -> Any:
    """Return the value of a JSON text; its numbers are finite, its integers have 64 bits.

    Raises:
        ValueError: With one short line.
    """
    import msgspec

    return _parse(content, msgspec.json.decode, "JSON")


def parse_toml(content: bytes | str) -> Any:
    """Return the value of a TOML text; see ``parse_json``."""
    return _parse(content, lambda data: tomllib.loads(data.decode("utf-8")), "TOML")


def _parse(content: bytes | str, decode: Callable[[bytes], Any], language: str) -> Any:
    import msgspec

    try:
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        value = decode(data.removeprefix(codecs.BOM_UTF8))
    except UnicodeError as problem:
        raise ValueError(f"not UTF-8 at byte {problem.start}") from None  # type: ignore[attr-defined]
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (msgspec.DecodeError, ValueError) as problem:  # ValueError is tomllib's
        raise ValueError(f"not {language}: {str(problem)[:80]}") from None
    _check_value(value)
    return value


def _check_value(value: Any, levels: int = _MAX_LEVELS) -> None:
    """Refuse deep nesting, and JSON numbers that do not fit Python's or the disk's types."""
    if not levels:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_value(item, levels - 1)
        return
    limit = 1 << 63 if isinstance(value, int) else math.inf
    if isinstance(value, int | float) and not abs(value) < limit:
        raise ValueError("it holds a number that is not finite, or an integer of more than 64 bits")


def convert(values: Any, kind: type[Document]) -> Document:
    """Convert plain values to a dataclass or another type.

    Raises:
        ValueError: It names the wrong field.
    """
    import msgspec

    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as problem:
        raise ValueError(str(problem)) from None


def to_json(document: Any, *, indent: int | None = 2) -> str:
    """Return a dataclass or JSON-ready values as the text of a file.

    A byte of a file name that is not UTF-8 becomes ``?``.
    """
    values = dataclasses.asdict(document) if dataclasses.is_dataclass(document) else document  # type: ignore[arg-type]
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", "replace").decode() + "\n"
