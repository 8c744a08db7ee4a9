"""Which model and ranking a user has chosen for a folder: kept beside the defaults, and taken where
none is named.
"""

import contextlib
import glob
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from promptcli.data.file_arguments import split_columns
from promptcli.data.input_files import is_remote
from promptcli.errors import UsageError
from promptcli.settings import folder_choices_file
from promptcli.storage.files import real_path, write_text
from promptcli.storage.locks import hold_folder
from promptcli.storage.typed_documents import read_document, to_json


@dataclass(frozen=True)
class FolderChoice:
    """A choice for the texts of a folder, or of a file."""

    model: str | None  #: None: that of the command
    by: Literal["both", "meaning", "words"]  #: ranking of a search


class KeptChoice(NamedTuple):
    """A choice, and the folder or file that it is kept for."""

    path: Path
    model: str | None
    by: Literal["both", "meaning", "words"]


def kept_choices() -> dict[str, FolderChoice]:
    """Return all choices by the path of its folder or file."""
    path = folder_choices_file()
    if not path.exists():
        return {}
    hint = "choose again by `promptcli choose FILES --keep`, or remove the file"
    return read_document(path, dict[str, FolderChoice], hint=hint, error=UsageError)


def keep_choice(names: Sequence[str], choice: FolderChoice) -> list[Path]:
    """Keep a choice for files, folders and what globs match; return the paths that it is kept for.

    It holds for all below a folder, unless a nearer one has its own.
    """
    paths = list(dict.fromkeys(map(_path_of, names)))
    with _changed_choices() as choices:
        choices.update({str(path): choice for path in paths})
    return paths


def forget_choice(name: str) -> Path:
    """Forget the choice that is kept for a folder or file; return its path.

    Raises:
        UsageError: None is kept for it.
    """
    path = _path_of(name)
    with _changed_choices() as choices:
        if choices.pop(str(path), None) is None:
            raise UsageError(
                f"no choice is kept for {path}; `promptcli config` lists those that are"
            )
    return path


def choice_for(names: Sequence[str]) -> KeptChoice | None:
    """Return the choice that holds for all of these files and folders; None without one."""
    choices = kept_choices()
    if not choices or any(map(is_remote, names)):
        return None
    matches = list[KeptChoice]()
    for name in names:
        path = _path_of(name)
        kept = next((each for each in (path, *path.parents) if str(each) in choices), None)
        if kept is None:
            return None
        matches.append(KeptChoice(kept, **vars(choices[str(kept)])))
    if len({(each.model, each.by) for each in matches}) != 1:
        return None
    return matches[0]


def _path_of(name: str) -> Path:
    """Return the real path of a file or folder; of a glob the folder in which it looks."""
    path = Path(split_columns(name)[0])
    while not path.exists() and glob.has_magic(str(path)):
        path = path.parent
    return real_path(path)


@contextlib.contextmanager
def _changed_choices() -> Iterator[dict[str, FolderChoice]]:
    """Yield every choice, to be changed; they are written at the end of the block."""
    path = folder_choices_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with hold_folder(path.parent):
        choices = kept_choices()
        yield choices
        write_text(path, to_json({name: asdict(choice) for name, choice in choices.items()}))
