"""The vectors of an index, in an append-only file or in memory.

A change appends its vectors before its transaction ends. The next change cuts off vectors that a
killed process left.
"""

import mmap
import os
import re
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import numpy as np

from promptcli.data.vectors.precision import Floats
from promptcli.errors import CheckFailedError
from promptcli.storage.files import sync

NAME = re.compile(r"vectors-[0-9a-f]{8}\.(float32|float16)")  #: ends with the type


def damaged(path: Path | None, why: str = "") -> CheckFailedError:
    """Return the error for an unreadable file of an index."""
    return CheckFailedError(f"{path} is damaged{why}; build the index again")


class VectorFile:
    """Vectors (n, d) of rows, by their places from 0.

    Args:
        name: Name of the file.
        folder: Folder of the index; None: the vectors are in memory.
    """

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name = name
        self.kind = name.rpartition(".")[2]  #: ``float32`` or ``float16``
        self.path = None if folder is None else folder / name
        self._rows: Floats | None = None  # those in memory, or mapped last

    @classmethod
    def new(cls, folder: Path | None, kind: str) -> "VectorFile":
        """Return a new, empty file of ``float32`` or ``float16``."""
        name = f"vectors-{uuid4().hex[:8]}.{kind}"
        if folder is not None:
            (folder / name).touch(exist_ok=False)
        return cls(name, folder)

    def holds(self, count: int, width: int) -> bool:
        """Return whether the file has the first vectors (count, width)."""
        size = count * width * np.dtype(self.kind).itemsize
        path = self.path
        return path is not None and path.is_file() and path.stat().st_size >= size

    def write(self, place: int, vectors: Floats) -> None:
        """Write vectors (m, d) from a place on, and truncate the rest of the file.

        Raises:
            CheckFailedError: The file is missing, or it ends before the place.
        """
        vectors = np.ascontiguousarray(vectors, self.kind)
        if self.path is None:
            stop = place + len(vectors)
            held = vectors[:0] if self._rows is None else self._rows
            if len(held) < stop:  # room for twice as many: rows of many files come one by one
                room = np.empty((max(stop, 2 * place), vectors.shape[1]), self.kind)
                room[:place] = held[:place]
                held = room
            held[place:stop] = vectors
            self._rows = held
            return
        with self._open(self.path, "ab") as file:
            start = place * vectors.shape[1] * vectors.itemsize
            if file.seek(0, os.SEEK_END) < start:  # else zeros would fill the gap
                raise damaged(self.path)
            file.truncate(start)
            file.write(vectors.data)

    def read(self, count: int, width: int) -> Floats:
        """Return the first vectors (count, d), memory-mapped.

        Raises:
            CheckFailedError: The file is missing, or has fewer vectors.
        """
        if count == 0:
            return np.empty((0, width), np.float32)
        if self._rows is None or len(self._rows) < count:
            assert self.path is not None
            with self._open(self.path, "rb") as file:
                try:
                    size = count * width * np.dtype(self.kind).itemsize
                    content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
                except ValueError:
                    raise damaged(self.path) from None
            self._rows = np.frombuffer(content, self.kind).reshape(count, width)
        return self._rows[:count]

    def _open(self, path: Path, mode: str) -> BinaryIO:
        """Open the file; a foreign index must not refer to a file outside its folder."""
        if not NAME.fullmatch(self.name) or not path.is_file() or path.is_symlink():
            raise CheckFailedError(f"{path} is missing; build the index again")
        return path.open(mode)  # type: ignore[return-value]

    def sync(self) -> None:
        """Flush what was written to the disk.

        Raises:
            CheckFailedError: The file is missing.
        """
        if self.path is not None:
            self._open(self.path, "rb").close()
            sync(self.path)
            sync(self.path.parent)

    def delete(self) -> None:
        """Delete the file; processes that have mapped it can still read it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
