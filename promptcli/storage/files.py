"""Files that a name holds completely or not at all: written aside, synced and renamed; and locks between processes."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from promptcli.errors import NotFoundError, PromptcliError, UsageError

LONGEST_NAME = 200  #: bytes of an output's name: its manifest and temporary files have longer ones, of at most 255
_TEMPORARY = re.compile(r"\.(.*)\.[0-9a-f]{8}\.tmp", re.DOTALL)
_DAY = 86400.0  # seconds


@contextlib.contextmanager
def temporary(target: Path) -> Iterator[Path]:
    """Yield a new hidden name next to ``target``; it is deleted at the end unless it was renamed."""
    remove_leftovers(target.parent, target.name)
    path = target.with_name(f".{_shortened(target.name)}.{secrets.token_hex(4)}.tmp")
    try:
        yield path
    finally:
        delete(path)


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``target``, which is renamed to ``target`` if the block ends well."""
    with temporary(target) as path:
        yield path
        sync(path)
        os.replace(path, target)
        sync(target.parent)


@contextlib.contextmanager
def temporary_folder(target: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder next to ``target``, or in the system's own place, deleted at the end unless renamed."""
    with temporary(target or Path(tempfile.gettempdir(), "promptcli")) as path:
        path.mkdir()
        yield path


def write_text(target: Path, text: str) -> None:
    """Write a text file atomically; bytes of file names that are not UTF-8 become ``?``."""
    with atomic_path(target) as path:
        path.write_text(text, encoding="utf-8", errors="replace")


def check_output(path: Path, *, force: bool, option: str = "`output`") -> None:
    """Refuse an output file that could not be written, before any work is done; ``option`` names it in the message."""
    given = f"{option} {path}"
    check_name(path, option=option)
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or a pipe"
        raise UsageError(f"{given}: {kind}, not a file; give the name of a file")
    if not path.parent.is_dir():
        raise NotFoundError(f"{given}: no folder {str(path.parent)!r}; make it first: mkdir -p {path.parent}")
    if path.exists() and not force:
        raise UsageError(f"{given}: the file is there; choose another name, or give `force`")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{given}: folder {str(path.parent)!r} may not be written; choose another")


def check_name(path: Path, *, option: str = "`output`") -> None:
    """Refuse an output whose name is too long, and a symbolic link to itself."""
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise UsageError(f"{option} {path.name[:40]}...: the name has more than {LONGEST_NAME} bytes; shorten it")
    real_path(path)


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


def remove_leftovers(folder: Path, name: str | None = None, *, age: float = _DAY) -> None:
    """Delete temporary files and folders, for ``name`` or all, not changed for ``age`` seconds.

    ``age=0`` deletes those of running writers too, so the caller must hold their lock.
    """
    with contextlib.suppress(OSError):  # a folder that may not be listed
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match and (name is None or _shortened(name) == match[1]) and time.time() - path.lstat().st_mtime >= age:
                delete(path)


def _shortened(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:100])


def delete(path: Path) -> None:
    """Delete a file, a folder with its content, or a link but not its target; it may be missing. Ctrl-C comes after."""
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
    with temporary(folder) as path:
        os.rename(folder, path)


def sync(path: Path) -> None:
    """Flush a file's or a folder's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def hold(lock: Path, *, patience: float = 60.0) -> Iterator[None]:
    """Hold the lock file ``lock``; refuse if another process holds it for longer than ``patience`` seconds."""
    try:
        with FileLock(lock, timeout=patience):
            yield
    except Timeout:
        raise PromptcliError(f"another process has held {lock} for {patience:.0f} s; try again when it ends") from None


@contextlib.contextmanager
def hold_folder(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock on a folder, ``shared`` for readers, without a lock file; file systems without locks go without."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        yield
    finally:
        os.close(descriptor)
