"""Files that a name holds completely or not at all, and locks between processes.

What is being written has a temporary name, is synced to the disk, and takes its name by a rename.
"""

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

_TEMPORARY = re.compile(r"\.(.*)\.[0-9a-f]{8}\.tmp", re.DOTALL)
#: Bytes of a target's name in the name of its temporary file, which the disk must be able to hold.
_NAMED = 100
_DAY = 86400.0  # seconds


@contextlib.contextmanager
def temporary(target: Path) -> Iterator[Path]:
    """Yield a new hidden name next to ``target``; it is deleted at the end unless it was renamed."""
    remove_leftovers(target.parent, target.name)
    path = target.with_name(f".{_cut(target.name)}.{secrets.token_hex(4)}.tmp")
    try:
        yield path
    finally:
        delete(path)


#: Bytes of the longest name of an output: its manifest and its temporary files have longer ones, of at most 255.
LONGEST_NAME = 200


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``target``; rename it to ``target`` when the block ends well, else delete it."""
    with temporary(target) as path:
        yield path
        sync(path)
        os.replace(path, target)
        sync(target.parent)


@contextlib.contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder next to ``target``, deleted at the end unless it was moved."""
    with temporary(target) as path:
        path.mkdir()
        yield path


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty folder for this user alone, deleted at the end; one left by a killed process goes first."""
    with temporary(Path(tempfile.gettempdir(), "promptcli")) as path:
        path.mkdir(mode=0o700)
        yield path


def write_text(target: Path, text: str) -> None:
    """Write ``text`` as UTF-8 under ``target``, whole or not at all; of a name that is no UTF-8, ``?`` remains."""
    with atomic_path(target) as path:
        path.write_text(text, encoding="utf-8", errors="replace")


def check_output(path: Path, *, force: bool, option: str = "`output`") -> None:
    """Refuse a file that could not be written under that name at the end; for asking before the work.

    It is a regular file, never a folder, a device or a pipe; ``option`` is what the user gave it by, for the message.

    Raises:
        NotFoundError: Its folder is not there.
        UsageError: It is there (unless ``force``), is no regular file, or its folder may not be written.
    """
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
    """Refuse a name that is too long to be written under, and a symbolic link that leads to itself.

    Raises:
        UsageError: It is one.
    """
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise UsageError(
            f"{option} {path.name[:40]}...: the name has more than {LONGEST_NAME} bytes; give a shorter one"
        )
    real_path(path)


def real_path(path: Path) -> Path:
    """Return a path without symbolic links.

    Raises:
        UsageError: A link that leads to itself.
    """
    found = Path(os.path.realpath(path))
    if found.is_symlink():
        raise UsageError(f"{path} is a symbolic link that leads to itself; give another path")
    return found


def sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cut(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:_NAMED])


def is_temporary(name: str) -> bool:
    """Return whether a file name is one that ``temporary`` makes."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_leftovers(folder: Path, name: str | None = None, *, age: float = _DAY) -> None:
    """Delete temporary files and folders, those for ``name`` or all, that have not changed for ``age`` seconds.

    With 0 those of writers that are alive go too: the caller holds the lock that they would hold.
    """
    with contextlib.suppress(OSError):  # a folder that may not be listed
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match and (name is None or _cut(name) == match[1]) and time.time() - path.lstat().st_mtime >= age:
                delete(path)


def delete(path: Path) -> None:
    """Delete a file, a folder with all that is in it, or a link alone and not what it leads to; it may be gone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Delete a folder so that its name is gone at once, not file by file."""
    with temporary(folder) as away:
        os.rename(folder, away)


def sync(path: Path) -> None:
    """Bring a file's or a folder's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def hold(lock: Path, *, patience: float = 60.0) -> Iterator[None]:
    """Keep every other process out of what the file ``lock`` guards while the block runs; its folder is there.

    Raises:
        PromptcliError: Another process holds it for longer than ``patience`` seconds.
    """
    try:
        with FileLock(lock, timeout=patience):
            yield
    except Timeout:
        raise PromptcliError(
            f"another process has been writing for {patience:.0f} s (it holds {lock}); try again when it has ended"
        ) from None


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for the same folder out while the block, which must be short, runs.

    No lock file is left in a folder of the user's. File systems that lock no folders (NFS) go without.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        yield
    finally:
        os.close(descriptor)
