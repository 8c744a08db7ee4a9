"""The options of a training in a TOML file, which ``train --config`` reads and ``--dry-run --format
toml`` writes.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from promptcli.cli.options import kinds_of, written_name
from promptcli.errors import NotFoundError, UsageError, unknown
from promptcli.settings import typed_value
from promptcli.storage.typed_documents import parse_toml

#: Options that say what is done now, not what is trained.
_NOT_IN_FILES = {"--config", "--dry-run", "--format", "--json", "--help", "--resume", "--set"}


#: Where the context of a command keeps the settings of a file that have no option of their own.
_SETTINGS = "promptcli.config"


def reads_run_file(settings: type) -> Callable[[typer.Context, Path | None], Path | None]:
    """Return the callback of ``--config``: a file's options become the defaults of the command's,
    so that what is typed wins.

    The fields of ``settings`` without their own option are kept for ``settings_in_file``.
    """

    def read(ctx: typer.Context, value: Path | None) -> Path | None:
        if value is None:
            return None
        options = dict(_by_name(ctx.command.params))
        others = [written_name(field) for field in kinds_of(settings)]
        defaults = dict(ctx.default_map or {})
        pairs = []
        for name, given in _read(value).items():
            if name in options:
                defaults[options[name].name] = _as_option(value, name, given, options[name])
            elif name in others:
                pairs.append(f"{name}={typed_value(given)}")
            else:
                raise unknown(f"key of {value}", name, dict.fromkeys([*options, *others]))
        ctx.default_map = defaults
        ctx.meta[_SETTINGS] = pairs
        return value

    return read


def settings_in_file(ctx: typer.Context) -> list[str]:
    """Return the settings of the command's file, as ``--set`` takes them."""
    pairs: list[str] = ctx.meta.get(_SETTINGS, [])
    return pairs


def _read(path: Path) -> dict[str, Any]:
    """Return the keys and values of a file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(
            f"--config {path}: no such file; `--dry-run --format toml` writes one"
        ) from None
    except OSError as problem:
        raise UsageError(f"--config {path} cannot be read: {problem.strerror}") from None
    try:
        document: dict[str, Any] = parse_toml(content)
    except ValueError as problem:
        raise UsageError(f"--config {path}: {problem}") from None
    return document


def _by_name(parameters: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options that a file may hold, by their names without dashes."""
    for parameter in parameters:
        for flag in parameter.opts:
            if flag.startswith("--") and flag not in _NOT_IN_FILES:
                yield flag.removeprefix("--"), parameter


def _as_option(path: Path, name: str, given: Any, option: Any) -> bool | str | list[str]:
    """Return a value of a file as the option takes it, which checks it as if it were typed."""
    if option.is_flag != isinstance(given, bool):
        takes = "true or false" if option.is_flag else "a value"
        raise UsageError(f"--config {path}: {name} takes {takes}, not {typed_value(given)}")
    if isinstance(given, bool):
        return given
    if isinstance(given, dict) or (isinstance(given, list) and not option.multiple):
        raise UsageError(f"--config {path}: {name} takes one value, not {given}")
    if option.multiple:
        values = given if isinstance(given, list) else [given]
        return [str(value) for value in values]
    return str(given)


def as_toml(values: Mapping[str, Any]) -> str:
    """Return options as a file; those that are not given, and empty ones, are left out."""
    lines = ["# promptcli train --config FILE; what is typed wins over this file"]
    for name, value in values.items():
        if isinstance(value, Path):
            value = str(value)
        if value is None or value in ("", [], ()):
            continue
        # strings, numbers and arrays are written as in JSON
        written = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        lines.append(f"{written_name(name)} = {written}")
    return "\n".join(lines)
