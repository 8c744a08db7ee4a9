"""Encoded rows on the way into an index: in files without a name, so that no process, killed or not, leaves them."""

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from promptcli.data.tables import Record
from promptcli.index.rows import BLOCK, ArrayRows, Block, Floats, RowNumbers


class Spool:
    """Takes the windows of ``embed_stream`` and holds none of them in memory.

    Args:
        folder: On its disk the rows wait; None: on that of temporary files.
    """

    def __init__(self, folder: Path | None) -> None:
        self._vectors, self._labels = (tempfile.TemporaryFile(dir=folder) for _ in range(2))
        self._writer: Any = None

    def write(self, records: Sequence[Record], vectors: Floats) -> None:
        """Append rows: ids are texts in all records of a source, or in none."""
        columns: dict[str, Any] = {"text": pa.array([record.text for record in records], pa.large_string())}
        if isinstance(records[0].id, str):
            columns["id"] = pa.array([record.id for record in records], pa.large_string())
        batch = pa.record_batch(columns)
        if self._writer is None:
            self._writer, self._width = pa.ipc.new_file(self._labels, batch.schema), vectors.shape[1]
        self._writer.write_batch(batch)
        self._vectors.write(np.ascontiguousarray(vectors, np.float32).data)

    def close(self) -> None:
        """Write what stands at the end; ``rows`` may be asked for after this."""
        self._writer.close()
        self._labels.flush()
        self._vectors.flush()

    def abandon(self) -> None:
        """Let go of the files."""
        self._vectors.close()
        self._labels.close()

    def rows(self) -> "SpooledRows":
        """Return what was written, mapped."""
        matrix = np.frombuffer(_mapped(self._vectors), np.float32).reshape(-1, self._width)
        labels = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(_mapped(self._labels)))).read_all()
        return SpooledRows(ArrayRows(matrix, range(len(matrix)), None), labels)


@dataclass(frozen=True)
class SpooledRows:
    """Rows in mapped files; see ``rows.Rows``."""

    numbered: ArrayRows  #: The vectors, and row numbers as ids.
    labels: Any  #: Table of ``text`` and, where the rows have ids of their own, ``id``.
    has_texts = True

    @property
    def shape(self) -> tuple[int, int]:
        """Their number and width, (n, d)."""
        return self.numbered.shape

    def blocks(self) -> Iterator[Block]:
        """Yield them in order."""
        named = "id" in self.labels.column_names
        for start, block in zip(range(0, len(self.labels), BLOCK), self.numbered.blocks(), strict=True):
            part = self.labels.slice(start, BLOCK)
            ids = part.column("id").to_pylist() if named else block.ids
            yield Block(block.vectors, ids, part.column("text").to_pylist())

    def sample(self, count: int) -> tuple[RowNumbers, Floats]:
        """Return up to ``count`` rows from all over."""
        return self.numbered.sample(count)


def _mapped(file: BinaryIO) -> mmap.mmap:
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
