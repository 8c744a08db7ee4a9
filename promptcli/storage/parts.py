"""A file and the document about it, replaced together: readers and kills meet the old pair or the new one."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from promptcli.errors import CheckFailedError, NotFoundError
from promptcli.storage.files import delete, hold_folder, sha256, sync, temporary, write_text

Result = TypeVar("Result")


def read_parts(manifest: Path, read: Callable[[], Result]) -> Result:
    """Return what ``read`` gives, which opens the manifest and then its parts.

    Where it fails and the manifest has changed meanwhile, a writer has taken the parts away: it is called again.
    """
    while True:
        before = _identity(manifest)
        try:
            return read()
        except (CheckFailedError, NotFoundError, OSError):
            if _identity(manifest) == before:
                raise


@contextlib.contextmanager
def replace_with_sidecar(target: Path, sidecar: Path, document: Callable[[str], str]) -> Iterator[Path]:
    """Yield a temporary path for ``target``; at the end it and the document about it replace the old pair.

    The document is first written under a name that follows from the content, where ``read_sidecar`` finds it, and moved
    to ``sidecar``, in the same folder, after the file: whenever a process dies, the file is found with its document.
    """
    with temporary(target) as path:
        yield path
        sync(path)
        digest = sha256(path)
        text = document(digest)
        waiting = _waiting(sidecar, digest)
        with hold_folder(target.parent):
            write_text(waiting, text)
            os.replace(path, target)
            sync(target.parent)
            os.replace(waiting, sidecar)
            for left in target.parent.iterdir():  # by killed writers, whole or half written
                if left.name.startswith((waiting.name[:-16], f".{waiting.name[:-16]}")):
                    delete(left)


def read_sidecar(sidecar: Path, digest: str) -> bytes | None:
    """Return the document about a file of this SHA-256, or None where there is none.

    A writer makes it before the file takes its name and moves it to ``sidecar`` afterwards: it is looked for in this
    order, so that it is found at every moment.
    """
    for path in (_waiting(sidecar, digest), sidecar):
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes()
    return None


def _waiting(sidecar: Path, digest: str) -> Path:
    return sidecar.with_name(f".{sidecar.name}.{digest[:16]}")


def _identity(path: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None
