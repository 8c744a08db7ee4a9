"""Facts that follow from a model's name alone, and file formats of backbones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from promptcli.extensions import Table

SHIPPED_FOLDER = Path(__file__).parents[1] / "shipped"  #: of the models inside the package
#: Language models inside the package, and tables of words, by name.
SHIPPED_BACKBONES: dict[str, Path] = {"mini-bert": SHIPPED_FOLDER / "mini-bert"}
SHIPPED_TABLES: dict[str, Path] = {"mini-multi": SHIPPED_FOLDER / "mini-multi"}

#: Ending of a file of a language model, such as ``.gguf`` -> a function that takes its path and
#: returns the folder with a configuration and safetensors that it becomes.
MODEL_FILES: Table[Callable[[str], Path]] = Table("model_files", {})

#: The word before the colon and the path of a file of word vectors, as in ``glove:FILE`` -> a
#: function that takes that text and returns the file's ``WordTable``.
WORD_FILES: Table[Callable[[str], Any]] = Table("word_files", {})


def words_only(name: str) -> bool:
    """Return whether a name means a file of word vectors, which are only averaged, not a language
    model.
    """
    prefix, colon, _ = name.partition(":")
    return bool(colon) and prefix in WORD_FILES


def is_hub_id(name: str) -> bool:
    """Return whether a backbone has a hub id: ``owner/name`` or ``name``, with or without
    ``@revision``.
    """
    repository = name.partition("@")[0]
    if words_only(name) or repository in SHIPPED_BACKBONES or repository in SHIPPED_TABLES:
        return False
    is_path = repository.startswith((".", "/", "~")) or Path(name).exists()
    return repository.count("/") <= 1 and not is_path


def portable_name(name: str) -> str:
    """Return a name that means the same from every folder: a local folder or file becomes
    absolute.
    """
    if words_only(name):
        prefix, _, file = name.partition(":")
        if Path(file).is_file():
            return f"{prefix}:{_absolute(Path(file))}"
    elif Path(name).is_dir():
        return str(Path(name).resolve())
    elif Path(name).is_file() and Path(name).suffix in MODEL_FILES:
        return str(_absolute(Path(name)))
    return name


def _absolute(file: Path) -> Path:
    """Return the path of a file under its own name: a link in the hub's cache leads to a file named
    by its hash.
    """
    return file.parent.resolve() / file.name
