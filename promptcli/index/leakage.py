"""Leakage: rows of one set of sentences that also occur in another, such as those of a test set in
the training set.

Texts are compared first, unchanged and then normalised. Only rows that have no equal are encoded,
and each is searched for among the rows of the other set.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from promptcli.data.layouts import ID, TEXT
from promptcli.data.parquet_files import RecordBatch
from promptcli.data.vectors.formats import BLOCK, Block, Floats
from promptcli.evaluation.rarity import RowSample
from promptcli.index.array_rows import Hit, Ids, RowMask, RowNumbers, unit_rows
from promptcli.index.false_links import propose_leak_threshold
from promptcli.index.vector_index import VectorIndex
from promptcli.notes import stage

#: How a row occurs in another set: with the same text; with the same normalised text; near a row.
Kind = Literal["exact", "normalised", "near"]
KINDS: tuple[Kind, ...] = ("exact", "normalised", "near")
#: Rows that are searched for at once.
_ASKED = 4096
#: General category of characters without width or form, such as a byte order mark within a text.
_FORMAT = "Cf"


class Leak(NamedTuple):
    """A row of the compared set, and the row of the other set that it repeats."""

    kind: Kind
    id: int | str
    text: str | None
    #: the first row with that text, or the nearest; the score of one by text is 1
    source: Hit


@dataclass(frozen=True)
class Leaks:
    """The rows of a set that also occur in another, in their order."""

    found: list[Leak]
    rows: int  #: that were compared, without blank ones
    source_rows: int  #: of the other set, without blank ones
    threshold: float | None  #: cosine from which a row is near; None if only texts were compared

    @property
    def counts(self) -> dict[Kind, int]:
        """How many rows occur in the other set, by kind."""
        counts = Counter(leak.kind for leak in self.found)
        return {kind: counts[kind] for kind in KINDS}

    @property
    def share(self) -> float:
        """The share of the rows that occur in the other set."""
        return len(self.found) / self.rows if self.rows else 0.0


def normalise(text: str) -> str:
    """Return a text without differences of form, case and spaces.

    It is Unicode's NFKC with case folded; without characters that have no width (soft hyphens, byte
    order marks), runs of white space are one space.

    Example:
        >>> normalise(" Ｃａｆｅ\u0301  CLOSED ")
        'café closed'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        text = "".join(sign for sign in text if unicodedata.category(sign) != _FORMAT)
    folded = text.casefold()
    if not folded.isascii():
        folded = unicodedata.normalize("NFKC", folded)
    return " ".join(folded.split())


class _FirstRows:
    """The first row of each text among m, by the hashes of the texts.

    Among a million texts no two are expected to share a hash; if two do, the texts decide.
    """

    def __init__(self, columns: Iterable[list[str]]) -> None:
        hashes = [_hashes(texts) for texts in columns]
        self._hashes, self.rows = np.unique(
            np.concatenate([np.empty(0, np.int64), *hashes]), return_index=True
        )

    def find(self, texts: Sequence[str]) -> RowNumbers:
        """Return the first row with each text (n,); -1: none has it."""
        hashes = _hashes(texts)
        places = np.searchsorted(self._hashes, hashes)
        places[places == len(self._hashes)] = 0
        if not len(self._hashes):
            return np.full(len(texts), -1)
        return np.where(self._hashes[places] == hashes, self.rows[places], -1)


def _hashes(texts: Sequence[str]) -> NDArray[np.int64]:
    return np.fromiter(map(hash, texts), np.int64, len(texts))


def _no_columns(row: int) -> None:
    return None


class TextSet:
    """The texts of m rows, in which others are looked for.

    Args:
        ids: An Arrow column (m,) of ids.
        texts: An Arrow column (m,) of texts, none of them blank.
        columns: Returns the further columns of a row.
    """

    def __init__(self, ids: Any, texts: Any, columns: Callable[[int], Any] = _no_columns) -> None:
        self.ids = ids
        self.texts = texts
        self._columns = columns
        self._exact = _FirstRows(_chunks(texts))
        self._normalised = _FirstRows(map(_normalised, _chunks(texts)))

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def distinct(self) -> RowNumbers:
        """The rows whose normalised text no row before has."""
        return np.sort(self._normalised.rows)

    def hit(self, row: int) -> Hit:
        """Return a row as the source of a text that is equal to it."""
        return Hit(1, self.ids[row].as_py(), self.texts[row].as_py(), 1.0, self._columns(row))

    def find(self, texts: Sequence[str]) -> list[tuple[Kind, int] | None]:
        """Return how each text occurs in the set and the first row with it; None if it does not."""
        normalised = _normalised(texts)
        exact_rows = self._exact.find(texts).tolist()
        alike_rows = self._normalised.find(normalised).tolist()
        matches: list[tuple[Kind, int] | None] = []
        for text, alike, exact_row, alike_row in zip(
            texts, normalised, exact_rows, alike_rows, strict=True
        ):
            if exact_row >= 0 and self.texts[exact_row].as_py() == text:
                matches.append(("exact", exact_row))
            elif alike_row >= 0 and normalise(self.texts[alike_row].as_py()) == alike:
                matches.append(("normalised", alike_row))
            else:
                matches.append(None)
        return matches


def _chunks(texts: Any) -> Iterator[list[str]]:
    """Yield the texts of an Arrow column in parts."""
    for start in range(0, len(texts), BLOCK):
        yield texts.slice(start, BLOCK).to_pylist()


def _normalised(texts: Sequence[str]) -> list[str]:
    return [normalise(text) for text in texts]


class UnequalRow(NamedTuple):
    """A row whose text is not in the other set."""

    number: int  #: among the compared rows
    id: int | str
    text: str | None  #: None if it is not known


