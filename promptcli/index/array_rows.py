"""Rows as an index takes them, block by block, and the answers that it gives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import BLOCK, Block, Floats, ParquetRows, as_floats
from promptcli.data.vectors.precision import unit
from promptcli.errors import UsageError
from promptcli.index.basics import way_record

#: Ids of rows; a range holds row numbers, which an index counts on from its last row.
Ids = Sequence[int | str]
RowNumbers = NDArray[np.int64]
RowMask = NDArray[np.bool_]


class Hit(NamedTuple):
    """One answer: rank from 1, the row's id and text (None in an index without texts), its score,
    and other columns.

    The score is the cosine, or by words alone BM25. What follows is known if both ranked.
    """

    rank: int
    id: int | str
    text: str | None
    score: float
    #: None in an index without further columns
    columns: dict[str, str | float | bool] | None = None
    #: ``meaning``, ``words`` or ``both``: which of the two rankings has it among its first k
    found_by: str | None = None
    bm25: float | None = None
    cosine_rank: int | None = None  #: by cosine alone; None beyond those that were compared
    bm25_rank: int | None = None  #: by words alone
    #: how many of 100 random pairs of rows the cosine exceeds; None if that is not known
    rarity: float | None = None

    def way(self) -> dict[str, Any]:
        """Return which of two rankings found it, and its scores and ranks there; nothing if one
        ranked.
        """
        return way_record(self)


@dataclass(frozen=True)
class ArrayRows:
    """Rows in memory, or a memory-mapped matrix."""

    vectors: Floats  #: (n, d)
    ids: Ids
    texts: Sequence[str] | None
    cells: Any = None  #: other columns, an Arrow array of maps, see ``cells_array``
    blank: Sequence[
        Sequence[int]
    ] = ()  #: runs (start, stop) of rows with a blank text, for rows without texts

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or 0 in self.vectors.shape:
            raise UsageError(
                f"vectors of shape {self.vectors.shape} cannot be indexed; give (n, d), at least"
                " one row"
            )
        for name, given in (("ids", self.ids), ("texts", self.texts), ("cells", self.cells)):
            if given is not None and len(given) != len(self.vectors):
                raise UsageError(
                    f"{len(self.vectors)} vectors, but {len(given)} {name}; give one for each row"
                )

    @property
    def shape(self) -> tuple[int, int]:
        return self.vectors.shape[0], self.vectors.shape[1]

    @property
    def has_texts(self) -> bool:
        return self.texts is not None

    def blocks(self) -> Iterator[Block]:
        for start in range(0, len(self.vectors), BLOCK):
            rows = slice(start, start + BLOCK)
            texts, cells = (
                None if given is None else given[rows] for given in (self.texts, self.cells)
            )
            vectors = self.vectors[rows]
            yield Block(
                vectors, self.ids[rows], texts, start, cells, self._blank(start, len(vectors))
            )

    def _blank(self, first: int, count: int) -> RowMask | None:
        """Return which of ``count`` rows have a blank text."""
        if not self.blank:
            return None
        blank = np.zeros(count, bool)
        for start, stop in self.blank:
            blank[max(start - first, 0) : max(stop - first, 0)] = True
        return blank

    def sample(self, count: int) -> tuple[RowNumbers, Floats]:
        count = min(count, len(self.vectors))
        rows = np.sort(
            np.random.default_rng(0).choice(len(self.vectors), count, replace=False)
        ).astype(np.int64)
        return rows, self.vectors[rows]


#: Rows that can be read several times: ``shape`` (n, d), ``has_texts``, ``blocks()`` in order, and
#: a ``sample(count)``.
IndexRows = ArrayRows | ParquetRows


def unit_rows(vectors: Floats, name: str = "rows", start: int = 0) -> Floats:
    """Return vectors (n, d) scaled to length 1.

    Zero vectors stay so. Rows are counted from ``start`` in messages.
    """
    vectors = as_floats(vectors)
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(wrong):
        rows = list_some((start + wrong).tolist())
        raise UsageError(f"{len(wrong):,} {name} ({rows}) hold a NaN or an infinity; embed again")
    return unit(vectors)


def list_some(values: Sequence[object]) -> str:
    """Return ``3, 4, 5, 8, 9, ...``."""
    return ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
