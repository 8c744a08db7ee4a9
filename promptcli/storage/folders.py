"""Folders written aside and renamed into place, and the list of their files.

A kill leaves the old one or the new.
"""

import contextlib
import glob
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from promptcli.errors import CheckFailedError, NotFoundError, UsageError, shorten
from promptcli.storage.files import (
    REPLACED,
    check_name,
    keep_mode,
    remove_leftovers,
    sha256,
    sync,
    temporary_folder,
)
from promptcli.storage.locks import hold
from promptcli.storage.paths import inside

Found = TypeVar("Found")

_REPLACED = f".*.tmp/{REPLACED}"  #: where folders are while they are replaced


@dataclass(frozen=True)
class StoredFile:
    """Size in bytes of a file, and its SHA-256 if it was computed."""

    size: int
    sha256: str | None = None


@contextlib.contextmanager
def write_folder(target: Path, *, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield an empty folder that takes the place of ``target`` when the block ends well; else
    ``target`` is unchanged.

    The block writes the manifest last, with ``list_files``; ``link_file`` carries over files that
    do not change. ``check`` may refuse, at the last moment, what other processes have put there in
    the meantime.
    """
    restore(target)
    with temporary_folder(target) as outer:
        path = outer / target.name
        path.mkdir()
        yield path
        keep_mode(target, path)
        for written in (*path.rglob("*"), path):
            sync(written)
        with hold(target.parent):
            check()
            if target.is_symlink() or target.exists():
                old = outer / REPLACED / target.name
                old.parent.mkdir()
                os.rename(target, old)
            os.rename(path, target)
            sync(target.parent)


@contextlib.contextmanager
def atomic_folder(target: Path, *, marker: str, force: bool) -> Iterator[Path]:
    """Yield a folder that becomes the output ``target``.

    ``force`` replaces one that holds the file ``marker``.
    """

    def check() -> None:
        ours = (target / marker).is_file()
        if target.exists() and not (force and ours):
            why = ", or give force" if ours else f" (it holds no {marker})"
            raise UsageError(f"{target} exists; choose another name{why}", parameter="output")

    restore(target)
    check_name(target)
    if not target.parent.is_dir():
        raise NotFoundError(
            f"{target}: no folder {str(target.parent)!r}; make it first", parameter="output"
        )
    check()
    with write_folder(target, check=check) as path:
        yield path


def read_folder(folder: Path, read: Callable[[Path], Found]) -> Found:
    """Return what ``read`` finds in a folder.

    If the folder is replaced in the meantime, it is read again.

    Readers take no lock: whoever may open a folder could hold it for ever.
    """
    while True:
        restore(folder)
        before = _identity(folder)
        problem = None
        try:
            found = read(folder)
        except Exception as error:
            problem = error
        restore(folder)
        if _identity(folder) == before:
            if problem is not None:
                raise problem
            return found


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what no other folder of that name has; None if there is none."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def restore(target: Path) -> None:
    """Bring back the old folder if a writer was killed between moving it away and moving the new
    one in; wait for a writer that is alive.
    """
    if not target.exists() and any(target.parent.glob(f"{_REPLACED}/{glob.escape(target.name)}")):
        with contextlib.suppress(OSError), hold(target.parent):
            remove_leftovers(target.parent, target.name)


def folders_with(marker: str, folder: Path) -> set[str]:
    """Return the names of the folders in a folder that hold a file ``marker``, those being replaced
    included.
    """
    # in this order, one that is replaced during the look is seen at one of its places
    places = itertools.chain(folder.iterdir(), folder.glob(f"{_REPLACED}/*"), folder.iterdir())
    return {path.name for path in places if (path / marker).is_file()}


def list_files(folder: Path, *, hashed: bool = False) -> dict[str, StoredFile]:
    """Return the files of a folder by relative name, for its manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): StoredFile(
            path.stat().st_size, sha256(path) if hashed else None
        )
        for path in paths
    }


def check_files(
    folder: Path, files: Mapping[str, StoredFile], *, hint: str, hashed: bool = False
) -> None:
    """Raise CheckFailedError unless a folder holds the files of its manifest, by size and with
    ``hashed`` by hash.
    """
    for name, file in files.items():
        path = inside(folder, name)
        if path is None:
            raise CheckFailedError(
                f"the manifest of {folder} lists {shorten(name)}, which leads out of it; {hint}"
            )
        if not path.is_file():
            raise CheckFailedError(f"{folder} has no {name}; {hint}")
        if (size := path.stat().st_size) != file.size:
            raise CheckFailedError(f"{path} has {size:,} bytes, {file.size:,} were written; {hint}")
        if hashed and file.sha256 is not None and sha256(path) != file.sha256:
            raise CheckFailedError(f"{path} was changed after the manifest was written; {hint}")


def link_file(file: Path, target: Path) -> None:
    """Let a stored file, which is never written again, have a second name.

    It is copied if the disk has no links.
    """
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)
