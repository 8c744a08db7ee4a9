"""Files derived from the rows of an index, which can be rebuilt: arrays and a description.

The arrays may follow another library's data. Each file is written whole, and names the vector file
whose first rows it derives from.
"""

import json
import mmap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from promptcli.errors import CheckFailedError
from promptcli.storage.files import atomic_path

VECTORS, WORDS = "vectors.faiss", "words.counts"  #: names of the files
EXACT = "Flat"  #: FAISS's name for exhaustive search
_MAGIC = b"promptcli derived 4\n"
_ALIGNED = 64


@dataclass(frozen=True)
class Source:
    """The rows that a derived file is of: the first ones of a vector file."""

    vectors: str = ""  #: name of the vector file
    places: int = 0  #: number of rows


def write_derived(
    path: Path,
    source: Source,
    about: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    begin: Callable[[BinaryIO], None] = lambda file: None,
) -> None:
    """Write a file; ``begin`` writes the data before the arrays."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        begin(file)
        places = {}
        for name, array in arrays.items():
            file.write(bytes(-file.tell() % _ALIGNED))
            places[name] = (file.tell(), array.dtype.str, len(array))
            file.write(np.ascontiguousarray(array).data)
        document = {"about": {**asdict(source), **about}, "size": file.tell(), "arrays": places}
        end = json.dumps(document).encode()
        file.write(end + len(end).to_bytes(8, "little") + _MAGIC)


def read_derived(path: Path) -> tuple[Source, dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the source, the description and the arrays of a file, memory-mapped.

    Raises:
        CheckFailedError: The file is damaged.
    """
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        stop = len(content) - len(_MAGIC) - 8
        size = int.from_bytes(content[stop : stop + 8], "little")
        if content[stop + 8 :] != _MAGIC:
            raise ValueError("it is not complete")
        document = json.loads(content[stop - size : stop])
        arrays = {
            name: np.frombuffer(content, kind, count, offset)
            for name, (offset, kind, count) in document["arrays"].items()
        }
        if document["size"] != stop - size:
            raise ValueError("it has another content")
        about = document["about"]
        source = Source(about.pop("vectors"), about.pop("places"))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckFailedError(f"{path} is damaged: {error}") from None
    return source, about, arrays
