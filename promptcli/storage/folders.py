"""Folders written aside and renamed into place, and the list of their files; a kill leaves the old one or the new."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from promptcli.storage.files import check_name, delete, hold_folder, remove_leftovers, sha256, sync, temporary_folder


@dataclass(frozen=True)
class StoredFile:
    """Size in bytes of a file, and its SHA-256 if it was computed."""

    size: int
    sha256: str | None = None


@contextlib.contextmanager
def write_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of ``target`` when the block ends well; else ``target`` is unchanged.

    The block writes the manifest last, with ``list_files``; ``link_file`` carries over files that do not change.
    """
    restore(target)
    with temporary_folder(target) as path:
        yield path
        for written in (*path.rglob("*"), path):
            sync(written)
        with hold_folder(target.parent):
            old = _replaced(target)
            try:
                if target.is_symlink() or target.exists():
                    delete(old)
                    os.rename(target, old)
                os.rename(path, target)
                sync(target.parent)
            finally:
                if target.exists():
                    delete(old)
                elif old.exists():
                    os.rename(old, target)


@contextlib.contextmanager
def atomic_folder(target: Path, *, marker: str, force: bool) -> Iterator[Path]:
    """Yield a folder that becomes the output ``target``; ``force`` replaces one that holds the file ``marker``."""
    restore(target)
    check_name(target)
    if not target.parent.is_dir():
        raise NotFoundError(f"`output` {target}: no folder {str(target.parent)!r}; make it first")
    ours = (target / marker).is_file()
    if target.exists() and not (force and ours):
        why = ", or give `force`" if ours else f" (it holds no {marker})"
        raise UsageError(f"`output` {target} exists; choose another name{why}")
    with write_folder(target) as path:
        yield path


@contextlib.contextmanager
def reading_folder(folder: Path) -> Iterator[None]:
    """Let no replacement of ``folder`` take effect in the block, which reads in it."""
    restore(folder)
    with hold_folder(folder.parent, shared=True) if os.access(folder.parent, os.R_OK) else contextlib.nullcontext():
        yield


def restore(target: Path) -> None:
    """Bring back the old folder if a writer was killed between moving it away and moving the new one in."""
    if _replaced(target).exists() and not target.exists():
        with contextlib.suppress(OSError), hold_folder(target.parent):  # a writer that is alive ends first
            if not target.exists():
                os.rename(_replaced(target), target)


def clean_up(folder: Path) -> None:
    """Remove the leftovers of killed writers in a folder of stored folders, whose lock the caller holds."""
    remove_leftovers(folder, age=0)
    for old in folder.glob(".*.old"):
        restore(old.with_name(old.name[1:-4]))
        delete(old)


def list_files(folder: Path, *, hashed: bool = False) -> dict[str, StoredFile]:
    """Return the files of a folder by relative name, for its manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): StoredFile(path.stat().st_size, sha256(path) if hashed else None)
        for path in paths
    }


def check_files(folder: Path, files: Mapping[str, StoredFile], *, hint: str, hashed: bool = False) -> None:
    """Raise CheckFailedError unless a folder holds the files of its manifest, by size and with ``hashed`` by hash."""
    for name, file in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckFailedError(f"{folder} has no {name}; {hint}")
        if (size := path.stat().st_size) != file.size:
            raise CheckFailedError(f"{path} has {size:,} bytes, {file.size:,} were written; {hint}")
        if hashed and file.sha256 is not None and sha256(path) != file.sha256:
            raise CheckFailedError(f"{path} was changed after the manifest was written; {hint}")


def link_file(file: Path, target: Path) -> None:
    """Let a stored file, which is never written again, have a second name; it is copied if the disk has no links."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def _replaced(target: Path) -> Path:
    return target.parent / f".{target.name}.old"
