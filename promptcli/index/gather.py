"""Rows for an index: sentences encoded window by window, or stored vectors and the texts they came from.

Knows nothing of FAISS.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from promptcli.data.tables import Fields, Record
from promptcli.data.text import Source, open_source
from promptcli.data.vectors.reading import Vectors, manifest_path, read_vectors
from promptcli.encoder.embedding import EmbedReport, Progress, embed_stream
from promptcli.errors import CheckFailedError, UsageError
from promptcli.index.rows import Floats, Ids

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder


@dataclass(frozen=True)
class Gathered:
    """n rows: vectors (n, d), ids, texts (None where unknown), and how the encoding went (None: none was needed)."""

    vectors: Floats
    ids: Ids
    texts: list[str] | None
    report: EmbedReport | None


class _Sink:
    """Keeps the windows; the place of a vector file in ``embed_stream``."""

    def __init__(self) -> None:
        self.windows: list[Floats] = []
        self.records: list[Record] = []

    def write(self, records: Sequence[Record], vectors: Floats) -> None:
        self.windows.append(vectors)
        self.records += records

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass


def encode_rows(encoder: "Encoder", source: Source, progress: Progress) -> Gathered:
    """Encode all sentences of a source.

    Raises:
        PromptcliError: see ``embed_stream`` and ``Source``.
    """
    sink = _Sink()
    report = embed_stream(encoder, source, sink, progress=progress)
    ids: Any = [record.id for record in sink.records]
    return Gathered(np.concatenate(sink.windows), ids, [record.text for record in sink.records], report)


def stored_rows(path: Path, texts: Path | None, fields: Fields) -> tuple[Gathered, dict[str, Any] | None]:
    """Return the rows of a vector file, and its manifest where it has one.

    Args:
        path: The vector file.
        texts: The file of sentences it was made from, for a file that holds no texts itself.
        fields: Of that file.

    Raises:
        NotFoundError, UsageError: see ``read_vectors`` and ``open_source``; or the rows are not equally many.
        CheckFailedError: a damaged file, or ``texts`` is not the file that the manifest names.
    """
    vectors = read_vectors(path)
    if vectors.manifest is not None and not {"fingerprint", "recipe", "model"} <= vectors.manifest.keys():
        raise CheckFailedError(f"{manifest_path(path)} does not say which encoder made the vectors; embed again")
    if texts is not None:
        vectors = _with_texts(vectors, path, texts, fields)
    return Gathered(vectors.matrix, vectors.ids, vectors.texts, None), vectors.manifest


def _with_texts(vectors: Vectors, path: Path, texts: Path, fields: Fields) -> Vectors:
    if vectors.texts is not None:
        raise UsageError(f"{path} holds its texts itself; leave out --texts")
    with open_source(texts, fields) as source:
        records = list(source)
        digest = source.sha256()
    if len(records) != len(vectors.matrix):
        raise UsageError(f"{texts} has {len(records):,} sentences and {path} {len(vectors.matrix):,} vectors")
    expected = (vectors.manifest or {}).get("input", {}).get("sha256", digest)
    if digest != expected:
        raise CheckFailedError(
            f"{texts} is not the file that {path} was made from (its sha256 differs); embed it again"
        )
    ids: Any = [record.id for record in records]
    return replace(vectors, ids=ids, texts=[record.text for record in records])
