"""Files and folders that are complete or absent, and the list of the files in a folder.

Data are written in a temporary folder, synced and renamed. The temporary folder is hidden, next to
the target, readable only by its owner, and locked by the writer; one without a lock was left by a
killed process. Finished data take the mode of the file that they replace, else that of the umask.
"""

import contextlib
import glob
import hashlib
import itertools
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from promptcli.errors import CheckFailedError, NotFoundError, UsageError, short_repr
from promptcli.storage.locks import hold, is_at, try_lock

Content = TypeVar("Content")

#: bytes of an output's name; its manifest and temporary files have longer names, of at most 255
MAX_NAME_BYTES = 200
_TEMPORARY = re.compile(r"\.(.*)\.[0-9a-f]{8}\.tmp", re.DOTALL)
#: Folder inside a temporary folder; it holds the data that are replaced, under their own name.
_REPLACED = "replaced"
_ALL_REPLACED = f".*.tmp/{_REPLACED}"


@contextlib.contextmanager
def temporary_folder(target: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder next to ``target``, or in the system's temporary folder.

    It is locked, and deleted at the end unless it was renamed.
    """
    target = target or Path(tempfile.gettempdir(), "promptcli")
    delete_leftovers(target.parent, target.name)
    with contextlib.ExitStack() as stack:
        while True:
            path = target.with_name(f".{_shorten(target.name)}.{secrets.token_hex(4)}.tmp")
            stack.callback(_delete_and_restore, path)
            path.mkdir(mode=0o700)
            # until it is locked, another process may remove it as a leftover
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                if try_lock(descriptor) is not False and is_at(descriptor, path):
                    break
        yield path


@contextlib.contextmanager
def atomic_path(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a path for a new file, which is renamed to ``target`` if the block succeeds.

    Without ``replace``, a target that appeared during the block is refused.
    """
    with temporary_folder(target) as folder:
        path = folder / target.name
        yield path
        keep_mode(target, path)
        sync(path)
        if replace:
            os.replace(path, target)
        else:
            try:
                os.link(path, target)  # fails if another process has taken the name
            except OSError:  # or the disk has no links
                if target.exists():
                    raise UsageError(
                        f"{target} appeared in the meantime; choose another name, or force=True"
                        " replaces it"
                    ) from None
                os.replace(path, target)
        sync(target.parent)


def keep_mode(old: Path, new: Path) -> None:
    """Give a new file or folder the permissions of the old one: private data stay private."""
    with contextlib.suppress(FileNotFoundError):
        new.chmod(stat.S_IMODE(new.stat().st_mode) & ~0o777 | old.stat().st_mode & 0o777)


def write_text(target: Path, text: str) -> None:
    """Write a text file atomically; a byte of a file name that is not UTF-8 becomes ``?``."""
    with atomic_path(target) as path:
        path.write_text(text, encoding="utf-8", errors="replace")


def check_output(path: Path, *, force: bool, parameter: str = "output") -> None:
    """Refuse an output file that cannot be written, before any work is done.

    Raises:
        UsageError: The file exists, or has a name that is not allowed. ``parameter`` named it.
        NotFoundError: The folder of the output does not exist.
    """
    check_output_name(path, parameter=parameter)
    if path.exists() and not path.is_file():
        raise UsageError(
            f"{path} is a folder or a device; give the name of a file", parameter=parameter
        )
    if not path.parent.is_dir():
        raise NotFoundError(
            f"{path}: no folder {str(path.parent)!r}; make it first: mkdir -p {path.parent}",
            parameter=parameter,
        )
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists; choose another name, or force=True replaces it",
            parameter=parameter,
        )


def check_output_name(path: Path, *, parameter: str = "output") -> None:
    """Refuse an output with a name that is too long, below a file, or a link to itself."""
    if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
        raise UsageError(
            f"the name {path.name[:40]}... has more than {MAX_NAME_BYTES} bytes; shorten it",
            parameter=parameter,
        )
    parent = next((folder for folder in path.parents if os.path.exists(folder)), path.parent)
    if os.path.isfile(parent):
        raise UsageError(
            f"{path}: {parent} is a file; give a path in a folder", parameter=parameter
        )
    real_path(path)


def is_writable(folder: Path) -> bool:
    """Return whether files can be written to a folder, which may not exist yet."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return os.access(nearest, os.W_OK | os.X_OK)


def real_path(path: Path) -> Path:
    """Return a path without symbolic links; refuse a link to itself."""
    resolved = Path(os.path.realpath(path))
    if resolved.is_symlink():
        raise UsageError(f"{path} is a symbolic link that leads to itself; give another path")
    return resolved


def sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def delete_leftovers(folder: Path, name: str | None = None) -> None:
    """Delete the temporary folders of killed processes, of the target ``name`` or all; restore the
    data that they were replacing.
    """
    with contextlib.suppress(OSError):  # this user may not list the folder
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match and (name is None or _shorten(name) == match[1]):
                _delete_leftover(path)


def _delete_leftover(path: Path) -> None:
    """Delete a temporary folder unless a process has locked it."""
    with contextlib.suppress(OSError):  # it is gone, or belongs to another user
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if try_lock(descriptor):
                _delete_and_restore(path)
        finally:
            os.close(descriptor)


def _delete_and_restore(path: Path) -> None:
    """Delete a temporary folder; put replaced data back if their place is still free."""
    for old in (path / _REPLACED).glob("*"):
        place = path.with_name(old.name)
        if not place.exists():
            os.rename(old, place)
    delete_path(path)


def _shorten(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:100])


def delete_path(path: Path) -> None:
    """Delete a file, a folder with its content, or a link without its target.

    The path may be missing. Ctrl-C is delayed until the end.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except KeyboardInterrupt:
        delete_path(path)
        raise


