"""Writing files so that a name holds a whole file or none: temporary name, fsync, rename. Knows nothing of formats."""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from promptcli.errors import NotFoundError, UsageError

#: Bytes of the longest name of an output: its manifest and its temporary files have longer ones, of at most 255.
LONGEST_NAME = 200


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``target``; rename it to ``target`` when the block ends well, else delete it."""
    remove_leftovers(target)
    temporary = temporary_path(target)
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(target: Path, *, marker: str, force: bool, option: str = "--output") -> Iterator[Path]:
    """Yield a temporary folder next to ``target``; it takes the name ``target`` when the block ends well.

    Args:
        target: The folder to be made; the one above it is there.
        marker: A file that such folders hold: only a folder with it is ever replaced.
        force: It may be replaced.
        option: What the user gave it by, for the message.

    Raises:
        NotFoundError: The folder above is not there.
        UsageError: There is something of that name that may not be replaced.
    """
    given = f"{option} {target}"
    check_name(target, option=option)
    if not target.parent.is_dir():
        raise NotFoundError(f"{given}: no folder {str(target.parent)!r}; make it first")
    ours = (target / marker).is_file()
    if target.exists() and not (force and ours):
        why = "it is there; choose another name" + (", or give --force" if ours else f" (it holds no {marker})")
        raise UsageError(f"{given}: {why}")
    with temporary_folder(target) as temporary:
        yield temporary
        _exchange(temporary, target) if target.exists() else os.rename(temporary, target)
        sync(target.parent)


@contextlib.contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder next to ``target``, deleted at the end unless it was moved; leftovers go before."""
    remove_leftovers(target)
    temporary = temporary_path(target)
    try:
        temporary.mkdir()
        yield temporary
    finally:
        try:
            shutil.rmtree(temporary, ignore_errors=True)
        finally:  # where a signal came on the way
            shutil.rmtree(temporary, ignore_errors=True)


def write_text(target: Path, text: str) -> None:
    """Write ``text`` as UTF-8 under ``target``, whole or not at all; of a name that is no UTF-8, ``?`` remains."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")


def check_output(path: Path, *, force: bool, option: str = "--output") -> None:
    """Refuse a file that could not be written under that name at the end; for asking before the work.

    Args:
        path: The file to be made: a regular file, never a folder, a device or a pipe.
        force: It may be replaced.
        option: What the user gave it by, for the message.

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
        raise NotFoundError(f"{given}: no folder {str(path.parent)!r}; make it first")
    if path.exists() and not force:
        raise UsageError(f"{given}: the file is there; choose another name, or give --force")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{given}: folder {str(path.parent)!r} may not be written; choose another")


def check_name(path: Path, *, option: str = "--output") -> None:
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


def temporary_path(target: Path) -> Path:
    """Return a hidden name next to ``target`` that no other process takes; a long name is cut so that it fits."""
    return target.with_name(f"{_stem(target)}{os.getpid()}.{secrets.token_hex(4)}.tmp")


def is_temporary(name: str) -> bool:
    """Return whether a file name is one of ``temporary_path``, of earlier versions too."""
    return bool(re.fullmatch(r"\..*\.([0-9a-f]{4}-)?\d+\.[0-9a-f]{8}\.tmp", name, re.DOTALL))


def remove_leftovers(target: Path) -> None:
    """Delete the temporary files and folders for ``target`` that dead processes of this machine left."""
    stem = _stem(target)
    with contextlib.suppress(OSError):  # a folder that may not be listed
        for path in target.parent.iterdir():
            if path.name.startswith(stem) and is_temporary(path.name):
                process = path.name.removeprefix(stem).partition(".")[0]
                if not is_alive(int(process)):
                    delete(path)


def remove_all_leftovers(folder: Path) -> None:
    """Delete what ``remove_leftovers`` does, in a folder, for whatever target."""
    for path in folder.iterdir():
        found = re.fullmatch(rf"\..*\.{_host()}-(\d+)\.[0-9a-f]{{8}}\.tmp", path.name, re.DOTALL)
        if found and not is_alive(int(found[1])):
            delete(path)


def remove_folder(folder: Path) -> None:
    """Delete a folder so that its name is gone at once, not file by file, and what killed processes left of it."""
    remove_leftovers(folder)
    away = temporary_path(folder)
    try:
        os.rename(folder, away)
        delete(away)
    finally:
        shutil.rmtree(away, ignore_errors=True)  # where a signal came on the way


def delete(path: Path) -> None:
    """Delete a file, a folder with all that is in it, or a link alone and not what it leads to."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def is_alive(process: int) -> bool:
    """Return whether a process of this number runs on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def sync(path: Path) -> None:
    """Bring a file's or a folder's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(one: Path, other: Path) -> None:
    """Let two folders take each other's name: in one step where the system can (Linux), else in three."""
    import ctypes

    exchange, here = getattr(ctypes.CDLL(None), "renameat2", None), -100  # AT_FDCWD; the flag is RENAME_EXCHANGE
    if exchange is None or exchange(here, os.fsencode(one), here, os.fsencode(other), 2) != 0:
        away = temporary_path(other)
        os.rename(other, away)
        os.rename(one, other)
        os.rename(away, one)


def _stem(target: Path) -> str:
    """Return how the temporary names for a target begin on this machine."""
    name = os.fsdecode(os.fsencode(target.name)[:100])
    return f".{name}.{_host()}-"


def _host() -> str:
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:4]
