"""What the name of a backbone says by itself."""

from pathlib import Path

#: before the name of a file of word vectors; names without it are pre-trained language models
WORD_VECTORS = "glove:"


def words_only(name: str) -> bool:
    """Return whether a backbone of that name is word vectors, which are only averaged, and no
    language model.
    """
    return name.startswith(WORD_VECTORS)


def portable_name(name: str) -> str:
    """Return a name that means the same from every folder: a local folder or file becomes
    absolute.
    """
    if words_only(name):
        path = Path(name.removeprefix(WORD_VECTORS))
        if path.is_file():
            return f"{WORD_VECTORS}{_absolute(path)}"
    elif Path(name).is_dir():
        return str(Path(name).resolve())
    elif name.endswith(".gguf") and Path(name).is_file():
        return str(_absolute(Path(name)))
    return name


def _absolute(file: Path) -> Path:
    """Return the path of a file under its own name: a link of the hub's cache leads to a file that
    is named by its hash.
    """
    return file.parent.resolve() / file.name
