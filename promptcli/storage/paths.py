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
    real = Path(os.path.realpath(path))
    root = Path(os.path.realpath(folder))
    blobs = [parent.parent / "blobs" for parent in root.parents if parent.name == "snapshots"]
    return any(real.is_relative_to(place) for place in (root, *blobs))
