"""Prepares and encodes new rows of an index: drops blank rows, and splits long ones."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from promptcli.embedding.splitting import Splitter
from promptcli.embedding.writing import WINDOW
from promptcli.models.language import note_unread
from promptcli.notes import note, note_counts, stage
from promptcli.retrieval.files import unit_rows
from promptcli.retrieval.store import NewRows

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder


def prepare_rows(
    documents: "Encoder", blocks: Iterable[NewRows], *, split: bool
) -> Iterator[NewRows]:
    """Yield the rows with text in windows, and note how many are blank.

    ``split`` splits rows that are longer than the encoder's window.
    """
    blank = total = read = 0
    for block in blocks:
        for start in range(0, len(block), WINDOW):
            window = block.take(range(start, min(start + WINDOW, len(block))))
            rows = window.drop_blank()
            total += len(window)
            blank += len(window) - len(rows)
            read += len(window)
            if len(rows):
                rows.read, read = read, 0
                yield split_rows(rows, documents) if split else rows
    if blank and blank < total:
        note(f"{blank:,} of {total:,} rows are blank and were left out")


def split_rows(rows: NewRows, documents: "Encoder") -> NewRows:
    """Return the parts of rows that fit an encoder's window."""
    splitter = Splitter(documents)
    parts = [splitter.parts(text) for text in rows.texts]
    split = rows.take([place for place, texts in enumerate(parts) for _ in texts])
    split.texts = [text for texts in parts for text in texts]
    split.parts = [
        number if len(texts) > 1 else 0 for texts in parts for number in range(1, len(texts) + 1)
    ]
    return split


def encode_rows(
    documents: "Encoder", blocks: Iterable[NewRows], label: str = "index"
) -> Iterator[NewRows]:
    """Yield prepared rows with their vectors, and note how many texts were cut."""
    waiting: list[NewRows] = []  # the next window is read while one is encoded
    total = truncated = 0

    def windows() -> Iterator[list[str]]:
        nonlocal total
        for rows in blocks:
            texts = list(rows.texts)
            if not total:
                note_unread(documents, texts)
            total += rows.read
            waiting.append(rows)
            yield texts

    with stage(label, None) as advance:
        for encoded in documents.encode_windows(windows(), progress=advance):
            rows = waiting.pop(0)
            rows.vectors = unit_rows(encoded.vectors)
            truncated += int(np.count_nonzero(encoded.truncated))
            yield rows
    note_counts(total, blank=0, truncated=truncated)
