"""New rows of an index: drops rows without text, splits long rows, and encodes them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from promptcli.data.vectors.precision import Floats, as_floats, unit
from promptcli.embedding.splitting import Splitter
from promptcli.embedding.writing import WINDOW
from promptcli.errors import UsageError
from promptcli.models.language import note_unread
from promptcli.notes import note, note_counts, stage

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder


@dataclass
class NewRows:
    """m rows for an index, with unit vectors (m, d) once they are encoded."""

    ids: Sequence[int | str]
    texts: Sequence[Any]  #: None for each row that is only a vector
    parts: Sequence[int] = ()  #: numbers of the parts of split rows, from 1; 0 (default): not split
    source: str | None = None  #: the file
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)  #: number, truth, date or text
    vectors: Floats | None = None
    are_numbered: bool = False  #: whether the ids are row numbers, which continue in an index
    input_rows: int = 0  #: number of input rows that were read for these rows, with blank rows

    def __post_init__(self) -> None:
        self.parts = self.parts or [0] * len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def displayed_ids(self) -> list[str]:
        """The ids of rows and parts as text."""
        return [str(displayed_id(*row)) for row in zip(self.ids, self.parts, strict=True)]

    def take(self, indices: Sequence[int]) -> "NewRows":
        """Return the rows at some indices."""

        def pick(values: Sequence[Any]) -> list[Any]:
            return [values[index] for index in indices]

        return replace(
            self,
            ids=pick(self.ids),
            texts=pick(self.texts),
            parts=pick(self.parts),
            columns={name: pick(values) for name, values in self.columns.items()},
            vectors=None if self.vectors is None else self.vectors[list(indices)],
        )

    def drop_blank(self) -> "NewRows":
        """Return the rows with text."""
        return self.take([index for index, text in enumerate(self.texts) if text.strip()])


def displayed_id(row_id: int | str, part: int) -> int | str:
    """Return the id of a row as a hit shows it; the id of a part ends in ``#`` and its number."""
    return f"{row_id}#{part}" if part else row_id


def unit_rows(vectors: Any, name: str = "rows") -> Any:
    """Return vectors (n, d) scaled to length 1; zero vectors stay zero."""
    floats = as_floats(np.asarray(vectors))
    wrong = np.flatnonzero(~np.isfinite(floats).all(axis=1))
    if len(wrong):
        raise UsageError(f"{name}: vector {wrong[0]} holds a NaN or an infinity; embed again")
    return unit(floats)


def prepare_rows(
    documents: "Encoder", blocks: Iterable[NewRows], *, split: bool
) -> Iterator[NewRows]:
    """Yield the rows with text in windows, and note how many rows are blank.

    ``split`` splits rows that are longer than the encoder's window.
    """
    blank_rows = total = input_rows = 0
    for block in blocks:
        for start in range(0, len(block), WINDOW):
            window = block.take(range(start, min(start + WINDOW, len(block))))
            rows = window.drop_blank()
            total += len(window)
            blank_rows += len(window) - len(rows)
            input_rows += len(window)
            if len(rows):
                rows.input_rows = input_rows
                input_rows = 0
                yield split_rows(rows, documents) if split else rows
    if 0 < blank_rows < total:
        note(f"{blank_rows:,} of {total:,} rows are blank and were left out")


def split_rows(rows: NewRows, documents: "Encoder") -> NewRows:
    """Return the parts of rows that fit an encoder's window."""
    splitter = Splitter(documents)
    indices: list[int] = []
    texts: list[str] = []
    numbers: list[int] = []
    for index, text in enumerate(rows.texts):
        parts = splitter.parts(text)
        indices += [index] * len(parts)
        texts += parts
        numbers += range(1, len(parts) + 1) if len(parts) > 1 else [0]
    return replace(rows.take(indices), texts=texts, parts=numbers)


def encode_rows(
    documents: "Encoder", blocks: Iterable[NewRows], label: str = "index"
) -> Iterator[NewRows]:
    """Yield prepared rows with their vectors, and note how many texts were cut."""
    waiting: list[NewRows] = []  # the next window is read while the encoder works
    total = truncated = 0

    def windows() -> Iterator[list[str]]:
        nonlocal total
        for rows in blocks:
            texts = list(rows.texts)
            if not total:
                note_unread(documents, texts)
            total += rows.input_rows
            waiting.append(rows)
            yield texts

    with stage(label, None) as advance:
        for encoded in documents.encode_windows(windows(), progress=advance):
            rows = waiting.pop(0)
            rows.vectors = unit_rows(encoded.vectors)
            truncated += int(np.count_nonzero(encoded.truncated))
            yield rows
    note_counts(total, blank=0, truncated=truncated)
