"""Replacing a folder whole: its name holds the old content or the new one, whenever the process dies.

Knows nothing of what the folders hold. Writers of one folder take turns by a lock file.
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from promptcli.errors import PromptcliError
from promptcli.storage.files import sync, temporary_path

#: Seconds to wait for another process's write.
PATIENCE = 60.0


@contextlib.contextmanager
def hold(lock: Path, *, reading: bool = False) -> Iterator[None]:
    """Keep every other process out of what ``lock`` guards while the block runs.

    Args:
        lock: The lock file; its folder is there.
        reading: Go on without the lock where its file may not be written: nobody writes there then.

    Raises:
        PromptcliError: another process holds it for longer than ``PATIENCE``.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(lock, timeout=PATIENCE))
        except Timeout:
            raise PromptcliError(
                f"another process has been writing for {PATIENCE:.0f} s (it holds {lock}); try again when it has ended"
            ) from None
        except OSError as error:
            if not (reading and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)):
                raise
        yield


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside ``target``; put it in ``target``'s place when the block ends well, else delete it.

    To be used with the lock held.
    """
    settle(target)
    temporary = temporary_path(target)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        if target.exists():
            os.rename(target, _away(target))
        os.rename(temporary, target)
        sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        settle(target)


def remove_folder(target: Path) -> None:
    """Delete a folder so that its name is gone at once, not file by file. To be used with the lock held."""
    temporary = temporary_path(target)
    os.rename(target, temporary)
    shutil.rmtree(temporary)


def unsettled(target: Path) -> bool:
    """Return whether a replacement of ``target`` is going on, or was cut off."""
    return _away(target).exists()


def unsettled_names(parent: Path) -> list[str]:
    """Return the names in ``parent`` whose replacement is going on, or was cut off."""
    return [path.name[1 : -len(".old")] for path in parent.glob(".*.old")]


def settle(target: Path) -> None:
    """Mend what a killed process left: put the old folder back unless the new one is there. With the lock held."""
    away = _away(target)
    if away.exists() and target.exists():
        os.rename(away, temporary_path(target))
    elif away.exists():
        os.rename(away, target)
    # With the lock held nobody is writing: what has a temporary name belongs to a dead process, or is old.
    ours = re.compile(rf"\.{re.escape(target.name)}\.\d+\.[0-9a-f]{{8}}\.tmp")
    for leftover in target.parent.glob(".*.tmp"):
        if ours.fullmatch(leftover.name) and leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)


def _away(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")
