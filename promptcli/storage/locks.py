"""Locks between processes. The system gives a dead process's locks back, so they stop nobody."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from promptcli.errors import PromptcliError

#: Seconds to wait for another process's write.
PATIENCE = 60.0


@contextlib.contextmanager
def hold(lock: Path) -> Iterator[None]:
    """Keep every other process out of what the file ``lock`` guards while the block runs; its folder is there.

    Raises:
        PromptcliError: another process holds it for longer than ``PATIENCE``; with the file and the process.
    """
    held = FileLock(lock, timeout=PATIENCE)
    try:
        held.acquire()
    except Timeout:
        holder = _holder(lock)
        raise PromptcliError(
            f"another process{holder} has been writing for {PATIENCE:.0f} s (it holds {lock}); try again when it has"
            " ended"
        ) from None
    try:
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the number
            lock.write_text(f"{os.getpid()}\n")
        yield
    finally:
        held.release()


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


def _holder(lock: Path) -> str:
    try:
        return f" ({int(lock.read_text())})"
    except (OSError, ValueError):
        return ""
