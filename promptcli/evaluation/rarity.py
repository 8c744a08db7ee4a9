"""How rare a cosine is among unrelated texts: its place among the cosines of random pairs.

The upper tail is a generalised Pareto distribution, so that a share is known where the sample has
few pairs or none. Its parameters follow from probability-weighted moments (Hosking and Wallis,
1987): for a few hundred cosines they are as good as those of the highest likelihood, and need no
search, nor the library that searches, whose import takes longer than encoding a small file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptcli.errors import UsageError, counted
from promptcli.notes import keyword

Cosines = NDArray[np.float64]
Vectors = NDArray[np.float32]

PAIRS = 2000  #: whose cosines say how rare one is
ROWS = 2000  #: that pairs are drawn from, at most
FEWEST = 50  #: rows, below which nothing is known
#: Percent that no cosine exceeds: a sample of 2,000 pairs tells of a rarer one only that it is.
HIGHEST = 99.99
_FEWEST_PAIRS = 500  # that are not copies
_TAIL = 0.1  # share of the pairs that the distribution is fitted to
_FLAT = 1e-6  # a shape nearer to 0 is 0
_COPY = 5e-5  # how far the cosine of two copies may be from 1
_SEED = 0


@dataclass(frozen=True)
class Rarity:
    """The cosines of random pairs of rows, and what share of such pairs a cosine exceeds."""

    cosines: Cosines  #: (m,) ascending
    rows: int  #: that the pairs were drawn from
    _tail: "_Tail | None" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tail = None
        if self.rows >= FEWEST and len(self.cosines) >= _FEWEST_PAIRS:
            tail = _Tail.of(self.cosines)
        object.__setattr__(self, "_tail", tail)

    @classmethod
    def of_rows(cls, vectors: Vectors, pairs: int = PAIRS) -> "Rarity":
        """Return the rarity among pairs of rows, of unit vectors (n, d).

        Rows that repeat others, and zero vectors, are left out: copies are not an unrelated pair.
        """
        rows = distinct_rows(vectors)
        first, second = _draw_pairs(len(rows), pairs)
        cosines = _products(rows, first, second)
        return cls(np.sort(cosines[cosines < 1 - _COPY]), len(rows))

    @classmethod
    def read(cls, file: Path) -> "Rarity":
        """Return a rarity that was written."""
        with np.load(file, allow_pickle=False) as kept:
            return cls(kept["cosines"].astype(np.float64), int(kept["rows"]))

    def write(self, file: Path) -> None:
        """Write the cosines as float32, and the number of rows, as an .npz file."""
        np.savez(file, cosines=self.cosines.astype(np.float32), rows=self.rows)

    @property
    def is_known(self) -> bool:
        """Whether there are rows enough."""
        return self._tail is not None

    @property
    def too_few_rows(self) -> str:
        """Why no rarity is known, if there are some rows."""
        different = counted(self.rows, "different row")
        return f"{different} are too few to say how rare a cosine is ({FEWEST} are enough)"

    def share_above(self, cosines: ArrayLike) -> Cosines:
        """Return the share of random pairs whose cosine is at least as high, for each of some."""
        assert self._tail is not None
        wanted = np.asarray(cosines, np.float64)
        above = 1 - np.searchsorted(self.cosines, wanted) / len(self.cosines)
        return np.where(wanted > self._tail.start, self._tail.share_above(wanted), above)

    def percents(self, cosines: Sequence[float] | NDArray[np.floating]) -> list[float | None]:
        """Return in percent how many random pairs each cosine exceeds; None if it is not known."""
        if not self.is_known:
            return [None] * len(cosines)
        percents = np.minimum(100 * (1 - self.share_above(cosines)), HIGHEST)
        percents[np.asarray(cosines) >= 1 - _COPY] = HIGHEST
        rounded: list[float | None] = percents.round(4).tolist()
        return rounded


@dataclass(frozen=True)
class _Tail:
    """A generalised Pareto distribution of what cosines exceed a start by."""

    start: float
    share: float  #: of all cosines that exceed the start
    shape: float  #: below 0: no cosine exceeds an end
    scale: float

    @classmethod
    def of(cls, cosines: Cosines) -> "_Tail":
        """Fit the upper tail of ascending cosines (m,), by probability-weighted moments."""
        count = round(_TAIL * len(cosines))
        start = float(cosines[-count - 1])
        excess = cosines[-count:] - start
        mean = float(excess.mean())
        falling_ranks = np.arange(count - 1, -1, -1) / (count - 1)
        weighted = float((excess * falling_ranks).mean())
        spread = mean - 2 * weighted
        if spread <= 0:  # all are equal
            return cls(start, count / len(cosines), 0.0, _COPY)
        return cls(start, count / len(cosines), 2 - mean / spread, 2 * mean * weighted / spread)

    def share_above(self, cosines: Cosines) -> Cosines:
        """Return the share of all pairs whose cosine is at least as high."""
        excess = np.maximum(cosines - self.start, 0) / self.scale
        if abs(self.shape) < _FLAT:
            above = np.exp(-excess)
        else:
            inside = np.maximum(1 + self.shape * excess, 0)
            with np.errstate(divide="ignore"):  # beyond the end the share is 0
                above = inside ** (-1 / self.shape)
        return np.asarray(self.share * above)


def check_least(percent: float, by: str) -> None:
    """Refuse a rarity in percent that no answer can have, as those that are ranked by words."""
    if by == "words":
        raise UsageError(
            f"{keyword('min_rarity')} is for cosines, and words alone rank; give"
            f" {keyword('min_score')}"
        )
    if not 0 <= percent <= HIGHEST:
        raise UsageError(
            f"{keyword('min_rarity')} is {percent:g}; give a percentage from 0 to {HIGHEST:g}: a"
            " sample of pairs tells of nothing rarer"
        )


class RowSample:
    """A random sample of rows that come block by block."""

    def __init__(self, most: int = ROWS) -> None:
        self._most = most
        self._generator = np.random.default_rng(_SEED)
        self._keys = np.empty(0)
        self._vectors: Vectors | None = None

    def add(self, vectors: Vectors) -> None:
        """Take some of further rows (n, d) into the sample."""
        keys = self._generator.random(len(vectors))
        if self._vectors is None:
            self._vectors = vectors[:0]
        chosen = np.argsort(keys)[: self._most]
        self._keys = np.concatenate([self._keys, keys[chosen]])
        self._vectors = np.concatenate([self._vectors, vectors[chosen]])
        kept = np.argsort(self._keys)[: self._most]
        self._keys = self._keys[kept]
        self._vectors = self._vectors[kept]

    @property
    def vectors(self) -> Vectors:
        """The rows (n, d)."""
        return np.empty((0, 1), np.float32) if self._vectors is None else self._vectors

    def rarity(self) -> Rarity:
        """Return the rarity among pairs of the rows."""
        if self._vectors is None:
            return UNKNOWN
        return Rarity.of_rows(self._vectors)


UNKNOWN = Rarity(np.empty(0), 0)


def sample_rows(count: int, most: int = ROWS) -> NDArray[np.int64]:
    """Return the numbers of up to ``most`` of ``count`` rows, at random."""
    generator = np.random.default_rng(_SEED)
    return np.sort(generator.choice(count, min(count, most), replace=False))


def distinct_rows(vectors: Vectors) -> Vectors:
    """Return the rows (n, d) without copies and zero vectors.

    Copies, also from other batches, have the same product with a random direction to six decimals.
    """
    vectors = vectors[vectors.any(axis=1)]
    direction = np.random.default_rng(_SEED).standard_normal((vectors.shape[1],))
    products = np.round(vectors @ direction.astype(np.float32), 6)
    _, first = np.unique(products, return_index=True)
    return vectors[first]


def _draw_pairs(rows: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return up to ``most`` distinct pairs of distinct rows, at random."""
    count = rows * (rows - 1) // 2
    generator = np.random.default_rng(_SEED)
    numbers: NDArray[np.int64] = generator.choice(count, min(count, most), replace=False)
    # pairs are numbered (1, 0), (2, 0), (2, 1), (3, 0) and so on
    second = np.floor((1 + np.sqrt(1 + 8 * numbers)) / 2).astype(np.int64)
    first = numbers - second * (second - 1) // 2
    return first, second


def _products(
    rows: Vectors, first: NDArray[np.int64], second: NDArray[np.int64], block: int = 1 << 14
) -> NDArray[np.float64]:
    """Return the product of each pair of rows (m,), as many at once as have room."""
    products = np.empty(len(first))
    for start in range(0, len(first), block):
        some = slice(start, start + block)
        products[some] = np.einsum("nd,nd->n", rows[first[some]], rows[second[some]])
    return products