@dataclass
class ComparedRows:
    """The rows read so far that are compared with a set."""

    source: TextSet | None  #: None if its texts are not known
    texts_alone: bool = False  #: whether no vectors of the others are asked for
    rows: int = 0  #: that are not blank
    #: number of a row -> how it occurs in the set
    leaks: dict[int, Leak] = field(default_factory=dict)
    unequal: list[UnequalRow] = field(default_factory=list)

    def without_equals(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        """Yield batches without blank rows, and without those whose text is in the set."""
        for batch in batches:
            ids = batch.column(ID).to_pylist()
            rest = self._take(ids, batch.column(TEXT).to_pylist())
            if rest.any() and not self.texts_alone:
                yield batch.filter(pa.array(rest))

    def vectors_without_equals(self, blocks: Iterable[Block]) -> Iterator[Floats]:
        """Yield vectors in the same way; rows without texts have no equal."""
        for block in blocks:
            if block.texts is not None:
                rest = self._take(block.ids, block.texts)
            elif block.blank is not None:
                rest = self._take_unknown(block.ids, ~block.blank)
            else:
                rest = self._take_unknown(block.ids, np.ones(len(block.vectors), bool))
            yield block.vectors[rest]

    def result(self, source_rows: int, threshold: float | None) -> Leaks:
        """Return the rows that occur in the set, once all were compared."""
        leaks = [self.leaks[row] for row in sorted(self.leaks)]
        return Leaks(leaks, self.rows, source_rows, threshold)

    def _take(self, ids: Ids, texts: Sequence[str]) -> RowMask:
        """Compare texts, and return which rows are not blank and have no equal."""
        matches: Sequence[tuple[Kind, int] | None] = [None] * len(texts)
        if self.source is not None:
            matches = self.source.find(texts)
        rest = np.zeros(len(texts), bool)
        for place, (row_id, text, equal) in enumerate(zip(ids, texts, matches, strict=True)):
            if not text.strip():
                continue
            if equal is None or self.source is None:
                rest[place] = True
                self.unequal.append(UnequalRow(self.rows, row_id, text))
            else:
                kind, row = equal
                self.leaks[self.rows] = Leak(kind, row_id, text, self.source.hit(row))
            self.rows += 1
        return rest

    def _take_unknown(self, ids: Ids, are_rows: RowMask) -> RowMask:
        """Take rows without texts, and return those that are not blank."""
        for row_id, is_row in zip(ids, are_rows.tolist(), strict=True):
            if is_row:
                self.unequal.append(UnequalRow(self.rows, row_id, None))
                self.rows += 1
        return are_rows


class NearRows:
    """The rows that have no equal, each with the nearest row of the other set.

    Args:
        compared: Has them, and gets those that are near.
        index: The other set, or its distinct rows.
        vectors: Those of the rows, block by block.
        places: The row of ``compared.source`` of each row of the index; None: the index has ids.
    """

    def __init__(
        self,
        compared: ComparedRows,
        index: VectorIndex,
        vectors: Iterable[Floats],
        places: RowNumbers | None = None,
    ) -> None:
        self._compared = compared
        self._index = index
        self._places = places
        self._sample = RowSample()
        nearest = [np.empty(0, np.int64)]
        cosines = [np.empty(0, np.float32)]
        with stage("dups", len(compared.unequal)) as advance:
            for block in vectors:
                units = unit_rows(block)
                self._sample.add(units)
                rows, scores = _nearest_rows(index, units)
                nearest.append(rows)
                cosines.append(scores)
                advance(len(units))
        self._nearest = np.concatenate(nearest)
        self._cosines = np.concatenate(cosines)

    @property
    def source_rows(self) -> int:
        """How many rows of the other set each was compared with."""
        return self._index.rows

    def check_rarity(self, min_rarity: float) -> None:
        """Refuse a rarity if the other set has too few rows to show it."""
        self._index.check_rarity(min_rarity, "meaning")

    def propose_threshold(self) -> float | None:
        """Return the cosine from which few rows are expected to be near by chance; None if the rows
        are too few to tell.
        """
        return propose_leak_threshold(self._index, self._sample.vectors, self._cosines)

    def add(self, threshold: float | None, min_rarity: float | None) -> None:
        """Add the rows whose cosine reaches the threshold and exceeds that of so many random pairs
        of the other set, in percent.
        """
        least = -1.0 if threshold is None else threshold
        may_be_near = self._cosines >= least - self._index.rounding
        places = np.flatnonzero(may_be_near)
        nearest = self._nearest[places]
        hits = self._index.hits((nearest, self._cosines[places]))
        for place, row_of_index, hit in zip(places.tolist(), nearest.tolist(), hits, strict=True):
            if not self._index.is_answer(hit, threshold, min_rarity):
                continue
            source = hit._replace(rank=1, id=self._id_of(row_of_index, hit))
            row = self._compared.unequal[place]
            self._compared.leaks[row.number] = Leak("near", row.id, row.text, source)

    def _id_of(self, row_of_index: int, hit: Hit) -> int | str:
        """Return the id that a row of the index has in its own set."""
        if self._places is None or self._compared.source is None:
            return hit.id
        known: int | str = self._compared.source.ids[int(self._places[row_of_index])].as_py()
        return known


def _nearest_rows(index: VectorIndex, units: Floats) -> tuple[RowNumbers, Floats]:
    """Return the nearest row of each vector (n,), and its cosine."""
    rows = np.zeros(len(units), np.int64)
    cosines = np.full(len(units), -1, np.float32)
    for place, (nearest, scores) in enumerate(index.nearest(units, 1)):
        if len(nearest):
            rows[place] = nearest[0]
            cosines[place] = scores[0]
    return rows, cosines
