"""Rows as they come in, block by block, scaled and checked, and answers as they go out. Knows nothing of FAISS."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import BLOCK, Block, Floats, as_floats
from promptcli.data.vectors.precision import unit
from promptcli.errors import UsageError

Ids = Sequence[int | str]
RowNumbers = NDArray[np.int64]

#: Rows named in a message.
_NAMED = 5


@dataclass(frozen=True)
class Recall:
    """Share of the 10 nearest rows that an index finds, over ``queries`` of the ``rows`` that were indexed then."""

    at_10: float
    queries: int
    rows: int


class Hit(NamedTuple):
    """One answer: rank from 1, the row's id and text (None where the index has none), cosine."""

    rank: int
    id: int | str
    text: str | None
    score: float


class Rows(Protocol):
    """n rows of d numbers that can be read as often as need be."""

    @property
    def shape(self) -> tuple[int, int]:
        """Their number and width, (n, d)."""

    @property
    def has_texts(self) -> bool:
        """Whether they have texts."""

    def blocks(self) -> Iterator[Block]:
        """Yield them in order; numbers as ids are row numbers from 0."""

    def sample(self, count: int) -> tuple[RowNumbers, Floats]:
        """Return up to ``count`` rows from all over: their numbers, ascending, and vectors."""


@dataclass(frozen=True)
class ArrayRows:
    """Rows in memory, or a memory-mapped matrix.

    Raises:
        UsageError: They are no (n, d) matrix with n ids and n texts.
    """

    vectors: Floats  #: (n, d)
    ids: Ids
    texts: Sequence[str] | None

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or 0 in self.vectors.shape:
            raise UsageError(f"vectors of shape {self.vectors.shape} cannot be indexed; give (n, d), at least one row")
        for name, given in (("ids", self.ids), ("texts", self.texts)):
            if given is not None and len(given) != len(self.vectors):
                raise UsageError(f"{len(self.vectors)} vectors and {len(given)} {name} do not belong together")

    @property
    def shape(self) -> tuple[int, int]:
        """Their number and width, (n, d)."""
        return self.vectors.shape[0], self.vectors.shape[1]

    @property
    def has_texts(self) -> bool:
        """Whether they have texts."""
        return self.texts is not None

    def blocks(self) -> Iterator[Block]:
        """Yield them in order."""
        for start in range(0, len(self.vectors), BLOCK):
            part = slice(start, start + BLOCK)
            yield Block(self.vectors[part], self.ids[part], None if self.texts is None else self.texts[part], start)

    def sample(self, count: int) -> tuple[RowNumbers, Floats]:
        """Return up to ``count`` rows from all over."""
        rows = np.random.default_rng(0).choice(len(self.vectors), min(count, len(self.vectors)), replace=False)
        rows = np.sort(rows).astype(np.int64)
        return rows, self.vectors[rows]


def unit_rows(vectors: Floats, name: str = "row", start: int = 0) -> tuple[Floats, list[int]]:
    """Return vectors (n, d) scaled to length 1, and the rows that are zero and stay so, counted from ``start``.

    Raises:
        UsageError: a vector with a NaN or an infinity; the rows are named.
    """
    vectors = as_floats(vectors)
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(wrong):
        rows = named_rows((start + wrong).tolist(), name)
        raise UsageError(f"{rows}: the vector has a NaN or an infinity; embed it again")
    units = unit(vectors)
    return units, (start + np.flatnonzero(~units.any(axis=1))).tolist()


def named_rows(rows: Sequence[int], name: str = "row") -> str:
    """Return ``row 3`` or ``7 rows (3, 4, 5, 8, 9, ...)``."""
    if len(rows) == 1:
        return f"{name} {rows[0]}"
    plural = {"row": "rows", "query": "queries"}[name]
    return f"{len(rows)} {plural} ({', '.join(map(str, rows[:_NAMED]))}{', ...' if len(rows) > _NAMED else ''})"


def named_ids(names: Sequence[str]) -> str:
    """Return ``'a'`` or ``7 ('a', 'b', 'c', 'd', 'e', ...)``."""
    shown = ", ".join(repr(name[:40]) for name in names[:_NAMED])
    return shown if len(names) == 1 else f"{len(names):,} ({shown}{', ...' if len(names) > _NAMED else ''})"


def is_number(name: str) -> bool:
    """Return whether a text is how a row number is written."""
    return name.isascii() and name.isdigit() and len(name) < 19 and str(int(name)) == name
