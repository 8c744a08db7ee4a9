"""Names that a folder of others gives in its files: they lead nowhere but into that folder."""

import os
from pathlib import Path


def inside(folder: Path, name: str) -> Path | None:
    """Return the path of a name in a folder.

    None if it leads out, absolute, by ``..`` or by a link, or if no file can have that name.
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
    """Return whether what a path leads to, links followed, is a folder or in it.

    The hub's cache keeps the files of its folders, which are in ``snapshots``, next to them, in
    ``blobs``.
    """
    real = os.path.realpath(path)
    root = os.path.realpath(folder)
    if real == root or real.startswith(os.path.join(root, "")):
        return True
    snapshots = [parent for parent in Path(root).parents if parent.name == "snapshots"]
    return any(Path(real).is_relative_to(parent.parent / "blobs") for parent in snapshots)
