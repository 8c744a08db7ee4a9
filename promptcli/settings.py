"""Defaults (built in, of the papers, and the user's own), and the settings of dataclasses.

Functions get the environment as an argument; only ``home_folder`` reads it itself.
"""

import json
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args

from promptcli.errors import UsageError, short_repr, unknown_name_error
from promptcli.storage.files import write_text
from promptcli.storage.typed_documents import read_document


@dataclass(frozen=True)
class Defaults:
    """A complete set of defaults."""

    backbone: str  #: pre-trained model
    development: str  #: task by which searches and training choose
    corpus: str  #: sentences for training and fitting


#: They are in the package, so that they need no network. ``demo`` is not a benchmark.
BUILT_IN = Defaults(backbone="mini-bert", development="demo:dev", corpus="demo")
#: The defaults of PromptBERT, Ditto and DCPCSE, for ``--paper``.
PAPER = Defaults(
    backbone="bert-base-uncased",
    development="STS-B:dev",
    corpus="wiki1m_for_simcse",
)


DEFAULT_MODEL = "mini"  #: the entry if nothing is chosen
#: The entry of ``search``, ``index``, ``similarity`` and ``serve`` if nothing is chosen.
SEARCH_MODEL = "mini-multi"


def setting(default: Any, help_text: str, **metadata: Any) -> Any:
    """Return the dataclass field of a setting; ``help_text`` is that of its option.

    Metadata: ``min`` and ``max``, inclusive bounds; ``above`` and ``below``, exclusive bounds;
    ``choices``, the allowed values.
    """
    return field(default=default, metadata={"help": help_text, **metadata})


def list_of_names(names: str | Path | Sequence[str | Path]) -> list[str]:
    """Return names as a list; a single name becomes a list of one."""
    return [str(names)] if isinstance(names, str | Path) else list(map(str, names))


def spell_value(value: Any) -> str:
    """Return a setting's value as the user types it, e.g. ``true``, ``1e-05``, ``2``."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def spell_settings(values: Mapping[str, Any]) -> list[str]:
    """Return settings as the command line spells them, e.g. ``learning-rate 0.0001``."""
    return [f"{name.replace('_', '-')} {spell_value(value)}" for name, value in values.items()]


class UserDefault(NamedTuple):
    """A default that a user may set."""

    help_text: str
    variable: str  #: environment variable that sets it
    built_in: str | None


USER_DEFAULTS = {
    "backbone": UserDefault(
        "backbone of recipes that do not name one", "PROMPTCLI_BACKBONE", BUILT_IN.backbone
    ),
    "data_dir": UserDefault("SentEval folder of the tasks", "PROMPTCLI_DATA_DIR", None),
}


class EffectiveDefault(NamedTuple):
    """The present value of a default, and where it comes from."""

    value: str | None
    source: str  #: a variable, a file, or ``built in``


#: Bound in the metadata of a field -> its check, and the words for it in a message.
_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "min": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "max": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}


def check_bounds(settings: Any) -> None:
    """Refuse values of a dataclass that have another type, are out of bounds or infinite, or are
    not among the choices of the field.
    """
    for item in fields(settings):
        value = getattr(settings, item.name)
        choices = item.metadata.get("choices")
        if choices is not None and value not in choices:
            raise unknown_name_error(item.name.replace("_", "-"), str(value), choices)
        if requirement := _unmet_requirement(value, item):
            raise UsageError(
                f"{value!r:.40} is not allowed; it must be {requirement}", parameter=item.name
            )


def _unmet_requirement(value: Any, item: Field[Any]) -> str | None:
    """Return what the value of a field must be if it is not, e.g. ``above 0``."""
    kind = item.type
    allowed_types = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    is_exact = value is item.default or type(value) in allowed_types
    if isinstance(value, tuple):
        is_exact = is_exact or get_args(kind) == (*set(map(type, value)), ...)
    if not is_exact:  # exact values need no msgspec, which is too slow to import for ``--help``
        import msgspec

        try:
            msgspec.convert(value, kind)
        except ValueError:
            return f"of the type {getattr(kind, '__name__', kind)}"
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    for name, (is_met, words) in _BOUNDS.items():
        limit = item.metadata.get(name)
        if None not in (value, limit) and not is_met(value, limit):
            return f"{words} {limit}"
    return None


def config_file(environ: Mapping[str, str]) -> Path:
    """Return the file of the user's defaults, in ``PROMPTCLI_HOME`` or the platform's settings
    folder.
    """
    return program_folder(environ, "user_config_dir") / "config.toml"


#: Advice if the program's folder is not writable.
ANOTHER_HOME = "name another folder: PROMPTCLI_HOME=/a/folder"


def program_folder(environ: Mapping[str, str], kind: str) -> Path:
    """Return ``PROMPTCLI_HOME``, else a folder of the platform.

    ``kind`` is the function of platformdirs that returns it, e.g. ``user_data_dir``.
    """
    home = environ.get("PROMPTCLI_HOME")
    if home:
        folder = expand_user(home)
    else:
        import platformdirs

        try:
            folder = Path(getattr(platformdirs, kind)("promptcli", appauthor=False))
        except (RuntimeError, KeyError):
            raise UsageError(f"this user has no home folder; {ANOTHER_HOME}") from None
    try:
        str(folder).encode()  # the libraries of tensors and indexes cannot open other paths
    except UnicodeEncodeError:
        raise UsageError(f"{short_repr(str(folder))} is not UTF-8; {ANOTHER_HOME}") from None
    return folder


def home_folder() -> Path:
    """Return the folder of models, runs and caches: $PROMPTCLI_HOME, else the platform's."""
    return program_folder(os.environ, "user_data_dir")


