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

#: Longest wait in seconds for another's lock: any program that may open a file can lock it.
PATIENCE = 60.0
_SAID_AFTER = 5.0  # seconds of waiting before the note
_AGAIN = 0.01  # seconds between two tries
_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file or folder.

    Return False if another process holds its lock, None if the file system has no locks.
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
        PromptcliError: Another process holds it for longer than ``PATIENCE`` seconds.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        began = time.monotonic()
        is_said = False
        while try_lock(descriptor) is False:
            waited = time.monotonic() - began
            if waited > PATIENCE:
                raise PromptcliError(
                    f"another process has held the lock on {path} for {PATIENCE:.0f} s; end it, or"
                    " try later"
                )
            if waited > _SAID_AFTER and not is_said:
                note(f"waiting for {path}, which another process has locked")
                is_said = True
            time.sleep(_AGAIN)
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
    """Hold the lock file ``lock``.

    Afterwards it is deleted, with its folder if empty, and parent folders that were made for it.

    Raises:
        UsageError: Another process holds it; the message names that process.
    """
    made = [folder for folder in lock.parent.parents if not folder.exists()]
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
            for folder in (lock.parent, *made):
                folder.rmdir()
    with claim(lock, what, remedy):  # the holder has just ended and removed the file
        yield


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder still has a name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