def delete_folder(folder: Path) -> None:
    """Delete a folder; it disappears at once, before its files are deleted."""
    with temporary_folder(folder) as path:
        os.rename(folder, path / "removed")


def sync(path: Path) -> None:
    """Flush a file's or a folder's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class StoredFile:
    """A file's size in bytes, and its SHA-256 if it was computed."""

    size: int
    sha256: str | None = None


@contextlib.contextmanager
def write_folder(target: Path, *, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield an empty folder that replaces ``target`` if the block succeeds.

    The block writes the manifest last, with ``list_files``; ``link_file`` takes over unchanged
    files. ``check`` runs at the last moment: it may refuse to replace what other processes have
    written in the meantime.
    """
    restore(target)
    with temporary_folder(target) as outer:
        path = outer / target.name
        path.mkdir()
        yield path
        keep_mode(target, path)
        for new_path in (*path.rglob("*"), path):
            sync(new_path)
        with hold(target.parent):
            check()
            if target.is_symlink() or target.exists():
                old = outer / _REPLACED / target.name
                old.parent.mkdir()
                os.rename(target, old)
            os.rename(path, target)
            sync(target.parent)


@contextlib.contextmanager
def atomic_folder(target: Path, *, marker: str, force: bool) -> Iterator[Path]:
    """Yield a folder that becomes the output ``target``.

    ``force`` replaces a folder only if it contains the file ``marker``.
    """

    def check() -> None:
        has_marker = (target / marker).is_file()
        if target.exists() and not (force and has_marker):
            hint = (
                ", or force=True replaces it"
                if has_marker
                else f" (it holds no {marker}, so it is never replaced)"
            )
            raise UsageError(f"{target} exists; choose another name{hint}", parameter="output")

    restore(target)
    check_output_name(target)
    if not target.parent.is_dir():
        raise NotFoundError(
            f"{target}: no folder {str(target.parent)!r}; make it first", parameter="output"
        )
    check()
    with write_folder(target, check=check) as path:
        yield path


def read_folder(folder: Path, read: Callable[[Path], Content]) -> Content:
    """Return the result of ``read`` on a folder; a folder that is replaced while it is read is read
    again.

    Readers take no lock: anyone who may open a folder could hold its lock for ever.
    """
    while True:
        restore(folder)
        before = _identity(folder)
        problem = None
        try:
            content = read(folder)
        except Exception as error:
            problem = error
        restore(folder)
        if _identity(folder) == before:
            if problem is not None:
                raise problem
            return content


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what no other folder has: inode and time of change; None if it does not exist."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def restore(target: Path) -> None:
    """Restore the old folder if a writer was killed between moving it away and moving the new one
    in; wait for a live writer.
    """
    if not target.exists() and any(
        target.parent.glob(f"{_ALL_REPLACED}/{glob.escape(target.name)}")
    ):
        with contextlib.suppress(OSError), hold(target.parent):
            delete_leftovers(target.parent, target.name)


def folders_with(marker: str, folder: Path) -> set[str]:
    """Return the names of the subfolders with a file ``marker``, also of one being replaced."""
    # in this order, a folder that is moved during the search is seen in one of its two places
    places = itertools.chain(folder.iterdir(), folder.glob(f"{_ALL_REPLACED}/*"), folder.iterdir())
    return {path.name for path in places if (path / marker).is_file()}


def list_files(folder: Path, *, hashed: bool = False) -> dict[str, StoredFile]:
    """Return a folder's files by relative name, for its manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): StoredFile(
            path.stat().st_size, sha256(path) if hashed else None
        )
        for path in paths
    }


def check_files(
    folder: Path, files: Mapping[str, StoredFile], *, hint: str, hashed: bool = False
) -> None:
    """Raise CheckFailedError unless the files of a folder have the sizes of its manifest, and with
    ``hashed`` also the hashes.
    """
    for name, file in files.items():
        path = path_inside(folder, name)
        if path is None:
            raise CheckFailedError(
                f"the manifest of {folder} lists {short_repr(name)}, which leads out of it; {hint}"
            )
        if not path.is_file():
            raise CheckFailedError(f"{folder} has no {name}; {hint}")
        if (size := path.stat().st_size) != file.size:
            raise CheckFailedError(f"{path} has {size:,} bytes, {file.size:,} were written; {hint}")
        if hashed and file.sha256 is not None and sha256(path) != file.sha256:
            raise CheckFailedError(f"{path} was changed after the manifest was written; {hint}")


def link_file(file: Path, target: Path) -> None:
    """Give a stored file, which is never rewritten, a second name, or copy it if the disk has no
    links.
    """
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def path_inside(folder: Path, name: str) -> Path | None:
    """Return the path of a name in a folder.

    It is None if it leads out of the folder (absolute, by ``..`` or by a link), or if no file can
    have that name.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
        return None
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    path = folder / name
    return path if is_below(path, folder) else None


def is_below(path: Path, folder: Path) -> bool:
    """Return whether a path, with links followed, is a folder or inside it.

    In the hub's cache, the files of a folder in ``snapshots`` are links to files in ``blobs``.
    """
    real = os.path.realpath(path)
    root = os.path.realpath(folder)
    if real == root or real.startswith(os.path.join(root, "")):
        return True
    snapshots = [parent for parent in Path(root).parents if parent.name == "snapshots"]
    return any(Path(real).is_relative_to(parent.parent / "blobs") for parent in snapshots)
