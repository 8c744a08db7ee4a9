"""Facts that follow from a backbone's name alone, and file formats of backbones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from promptcli.extensions import Table

SHIPPED_FOLDER = Path(__file__).parents[1] / "shipped"  #: of the models inside the package

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