def is_program_file(path: str) -> bool:
    """Return whether a path is below a folder of the program: its home, or that of its settings."""
    try:
        folders = home_folder(), config_file(os.environ).parent
    except UsageError:  # the user has no home folder
        return False
    return any(map(Path(path).is_relative_to, folders))


def expand_user(path: str) -> Path:
    """Return a path with ``~`` and ``~user`` written out."""
    try:
        return Path(path).expanduser()
    except (RuntimeError, KeyError) as error:
        raise UsageError(f"{path!r}: {error}; type the full path") from None


def read_settings(environ: Mapping[str, str]) -> dict[str, EffectiveDefault]:
    """Return the present value of each default in ``USER_DEFAULTS``.

    The environment overrides the file, and the file overrides the built-in value.
    """
    path = config_file(environ)
    stored = _read_file(path)
    defaults = {}
    for name, (_, variable, built_in) in USER_DEFAULTS.items():
        defaults[name] = EffectiveDefault(built_in, "built in")
        if environ.get(variable):
            defaults[name] = EffectiveDefault(environ[variable], f"${variable}")
        elif stored.get(name):
            defaults[name] = EffectiveDefault(stored[name], str(path))
    return defaults


def write_setting(environ: Mapping[str, str], name: str, value: str | None) -> None:
    """Set a default in the user's file, or remove it (None)."""
    if name not in USER_DEFAULTS:
        raise unknown_name_error("setting", name, USER_DEFAULTS)
    if value is not None and not (value.strip() and value.isprintable()):
        raise UsageError(
            f"{value!r} is not a value for {name}; give one line, or `promptcli config {name}"
            " --unset`"
        )
    if name == "data_dir" and value is not None and not expand_user(value).is_dir():
        raise UsageError(f"data_dir must be a folder, and there is no folder {value!r}")
    path = config_file(environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {**_read_file(path), name: value}
    lines = [
        f"{key} = {json.dumps(text, ensure_ascii=False)}\n"  # a JSON string is a TOML string
        for key, text in values.items()
        if text is not None
    ]
    write_text(path, "".join(lines))


def _read_file(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    hint = 'write lines such as backbone = "mini-bert", or `promptcli config KEY VALUE`'
    stored = read_document(path, dict[str, str], hint=hint, error=UsageError)
    for name in stored:
        if name not in USER_DEFAULTS:
            raise UsageError(f"{path}: {unknown_name_error('key', name, USER_DEFAULTS)}; {hint}")
    return stored
