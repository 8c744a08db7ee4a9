"""Locks between processes, on open files and folders.

A process that dies releases its locks. On a file system without locks, work continues without them.
"""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from promptcli.errors import PromptcliError, UsageError
from promptcli.notes import note

#: Longest wait for a lock: any program that may open a file can lock it.
PATIENCE_S = 60.0
_NOTE_AFTER_S = 5.0  # of waiting
_RETRY_S = 0.01
_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file or folder, and return True.

    Return False if another process holds the lock, and None if the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock of an existing file or folder.

    Raises:
        PromptcliError: Another process holds it for longer than ``PATIENCE_S`` seconds.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        began = time.monotonic()
        is_noted = False
        while try_lock(descriptor) is False:
            waited = time.monotonic() - began
            if waited > PATIENCE_S:
                raise PromptcliError(
                    f"another process has held the lock on {path} for {PATIENCE_S:.0f} s; end it,"
                    " or try later"
                )
            if waited > _NOTE_AFTER_S and not is_noted:
                note(f"waiting for {path}, which another process has locked")
                is_noted = True
            time.sleep(_RETRY_S)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def in_use(file: Path) -> Iterator[None]:
    """Mark a file as in use while the block runs; several processes may use it."""
    with file.open("rb") as opened:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield


def is_in_use(file: Path) -> bool:
    """Return whether another process uses a file."""
    with file.open("rb") as opened:
        return try_lock(opened.fileno()) is False


@contextlib.contextmanager
def claim(lock: Path, what: str, remedy: str) -> Iterator[None]:
    """Hold the lock file ``lock`` in the block.

    Afterwards the file is deleted, and so are its folder and the parents made for it, if empty.

    Raises:
        UsageError: Another process holds it; the message names that process.
    """
    new_parents = [folder for folder in lock.parent.parents if not folder.exists()]
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if try_lock(descriptor) is False:
            holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
            raise UsageError(f"{what} is running: {holder}; wait until it ends, or {remedy}")
        if is_at(descriptor, lock):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):  # not empty
            for folder in (lock.parent, *new_parents):
                folder.rmdir()
    with claim(lock, what, remedy):  # another process has just ended and removed the file
        yield


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
