"""Locks between processes. Who dies holds none; file systems without locks go without."""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from promptcli.errors import PromptcliError, UsageError
from promptcli.notes import note

#: Longest wait in seconds for another program's lock: any that may open a file can lock it.
PATIENCE = 60.0
_SAID_AFTER = 5.0  # seconds of waiting
_AGAIN = 0.01  # seconds between two tries
_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file or folder.

    Return False if another holds its lock, None if the file system has no locks.
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
def hold(lock: Path, *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock file ``lock``, which stays.

    Refuse if another process holds it for longer than ``patience``.
    """
    from filelock import FileLock, Timeout  # slow to load; most commands hold no lock

    file_lock = FileLock(lock)

    def acquired(seconds: float) -> bool:
        try:
            file_lock.acquire(timeout=seconds)
        except Timeout:
            return False
        return True

    _wait(acquired, lock, patience)
    try:
        yield
    finally:
        file_lock.release()


@contextlib.contextmanager
def hold_folder(folder: Path, *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold a lock on a folder, without a lock file.

    Refuse if another holds it for longer than ``patience``.
    """
    descriptor = os.open(folder, os.O_RDONLY)

    def acquired(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while try_lock(descriptor) is False:
            if time.monotonic() > until:
                return False
            time.sleep(_AGAIN)
        return True

    try:
        _wait(acquired, folder, patience)
        yield
    finally:
        os.close(descriptor)


def _wait(acquired: Callable[[float], bool], what: Path, patience: float) -> None:
    soon = min(_SAID_AFTER, patience)
    if acquired(soon):
        return
    note(f"waiting for {what}, which another process has locked")
    if not acquired(patience - soon):
        raise PromptcliError(
            f"another process has held the lock on {what} for {patience:.0f} s; end it, or try"
            " later"
        )


@contextlib.contextmanager
def in_use(file: Path) -> Iterator[None]:
    """Show other processes, while the block runs, that a file is in use, and by what.

    Many may use one.
    """
    descriptor = os.open(file, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def is_in_use(file: Path) -> bool:
    """Return whether another process uses a file."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return try_lock(descriptor) is False
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def claim(lock: Path, what: str, remedy: str) -> Iterator[None]:
    """Hold the lock file ``lock``, which is gone afterwards.

    Refuse at once, by the holder's name, if it is held.
    """
    descriptor = _claim(lock, what, remedy)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _claim(lock: Path, what: str, remedy: str) -> int:
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if try_lock(descriptor) is False:
                holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
                raise UsageError(f"{what} is running: {holder}; wait until it ends, or {remedy}")
            if is_at(descriptor, lock):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder has just ended and removed it


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder still has a name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
