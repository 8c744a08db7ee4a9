"""The rows that are compared with an index: of a file, of vectors, or of another index."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa

from promptcli.data.bad_lines import BadRows
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.layouts import ID, TEXT
from promptcli.data.vectors.formats import BLOCK, Block, Floats
from promptcli.errors import UsageError
from promptcli.index import inputs, stored
from promptcli.index.basics import INDEX_MANIFEST
from promptcli.index.leakage import ComparedRows, TextSet
from promptcli.index.stored import Origin, StoredIndex
from promptcli.index.vector_index import VectorIndex
from promptcli.notes import note

if TYPE_CHECKING:
    from promptcli.models.loading import Model


def texts_of(index: VectorIndex) -> TextSet | None:
    """Return the texts of an index; None if it has none."""
    if not index.has_texts:
        return None
    live = index.live()
    labels = index.live_labels

    def columns_of(row: int) -> Any:
        [hit] = index.hits((live[row : row + 1], np.ones(1, np.float32)), are_cosines=False)
        return hit.columns

    return TextSet(labels.column(ID), labels.column(TEXT), columns_of)


@dataclass(frozen=True)
class OtherRows:
    """A file of sentences or of vectors, or an index, whose rows are looked for in an index."""

    source: str | Path | BinaryIO
    folder: Path  #: of the index that they are looked for in
    model: "Model | None"
    bad: BadRows

    def compare(self, stored_index: StoredIndex, compared: ComparedRows) -> list[Floats]:
        """Compare the texts of the rows, and return the vectors of those that have no equal."""
        origin = stored_index.origin
        if isinstance(self.source, str | Path) and (Path(self.source) / INDEX_MANIFEST).is_file():
            other = _load_other(Path(self.source), self.folder, origin)
            return list(compared.vectors_without_equals(_blocks_of(other)))
        read = stored_index.reading
        fields = ColumnChoice(text_before=read.text_field, id_before=read.id_field)
        split = stored_index.index.split
        files = inputs.RowFiles(self.source, fields, None, split, read.rows, self.bad)
        if files.are_vectors:
            rows, _ = files.open_stored(origin)
            return list(compared.vectors_without_equals(rows.blocks()))
        encoded = files.encode_rest(
            lambda _: (inputs.encoder_of(origin, self.model), None),
            plain=origin.prompt is None,
            check=compared.without_equals,
        )
        if encoded is None:
            return []
        return [block.vectors for block in encoded.blocks()]


def _load_other(folder: Path, source: Path, origin: Origin) -> VectorIndex:
    """Return an index; refuse one of another encoder than that of the index ``source``."""
    other = stored.load(folder, words=False)
    if other.origin.fingerprint != origin.fingerprint:
        one, two = inputs.names_of_two(other.origin, origin)
        raise UsageError(
            f"{folder} was built with {one}, and {source} with {two}; build both with one model"
        )
    if folder.samefile(source):
        note(f"{folder} is compared with itself: every row occurs in it")
    return other.index


def _blocks_of(index: VectorIndex) -> Iterator[Block]:
    """Yield the rows of an index that are not deleted."""
    live = index.live()
    for start in range(0, len(live), BLOCK):
        rows = live[start : start + BLOCK]
        labels = index.labels.take(pa.array(rows))
        texts = labels.column(TEXT).to_pylist() if index.has_texts else None
        yield Block(index.vectors(rows), labels.column(ID).to_pylist(), texts)
