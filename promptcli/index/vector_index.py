"""VectorIndex: cosine search over unit vectors under FAISS. Knows nothing of encoders or of an index's folder.

Rows are added, replaced and deleted here; ``stack`` holds and searches them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from promptcli.data.vectors.formats import Floats
from promptcli.errors import PromptcliError, UsageError
from promptcli.index.factory import Effort, adjusted, choose, faiss, make
from promptcli.index.labels import RowLabels
from promptcli.index.recall import Truth, queries_for, tune
from promptcli.index.rows import Hit, Recall, RowNumbers, Rows, is_number, named_ids, unit_rows
from promptcli.index.segment import Mask, Segment
from promptcli.index.stack import Builder, Stack, refusals, trained

#: recall@10 to be reached where nothing is said.
TARGET = 0.95
#: Ids that are looked for at once: each look goes through those of the whole index.
_NAMES = 1 << 18
#: Segments of at most so many rows, or of twice as many as come in, are joined with new ones.
_SMALL = 1024


def set_threads(threads: int) -> None:
    """Let FAISS use that many processor threads."""
    faiss.omp_set_num_threads(threads)


class VectorIndex:
    """n vectors of width d with their ids and texts."""

    def __init__(
        self,
        segments: list[Segment],
        empty: Any,
        factory: str,
        recall: Recall | None = None,
        effort: Effort = Effort(),  # noqa: B008
        deleted: RowNumbers | None = None,
        numbered: int | None = None,
    ) -> None:
        self.stack = Stack(segments, deleted)
        self.empty = empty  #: FAISS's index, trained, without rows.
        self.factory = factory  #: FAISS's description of the index.
        self.recall = recall  #: recall@10 as measured at the build; None for an exact index.
        self.effort = effort  #: Of a search where nothing else is said.
        self.why = ""  #: How the factory was chosen, where nobody named one.
        #: The number of the next row without an id.
        self.numbered = len(self.stack.masked) if numbered is None else numbered
        #: Rows of the last ``build`` or ``add`` whose vector is zero; their score is 0 for every query.
        self.zero_rows: list[int] = []
        #: Where a segment goes when it is whole, and the memory that a process may take until then.
        self.store: Callable[[Segment], Segment] = lambda segment: segment
        self.memory: int | None = None

    @classmethod
    def build(
        cls,
        rows: Rows,
        factory: str | None = None,
        *,
        target: float = TARGET,
        memory: int | None = None,
        store: Callable[[Segment], Segment] = lambda segment: segment,
    ) -> "VectorIndex":
        """Index rows in one pass; an approximate index is trained on a sample of them and its recall@10 measured.

        Args:
            rows: n of width d; scaled to length 1 here. Numbers as ids are row numbers.
            factory: FAISS factory string; ``Flat`` is exact. None: chosen from n, d and ``target``.
            target: recall@10, above 0, at most 1.
            memory: Bytes that the process may take; None: what it takes.
            store: Brings a segment to the disk when it is whole, and returns it as it is there.

        Raises:
            UsageError: a factory that FAISS does not make for inner products, too few vectors to train it, a vector
                that is not finite, or too little memory.
        """
        if not 0 < target <= 1:
            raise UsageError(f"a target recall of {target} cannot be; give one above 0 and at most 1")
        count, width = rows.shape
        chosen, why = (factory, "") if factory is not None else choose(count, width, target)
        made = cls([], trained(chosen, rows), chosen)
        made.why, made.store, made.memory = why, store, memory
        truth = None if made.exact else Truth(*rows.sample(queries_for(count)))
        made._take(rows, truth)
        if truth is not None:
            made.recall, made.effort = tune(
                truth, lambda units, k, effort: made.stack.nearest(units, k, None, effort), made.empty, target
            )
        return made

    @property
    def rows(self) -> int:
        """Number of vectors, n."""
        return len(self.stack)

    @property
    def has_texts(self) -> bool:
        """Whether the rows have texts; an index without rows takes either."""
        return self.stack.has_texts

    @property
    def width(self) -> int:
        """Numbers in a vector, d."""
        return int(self.empty.d)

    @property
    def exact(self) -> bool:
        """Whether every vector is compared, in full precision."""
        return type(faiss.downcast_index(self.empty)) in (faiss.IndexFlat, faiss.IndexFlatIP)

    @property
    def trains(self) -> bool:
        """Whether ``empty`` holds what was learned from rows."""
        return not make(self.factory, self.width).is_trained

    def add(self, rows: Rows) -> None:
        """Append rows; row numbers as ids go on from the last row.

        Raises:
            UsageError: another width, texts on one side only, or a vector that is not finite.
        """
        self._check(rows)
        self._take(rows)

    def upsert(self, rows: Rows) -> int:
        """Put rows in the place of those with their ids, and append those whose id is new; return how many were there.

        The rows are read twice, block by block: for their ids, and when they are indexed.

        Raises:
            UsageError: as for ``add``, or an id is given twice.
        """
        self._check(rows)
        old, hashes, numbers, highest = [], [], not self.stack.text_ids, -1
        for names in _names_of(rows):
            old.append(self.stack.where(names)[0])
            hashes.append(np.fromiter(map(hash, names), np.int64, len(names)))
            numbers = numbers and all(map(is_number, names))
            highest = max(highest, max(map(int, names))) if numbers else -1
        _check_once(rows, np.concatenate(hashes))
        before, masked = self.stack.masked, np.concatenate(old)
        self._mask(masked)
        try:
            self._take(rows, names=int if numbers else str)
        except BaseException:
            self.stack.masked = before
            raise
        self.numbered = max(self.numbered, 1 + highest)
        return len(masked)

    def delete(self, ids: Collection[int | str]) -> int:
        """Delete the rows with these ids and return how many they were.

        Raises:
            UsageError: an id that no row has: then nothing is deleted; or FAISS cannot leave rows of it out.
        """
        names = names_of(ids)
        rows, found = self.stack.where(names)
        if unknown := sorted(names - found):
            few = f"{named_ids(unknown)} of {len(names):,}"
            raise UsageError(f"ids that are not in the index: {few}; nothing was deleted")
        self._mask(rows)
        return len(rows)

    def compact(self) -> None:
        """Write all segments anew, as few as the memory allows, without the rows that are deleted.

        Raises:
            UsageError: the index does not give its vectors back.
        """
        with refusals(self.factory, (self.rows, self.width)):
            self.stack.rewrite(0, self._builder())

    def search(
        self,
        queries: Floats,
        k: int = 10,
        *,
        nprobe: int | None = None,
        ef: int | None = None,
        allow: Collection[int | str] | None = None,
        deny: Collection[int | str] | None = None,
    ) -> list[list[Hit]]:
        """Return the k nearest rows of each of q queries, best first; all n where k is larger, never a non-row.

        Equal scores stand in the order of the rows, whatever the batch. An approximate index may return fewer.

        Args:
            queries: (q, d); scaled to length 1 here.
            k: At least 1.
            nprobe: Lists of an inverted file (IVF) that are read; None: as measured at the build.
            ef: Candidates that a graph (HNSW) keeps; None: as measured at the build.
            allow: Only rows with these ids may be answers; where they are few, they are compared one by one.
            deny: Rows with these ids may not.

        Raises:
            UsageError: another width, k below 1, a query that is not finite, what the index does not have, or no
                row with one of the ids of ``allow``.
        """
        if not isinstance(k, int | np.integer) or k < 1:
            raise UsageError(f"k is {k!r}; give a whole number, at least 1")
        if queries.ndim != 2 or queries.shape[1] != self.width:
            raise UsageError(f"queries of shape {queries.shape} do not fit an index of width {self.width}")
        effort = adjusted(self.effort, self.empty, self.factory, nprobe=nprobe, ef=ef)
        units, _ = unit_rows(queries, "query")
        allowed = self._allowed(allow, deny)
        found = self.stack.nearest(units, min(k, self.rows), allowed, effort, exact=self.exact)
        return [self.stack.hits(rows, scores) for rows, scores in found]

    def _check(self, rows: Rows) -> None:
        if rows.shape[1] != self.width:
            raise UsageError(f"vectors of width {rows.shape[1]} do not go into an index of width {self.width}")
        if self.rows and rows.has_texts != self.has_texts:
            has = "has texts and the new rows have none" if self.has_texts else "has no texts and the new rows have"
            raise UsageError(f"the index {has}; build it anew from all rows with `promptcli index build`")

    def _builder(self) -> Builder:
        return Builder(self.empty, self.store, self.memory)

    def _take(self, rows: Rows, truth: Truth | None = None, *, names: Callable[[Any], int | str] | None = None) -> None:
        """Append rows, joined with the small segments at the end.

        Numbers as ids count on from the last row, unless ``names`` says what becomes of each id.
        """
        segments, total = self.stack.segments, rows.shape[0]
        first = len(segments)
        while first and len(segments[first - 1]) <= max(_SMALL, 2 * total) and self._keeps_vectors:
            first -= 1
            total += len(segments[first])
        builder, before, start = self._builder(), self.rows, 0
        zeros: list[int] = []

        def new() -> None:
            nonlocal start
            for block in rows.blocks():
                units, none = unit_rows(block.vectors, start=start)
                ids: Any = block.ids if names is None else [names(name) for name in block.ids]
                builder.add(units, RowLabels.of(ids, block.texts, self.numbered if names is None else 0))
                if truth is not None:
                    truth.add(units)
                zeros.extend(before + row for row in none)
                start += len(units)

        with refusals(self.factory, rows.shape):
            self.stack.rewrite(first, builder, new)
        self.numbered, self.zero_rows = self.numbered + start, zeros

    @property
    def _keeps_vectors(self) -> bool:
        """Whether vectors come back as they went in, so that nothing is lost when they are indexed again."""
        index = faiss.downcast_index(self.empty)
        finest = index.refine_index if isinstance(index, faiss.IndexRefine) else getattr(index, "storage", index)
        return int(getattr(faiss.downcast_index(finest), "code_size", 0)) >= 2 * self.width

    def _mask(self, rows: RowNumbers) -> None:
        masked = self.stack.masked.copy()
        masked[rows] = True
        for segment in self.stack.segments[:1]:  # FAISS cannot leave rows of every kind of index out
            some = np.arange(len(segment)) > 0
            try:
                segment.search(np.zeros((1, self.width), np.float32), 1, some, self.effort)
            except PromptcliError as error:
                raise UsageError(f"rows of an index of factory {self.factory!r} cannot be deleted: {error}") from None
        self.stack.masked = masked

    def _allowed(self, allow: Collection[int | str] | None, deny: Collection[int | str] | None) -> Mask | None:
        if allow is None and not deny:
            return None
        allowed = ~self.stack.masked
        if allow is not None:
            rows, _ = self.stack.where(names_of(allow))
            if not len(rows):
                raise UsageError(f"none of the {len(allow):,} allowed ids is in the index; see `promptcli index info`")
            allowed = np.zeros_like(allowed)
            allowed[rows] = True
        if deny:
            allowed[self.stack.where(names_of(deny))[0]] = False
        return allowed


def names_of(ids: Collection[int | str]) -> set[str]:
    """Return ids as texts; a single text, whose letters they would be, is refused."""
    if isinstance(ids, str | bytes):
        raise UsageError(f"ids are {type(ids).__name__}, not a list; give [{ids!r:.40}]")
    return {str(name) for name in ids}


def _names_of(rows: Rows) -> Iterator[list[str]]:
    """Yield the ids as texts, many at once."""
    names: list[str] = []
    for block in rows.blocks():
        names += map(str, block.ids)
        if len(names) >= _NAMES:
            yield names
            names = []
    if names:
        yield names


def _check_once(rows: Rows, hashes: RowNumbers) -> None:
    """Refuse rows of which two have one id, by the hashes of all ids (n,)."""
    ordered = np.sort(hashes)
    equal = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    counts = Counter(name for names in _names_of(rows) for name in names if hash(name) in equal) if equal else {}
    if twice := next((name for name, count in counts.items() if count > 1), None):
        raise UsageError(f"the id {twice!r} is given twice; give each once")
