"""What a format of vector files is: a reader of the whole file and a writer that keeps no more than one window."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from promptcli.data.tables import Record, id_text
from promptcli.errors import UsageError

Floats = NDArray[np.float32]
#: Ids (row numbers, or text), texts or None, and the matrix (n, d) as the file has it.
Content = tuple[Sequence[int] | Sequence[str], list[str] | None, NDArray[Any]]

#: The key of the matrix in .safetensors, and the column in .parquet and .jsonl.
TENSOR, COLUMN = "embeddings", "embedding"


class Sink(Protocol):
    """Takes the rows of a vector file in order."""

    def write(self, records: Sequence[Record], vectors: NDArray[Any]) -> None:
        """Append one window: ``vectors`` (n, d), row i of ``records[i]``; float32 unless a ``Precision`` made less."""

    def close(self) -> None:
        """Write what stands at the end; the file is whole after this."""

    def abandon(self) -> None:
        """Let go of the file, which will be thrown away."""


@dataclass(frozen=True)
class VectorFormat:
    """A row of the table of formats."""

    read: Callable[[Path], Content]
    open: Callable[[BinaryIO, int, bool], Sink]  # file, width d, whether to store texts
    columns: Callable[[Path], Sequence[str]] | None = (
        None  # where there is room for ids and texts, and rows may be sentences
    )


class HeadedSink:
    """Raw rows after a header of constant length, which is written again at the end, when their number is known."""

    def __init__(self, file: BinaryIO, width: int, header: Callable[[int, int, np.dtype[Any]], bytes]) -> None:
        self._file, self._width, self._header, self._rows = file, width, header, 0
        self._dtype = np.dtype("<f4")
        file.write(header(0, width, self._dtype))

    def write(self, records: Sequence[Record], vectors: NDArray[Any]) -> None:
        """Append one window; its type and width are those of the file."""
        self._dtype, self._width = vectors.dtype.newbyteorder("<"), vectors.shape[1]
        self._file.write(np.ascontiguousarray(vectors, dtype=self._dtype).data)
        self._rows += len(vectors)

    def close(self) -> None:
        """Write the header again."""
        self._file.seek(0)
        self._file.write(self._header(self._rows, self._width, self._dtype))

    def abandon(self) -> None:
        """Do nothing."""


def row_ids(path: Path, ids: list[Any] | None, rows: int) -> Sequence[int] | Sequence[str]:
    """Return the ids of a column: row numbers where they are just those, else text."""
    if ids is None or ids == list(range(rows)):
        return range(rows)
    return [id_text(value, "id", f"{path}: row {row + 1}") for row, value in enumerate(ids)]


def row_texts(path: Path, texts: list[Any] | None) -> list[str] | None:
    """Return a column of texts.

    Raises:
        UsageError: A row holds something else.
    """
    if texts is not None and not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{path}: 'text' is not text in every row")
    return texts


def as_floats(numbers: NDArray[Any]) -> Floats:
    """Return numbers as float32; those beyond its range are infinite, for whoever uses them to refuse."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32, copy=False)
