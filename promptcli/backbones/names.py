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
            return f"{WORD_VECTORS}{path.resolve()}"
    elif Path(name).is_dir() or (name.endswith(".gguf") and Path(name).is_file()):
        return str(Path(name).resolve())
    return name
