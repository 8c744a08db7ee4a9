"""What a command takes where nothing is said: the bare setting, the papers' setting, and the user's own defaults.

The environment and the file are handed in; the entrance reads the real ones.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.errors import UsageError, unknown


@dataclass(frozen=True)
class Preset:
    """A whole set of assumptions.

    Attributes:
        backbone: A pre-trained model.
        recipe: A named recipe, or None for the default entry's own.
        tasks: What is scored; none means the papers' seven test splits.
        development: What searches and training choose by.
        corpus: Sentences to train or fit on.
    """

    backbone: str
    recipe: str | None
    tasks: tuple[str, ...]
    development: str
    corpus: str


#: Works on a fresh machine without network: everything is inside the package. Figures on ``demo`` are no benchmark.
BARE = Preset(backbone="mini", recipe=None, tasks=("demo",), development="demo:dev", corpus="demo")
#: ``--paper``: the setting of PromptBERT, Ditto and DCPCSE.
PAPER = Preset(
    backbone="bert-base-uncased", recipe="prompt", tasks=(), development="STS-B:dev", corpus="wiki1m_for_simcse"
)


@dataclass(frozen=True)
class SettingKey:
    """A default that a user may set.

    Attributes:
        variable: Environment variable.
        default: Where nothing is set.
        help: What it is.
    """

    variable: str
    default: str | None
    help: str


KEYS: dict[str, SettingKey] = {
    "backbone": SettingKey("PROMPTCLI_BACKBONE", BARE.backbone, "backbone of every recipe that names none"),
    "data_dir": SettingKey("PROMPTCLI_DATA_DIR", None, "SentEval folder of the tasks"),
}


@dataclass(frozen=True)
class EffectiveSetting:
    """A default that holds.

    Attributes:
        name: A key of ``KEYS``.
        value: What holds.
        source: Why: a variable, a file, or ``built in``.
    """

    name: str
    value: str | None
    source: str


def config_file(environ: Mapping[str, str]) -> Path:
    """Return the file of the user's defaults: in ``PROMPTCLI_HOME``, else in the platform's folder of settings."""
    home = environ.get("PROMPTCLI_HOME")
    if home:
        return Path(home).expanduser() / "config.toml"
    import platformdirs

    return Path(platformdirs.user_config_dir("promptcli", appauthor=False)) / "config.toml"


def read_settings(environ: Mapping[str, str]) -> dict[str, EffectiveSetting]:
    """Return the defaults that hold: the environment before the file before what is built in.

    Raises:
        UsageError: The file is no TOML, or holds an unknown key or a value that is no text.
    """
    path = config_file(environ)
    stored = _read_file(path)
    found: dict[str, EffectiveSetting] = {}
    for name, key in KEYS.items():
        value, source = key.default, "built in"
        if name in stored:
            value, source = stored[name], str(path)
        if environ.get(key.variable):
            value, source = environ[key.variable], f"${key.variable}"
        found[name] = EffectiveSetting(name, value, source)
    return found


def _read_file(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        stored: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, PermissionError) as error:
        raise UsageError(f"{path} cannot be read as TOML: {error}") from None
    for name, value in stored.items():
        if name not in KEYS:
            raise unknown(f"setting in {path}", name, KEYS)
        if not isinstance(value, str):
            raise UsageError(f'{path}: {name} = {value!r} is no text; write {name} = "..."')
    return stored
