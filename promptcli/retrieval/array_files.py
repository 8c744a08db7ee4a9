"""The memory-mapped files of an index: its vectors, and what is derived from its rows.

The vector file is append-only. A change appends its vectors before its transaction ends, and the
next change cuts off the vectors that a killed process left. A derived file can be rebuilt from the
rows of the index; it is always written whole.
"""

import json
import mmap
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.precision import Floats
from promptcli.errors import CheckFailedError
from promptcli.storage.files import atomic_path, sync

VECTOR_FILE_NAME = re.compile(r"vectors-[0-9a-f]{8}\.(float32|float16)")  #: ends with the type
FAISS_FILE, WORDS_FILE = "vectors.faiss", "words.counts"  #: names of the derived files
EXACT_FACTORY = "Flat"  #: FAISS's name for exhaustive search
_MAGIC = b"promptcli derived 4\n"
_ALIGNMENT_BYTES = 64


def damage_error(path: Path | None, reason: str = "") -> CheckFailedError:
    """Return the error for an unreadable file of an index."""
    return CheckFailedError(f"{path} is damaged{reason}; build the index again")


class VectorFile:
    """Vectors (n, d) of rows, by their places from 0.

    Args:
        name: Name of the file.
        folder: Folder of the index; None: the vectors are in memory.
    """

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name = name
        self.dtype = name.rpartition(".")[2]  #: ``float32`` or ``float16``
        self.path = None if folder is None else folder / name
        self._vectors: Floats | None = None  # in memory, or memory-mapped by the last ``read``

    @classmethod
    def new(cls, folder: Path | None, dtype: str) -> "VectorFile":
        """Return a new, empty file of ``float32`` or ``float16``."""
        name = f"vectors-{uuid4().hex[:8]}.{dtype}"
        if folder is not None:
            (folder / name).touch(exist_ok=False)
        return cls(name, folder)

    def holds(self, count: int, width: int) -> bool:
        """Return whether the file has at least ``count`` vectors."""
        path = self.path
        size = count * width * np.dtype(self.dtype).itemsize
        return path is not None and path.is_file() and path.stat().st_size >= size

    def write(self, place: int, vectors: Floats) -> None:
        """Write vectors (m, d) from a place on, and truncate the rest of the file.

        Raises:
            CheckFailedError: The file is missing, or it ends before the place.
        """
        vectors = np.ascontiguousarray(vectors, self.dtype)
        if self.path is None:
            stop = place + len(vectors)
            array = vectors[:0] if self._vectors is None else self._vectors
            if len(array) < stop:  # twice as large, since rows may come file by file
                larger = np.empty((max(stop, 2 * place), vectors.shape[1]), self.dtype)
                larger[:place] = array[:place]
                array = larger
            array[place:stop] = vectors
            self._vectors = array
            return
        with self._open(self.path, "ab") as file:
            start = place * vectors.shape[1] * vectors.itemsize
            if file.seek(0, os.SEEK_END) < start:  # zeros would fill the gap
                raise damage_error(self.path)
            file.truncate(start)
            file.write(vectors.data)

    def read(self, count: int, width: int) -> Floats:
        """Return the first vectors (count, d), memory-mapped.

        Raises:
            CheckFailedError: The file is missing, or has fewer vectors.
        """
        if count == 0:
            return np.empty((0, width), np.float32)
        if self._vectors is None or len(self._vectors) < count:
            assert self.path is not None
            size = count * width * np.dtype(self.dtype).itemsize
            with self._open(self.path, "rb") as file:
                try:
                    content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
                except ValueError:
                    raise damage_error(self.path) from None
            self._vectors = np.frombuffer(content, self.dtype).reshape(count, width)
        return self._vectors[:count]

    def _open(self, path: Path, mode: str) -> BinaryIO:
        """Open the file; a stranger's index cannot name a file outside its folder."""
        if not VECTOR_FILE_NAME.fullmatch(self.name) or not path.is_file() or path.is_symlink():
            raise CheckFailedError(f"{path} is missing; build the index again")
        return path.open(mode)  # type: ignore[return-value]

    def sync(self) -> None:
        """Wait until the disk has what was written.

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


@dataclass(frozen=True)
class Source:
    """The rows that a derived file describes: the first rows of a vector file."""

    vectors: str = ""  #: name of the vector file
    places: int = 0  #: number of rows


def write_derived(
    path: Path,
    source: Source,
    description: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    write_first: Callable[[BinaryIO], None] = lambda file: None,
) -> None:
    """Write a derived file; ``write_first`` writes another library's data before the arrays."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        write_first(file)
        layout = {}
        for name, array in arrays.items():
            file.write(bytes(-file.tell() % _ALIGNMENT_BYTES))
            layout[name] = (file.tell(), array.dtype.str, len(array))
            file.write(np.ascontiguousarray(array).data)
        about = {**asdict(source), **description}
        document = {"about": about, "size": file.tell(), "arrays": layout}
        end = json.dumps(document).encode()
        file.write(end + len(end).to_bytes(8, "little") + _MAGIC)


def read_derived(path: Path) -> tuple[Source, dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the source, the description and the memory-mapped arrays of a derived file.

    Raises:
        CheckFailedError: The file is damaged.
    """
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        stop = len(content) - len(_MAGIC) - 8
        if content[stop + 8 :] != _MAGIC:
            raise ValueError("it is not complete")
        start = stop - int.from_bytes(content[stop : stop + 8], "little")
        document = json.loads(content[start:stop])
        arrays = {
            name: np.frombuffer(content, dtype, count, offset)
            for name, (offset, dtype, count) in document["arrays"].items()
        }
        if document["size"] != start:
            raise ValueError("its size differs from the size that it states")
        description = document["about"]
        source = Source(description.pop("vectors"), description.pop("places"))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckFailedError(f"{path} is damaged: {error}") from None
    return source, description, arrays
