"""A SentEval `downstream` folder: where it begins, and the lines of its files. Knows no task."""

from collections.abc import Sequence
from pathlib import Path

from promptcli.data.streams import check_file
from promptcli.errors import NotFoundError, UsageError

_BOM = b"\xef\xbb\xbf"


def senteval_root(data_dir: Path, inside: Sequence[str]) -> Path:
    """Return the folder that holds one of the folders ``inside``: the one given, or a usual one within it.

    Raises:
        NotFoundError: There is none.
    """
    if not data_dir.is_dir():
        shown = ", ".join(f"{name}/" for name in inside)
        raise NotFoundError(f"--data-dir {data_dir}: no such folder; give a SentEval `downstream` folder ({shown})")
    for inner in (".", "senteval", "downstream", "data/downstream"):
        root = data_dir / inner
        if any((root / name).is_dir() for name in inside):
            return root
    raise NotFoundError(
        f"--data-dir {data_dir}: no {' or '.join(inside)} folder in it, nor in senteval/ or downstream/ inside it"
    )


def existing(path: Path) -> Path:
    """Return the path.

    Raises:
        NotFoundError: Nothing is there.
    """
    if not path.exists():
        raise NotFoundError(f"{path} is not there")
    return path


def read_file_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    r"""Return the text between line feeds: `splitlines` would also split at characters that stand inside sentences.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It is a folder, may not be read, or is not in the encoding; with the line.
    """
    check_file(path)
    data = path.read_bytes().removeprefix(_BOM)
    try:
        return data.decode(encoding).split("\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: not UTF-8 (byte 0x{data[error.start]:02x})") from None
