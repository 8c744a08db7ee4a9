"""Rows that an index would hold twice: it has their text under another id."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from promptcli.data.layouts import ID, TEXT
from promptcli.data.parquet_files import RecordBatch
from promptcli.errors import UsageError, counted
from promptcli.index.array_rows import Ids, IndexRows
from promptcli.index.vector_index import VectorIndex
from promptcli.notes import keyword

Hashes = NDArray[np.int64]


class Repeats:
    """Finds rows whose text an index has under another id.

    Only hashes of its texts and ids are kept.
    """

    def __init__(self, index: VectorIndex) -> None:
        live = index.live()
        if index.has_texts:
            self._texts = _hashes(index.labels.column(TEXT), live)
        else:
            self._texts = np.empty(0, np.int64)
        self._ids = _hashes(index.labels.column(ID), live)
        self._rows = self._found = 0
        self._example = ""

    def check(self, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        """Yield batches of sentences.

        Once one repeats a text, the others are only counted, and all are refused.
        """
        for batch in batches:
            numbered = batch.schema.field(ID).type == pa.int64()
            self._count(
                None if numbered else batch.column(ID).to_pylist(), batch.column(TEXT).to_pylist()
            )
            if not self._found:
                yield batch
        self._refuse()

    def check_blocks(self, rows: IndexRows) -> None:
        """Refuse rows of vectors that repeat a text."""
        for block in rows.blocks():
            if block.texts is not None:
                self._count(None if isinstance(block.ids, range) else block.ids, block.texts)
        self._refuse()

    def _count(self, ids: Ids | None, texts: Sequence[str]) -> None:
        repeated = _are_in(np.fromiter(map(hash, texts), np.int64, len(texts)), self._texts)
        repeated &= [bool(text.strip()) for text in texts]
        if ids is not None:  # rows with a known id replace theirs, or are refused by it
            repeated &= ~_are_in(
                np.fromiter(map(hash, map(str, ids)), np.int64, len(texts)), self._ids
            )
        places = np.flatnonzero(repeated)
        if len(places) and not self._found:
            self._example = texts[places[0]]
        self._rows += len(texts)
        self._found += len(places)

    def _refuse(self) -> None:
        if self._found:
            raise UsageError(
                f"{self._found:,} of {counted(self._rows, 'text')} are in the index under other"
                f" ids, e.g. {self._example!r:.60}; name the column of their ids as"
                f" {keyword('id_field')}, or add them again with {keyword('allow_duplicates')}"
            )


def _hashes(column: Any, rows: NDArray[np.int64]) -> Hashes:
    """Return the hashes of the texts in some rows of an Arrow column, sorted."""
    hashes = [
        np.fromiter(map(hash, chunk.cast(pa.large_string()).to_pylist()), np.int64, len(chunk))
        for chunk in column.chunks
    ]
    return np.sort(np.concatenate([np.empty(0, np.int64), *hashes])[rows])


def _are_in(hashes: Hashes, known: Hashes) -> NDArray[np.bool_]:
    places = np.searchsorted(known, hashes)
    inside = places < len(known)
    found = np.zeros(len(hashes), bool)
    found[inside] = known[places[inside]] == hashes[inside]
    return found
