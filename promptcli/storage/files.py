"""Files that a name holds completely or not at all: written aside, synced and renamed.

What is being written lies in a hidden folder next to its place, which its writer has locked: it is
a killed process's if nobody has. Only its owner may look into it. What is finished has the mode of
what it replaces, else the umask's.
"""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from promptcli.errors import NotFoundError, UsageError
from promptcli.storage.locks import is_at, try_lock

#: bytes of an output's name: its manifest and temporary files have longer ones, of at most 255
LONGEST_NAME = 200
_TEMPORARY = re.compile(r"\.(.*)\.[0-9a-f]{8}\.tmp", re.DOTALL)
#: In a temporary folder: what is being replaced, under its own name.
REPLACED = "replaced"


@contextlib.contextmanager
def temporary_folder(target: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder next to ``target``, or in the system's own place, deleted at the end
    unless renamed.
    """
    target = target or Path(tempfile.gettempdir(), "promptcli")
    remove_leftovers(target.parent, target.name)
    with contextlib.ExitStack() as ended:
        yield _new_folder(target, ended)


def _new_folder(target: Path, ended: contextlib.ExitStack) -> Path:
    """Make a folder next to ``target`` and lock it.

    It is deleted and unlocked when ``ended`` ends.
    """
    while True:
        path = target.with_name(f".{_shorten(target.name)}.{secrets.token_hex(4)}.tmp")
        ended.callback(_discard, path)
        path.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            ended.callback(os.close, descriptor)
            if try_lock(descriptor) is not False and is_at(descriptor, path):
                return path
        # another process took it for a leftover before it was locked


@contextlib.contextmanager
def atomic_path(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a path for a new file, which gets the name ``target`` if the block ends well.

    Without ``replace`` a file that has appeared there in the meantime is refused.
    """
    with temporary_folder(target) as folder:
        path = folder / target.name
        yield path
        keep_mode(target, path)
        sync(path)
        if replace:
            os.replace(path, target)
        else:
            _place(path, target)
        sync(target.parent)


def keep_mode(old: Path, new: Path) -> None:
    """Let a new file or folder be read by those who may read the old one, if there is one: what is
    private stays so.
    """
    with contextlib.suppress(FileNotFoundError):
        new.chmod(stat.S_IMODE(new.stat().st_mode) & ~0o777 | old.stat().st_mode & 0o777)


def _place(path: Path, target: Path) -> None:
    """Give a file a name that nothing has, whatever other processes do."""
    try:
        os.link(path, target)
    except OSError:  # the name is taken, or the disk has no links
        if target.exists():
            raise UsageError(
                f"{target} appeared in the meantime; give force to replace it, or another name"
            ) from None
        os.replace(path, target)


def write_text(target: Path, text: str) -> None:
    """Write a text file atomically; bytes of file names that are not UTF-8 become ``?``."""
    with atomic_path(target) as path:
        path.write_text(text, encoding="utf-8", errors="replace")


def check_output(path: Path, *, force: bool, parameter: str = "output") -> None:
    """Refuse an output file that could not be written, before any work is done.

    Raises:
        UsageError: ``parameter`` names the file in the message.
        NotFoundError: It has no folder.
    """
    check_name(path, parameter=parameter)
    if path.exists() and not path.is_file():
        raise UsageError(
            f"{path} is a folder or a device; give the name of a file", parameter=parameter
        )
    if not path.parent.is_dir():
        raise NotFoundError(
            f"{path}: no folder {str(path.parent)!r}; make it first: mkdir -p {path.parent}",
            parameter=parameter,
        )
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists; choose another name, or give force to replace it",
            parameter=parameter,
        )


def check_name(path: Path, *, parameter: str = "output") -> None:
    """Refuse an output whose name is too long or below a file, and a symbolic link to itself."""
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise UsageError(
            f"the name {path.name[:40]}... has more than {LONGEST_NAME} bytes; shorten it",
            parameter=parameter,
        )
    above = next((folder for folder in path.parents if os.path.exists(folder)), path.parent)
    if os.path.isfile(above):
        raise UsageError(
            f"{path}: {above} is a file; give a place in a folder", parameter=parameter
        )
    real_path(path)


def is_writable(folder: Path) -> bool:
    """Return whether files may be put into a folder, which may still have to be made."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return os.access(there, os.W_OK | os.X_OK)


def real_path(path: Path) -> Path:
    """Return a path without symbolic links; refuse a link to itself."""
    resolved = Path(os.path.realpath(path))
    if resolved.is_symlink():
        raise UsageError(f"{path} is a symbolic link that leads to itself; give another path")
    return resolved


def sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Delete the temporary folders of killed processes, for ``name`` or all; what they were
    replacing comes back.
    """
    with contextlib.suppress(OSError):  # a folder that may not be listed
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match and (name is None or _shorten(name) == match[1]):
                _remove_leftover(path)


def _remove_leftover(path: Path) -> None:
    """Delete a temporary folder that no process has locked."""
    with contextlib.suppress(OSError):  # it is gone, or another user's
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if try_lock(descriptor):
                _discard(path)
        finally:
            os.close(descriptor)


def _discard(path: Path) -> None:
    """Delete a temporary folder; what was replaced comes back if nothing has taken its place."""
    for old in (path / REPLACED).glob("*"):
        place = path.with_name(old.name)
        if not place.exists():
            os.rename(old, place)
    delete(path)


def _shorten(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:100])


def delete(path: Path) -> None:
    """Delete a file, a folder with its content, or a link but not its target.

    It may be missing. Ctrl-C comes after.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except KeyboardInterrupt:
        delete(path)
        raise


def remove_folder(folder: Path) -> None:
    """Delete a folder; its name is gone at once, not file by file."""
    with temporary_folder(folder) as path:
        os.rename(folder, path / "removed")


def sync(path: Path) -> None:
    """Flush a file's or a folder's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
