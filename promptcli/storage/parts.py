"""Stored things of several files, so that readers and kills meet the old one or the new one, never a mixture.

A thing is a folder with immutable parts, whose names follow from their content, and one manifest that names them with
their checksums and is replaced by one rename. A reader opens what its manifest names and nothing else; parts that no
manifest names go with the next write. Writers take turns by a lock; readers need none.

For a single file and the document about it there are ``replace_with_sidecar`` and ``read_sidecar``.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from promptcli.errors import CheckFailedError, NotFoundError
from promptcli.storage.files import delete, hold_folder, remove_folder, sha256, sync, temporary, write_text

Result = TypeVar("Result")

#: Parts of at most so many bytes may be read whole when a thing is opened.
SMALL = 32 << 20

_PART = re.compile(r"([a-z_]+)-[0-9a-f]{16}(\.[a-z]+)")


class PartsWriter:
    """Takes the parts of a new version of a stored thing, then its manifest."""

    def __init__(self, folder: Path, manifest: str) -> None:
        self._folder, self._manifest = folder, manifest
        self.sums: dict[str, str] = {}  #: File name and SHA-256 of each part, for the manifest.
        self.before = _sums_of(folder / manifest)  #: Those of the version in force; None where they cannot be read.

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[Path]:
        """Yield a temporary path for the part ``name``, e.g. ``tensors.safetensors``; it becomes a part at the end."""
        with temporary(self._folder / name) as path:
            yield path
            sync(path)
            digest = sha256(path)
            stem, suffix = os.path.splitext(name)
            stored = f"{stem}-{digest[:16]}{suffix}"
            os.replace(path, self._folder / stored)
            self.sums[stored] = digest

    def keeps(self, files: Collection[str]) -> bool:
        """Let parts of the version in force be some of the new version, too; False where one of them is not there."""
        known = {**(self.before or {}), **self.sums}
        there = all(file in known for file in files)
        self.sums |= {file: known[file] for file in files if there}
        return there

    def commit(self, manifest: str) -> None:
        """Let a new manifest take effect."""
        sync(self._folder)
        write_text(self._folder / self._manifest, manifest)


@contextlib.contextmanager
def replace_parts(folder: Path, manifest: str, owns: Callable[[str], bool]) -> Iterator[PartsWriter]:
    """Yield what takes a new version of the thing in ``folder``; without ``commit`` the old one stays.

    To be used with the thing's lock held. Afterwards, what the manifest in force does not name is deleted.

    Args:
        folder: Made if need be, with the folders above it; taken away again where nothing is committed.
        manifest: The manifest's file name; it is JSON with the parts' names and checksums under ``sha256``.
        owns: Whether a file of this name may be deleted.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if made:
        sync(folder.parent)
    writer = PartsWriter(folder, manifest)
    try:
        yield writer
    finally:
        named = _sums_of(folder / manifest)  # an interrupt may come right after the manifest has taken effect
        for path in folder.iterdir():
            if named is not None and path.name not in {manifest, *named} and owns(path.name):
                delete(path)
        if made:
            with contextlib.suppress(OSError):  # it holds something
                folder.rmdir()


def place_folder(folder: Path, target: Path) -> Path:
    """Move a folder to ``target`` with the content's hash added to its name, and return that; a part like any other.

    One that is there already stays if it is whole.
    """
    for path in (*folder.rglob("*"), folder):
        sync(path)
    digest = _folder_digest(folder)
    placed = target.with_name(f"{target.name}-{digest[:16]}")
    if not placed.is_dir() or _folder_digest(placed) != digest:
        if placed.exists():
            remove_folder(placed)
        os.rename(folder, placed)
        sync(placed.parent)
    return placed


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


def part_named(sums: Mapping[str, str], name: str) -> str | None:
    """Return the file that holds the part ``name`` by a manifest's checksums."""
    return next((file for file in sums if is_part(file, (name,))), None)


def is_part(file: str, names: Collection[str]) -> bool:
    """Return whether a file name is that of a part among ``names``, whatever its content."""
    found = _PART.fullmatch(file)
    return found is not None and "".join(found.groups()) in names


def check_part(folder: Path, file: str, digest: str, damaged: Callable[[str, str], CheckFailedError]) -> Path:
    """Return the path of a part, its bytes checked."""
    path = folder / Path(file).name
    if not path.is_file():
        raise damaged(file, "it is missing")
    if sha256(path) != digest:
        raise damaged(file, "its sha256 is not the manifest's")
    return path


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


def _folder_digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = [(path.relative_to(folder).as_posix(), sha256(path)) for path in files]
    return hashlib.sha256(json.dumps(sums).encode()).hexdigest()


def _identity(path: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None


def _sums_of(manifest: Path) -> dict[str, str] | None:
    """Return the files that a manifest names; None where it cannot be read, so that nothing is deleted."""
    try:
        return dict(json.loads(manifest.read_bytes())["sha256"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
