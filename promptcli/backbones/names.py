"""What the name of a backbone says by itself."""

from pathlib import Path

from promptcli.backbones.file_formats import MODEL_FILES, WORD_FILES

SHIPPED_FOLDER = Path(__file__).parents[1] / "shipped"  #: of the models inside the package


def words_only(name: str) -> bool:
    """Return whether a backbone of that name is word vectors, which are only averaged, and no
    language model.
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
    """Return the path of a file under its own name: a link of the hub's cache leads to a file that
    is named by its hash.
    """
    return file.parent.resolve() / file.name
