"""Writing files so that a name holds a whole file or none: temporary name, fsync, rename. Knows nothing of formats."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; rename it to ``target`` when the block ends well, else delete it."""
    temporary = temporary_path(target)
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write ``text`` as UTF-8 under ``target``, whole or not at all."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def temporary_path(target: Path) -> Path:
    """Return a hidden name beside ``target`` that no other process takes."""
    return target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def sync(path: Path) -> None:
    """Bring a file's or a folder's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
