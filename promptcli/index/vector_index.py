"""VectorIndex: cosine search over unit vectors under FAISS, with ids and texts.

It needs no encoder and no folder.

Its rows are kept in segments, each searched on its own, and the answers are merged. Rows are
numbered through all segments; a deleted row stays in its segment, masked, until the segments are
rewritten.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from promptcli.data.layouts import CELLS
from promptcli.data.vectors.formats import BLOCK, Floats
from promptcli.data.vectors.precision import unit
from promptcli.embedding.splitting import PART
from promptcli.errors import PromptcliError, UsageError
from promptcli.evaluation.lexical import (
    DEPTH,
    JoinedRanking,
    Lexical,
    Ranking,
    join_rankings,
    ways_of,
)
from promptcli.evaluation.rarity import UNKNOWN, Rarity, sample_rows
from promptcli.index.array_rows import Hit, IndexRows, RowMask, RowNumbers, list_some, unit_rows
from promptcli.index.basics import ROUGHLY, ROUNDING, TARGET, WAY_FIELDS, Way, chosen_way, is_answer
from promptcli.index.column_types import cell_columns, column_kinds
from promptcli.index.factory import (
    Effort,
    Recall,
    Truth,
    choose_factory,
    copy,
    explain,
    faiss,
    greater_efforts,
    is_exact,
    make_index,
    queries_for,
    row_bytes,
    training_size,
    tune,
)
from promptcli.index.kept_rarity import check_rarity
from promptcli.index.segment import Segment, join_labels, label_table
from promptcli.index.where import Condition, shown_cells
from promptcli.notes import keyword, note

#: An id that may be a row number.
_NUMBER = r"^(0|-?[1-9]\d{0,18})$"
_FIRST_PART = "#1"
#: Segments of up to this number of rows, or of twice the rows that are added, are joined with the
#: new ones.
_SMALL = 1024
#: Up to this number of rows that a filter allows are compared one by one, in any index.
_FEW = 20_000
#: Bytes that a process takes before the first row is read.
_STARTED = 600 << 20
#: FAISS's vectors double when they are full, so that for a moment they take three times their size.
_GROWTH = 3
#: Parts that are ranked for each row that is asked for, first.
_PARTS = 4

#: Rows and their scores, best first; or rows that were ranked by vectors and words together.
Answer = Ranking | JoinedRanking
Store = Callable[[Segment], Segment]


def _in_memory(segment: Segment) -> Segment:
    return segment


class Builder:
    """Turns blocks into segments that fit the memory, and stores each when it is full.

    ``empty`` is FAISS's index, trained, without rows; ``memory`` the bytes that the process may
    take, None: no limit.
    """

    def __init__(self, empty: Any, store: Store = _in_memory, memory: int | None = None) -> None:
        self._empty = empty
        self._store = store
        self._bytes = _GROWTH * row_bytes(empty)
        least = _STARTED + self._bytes * BLOCK
        if memory is not None and memory < least:
            raise UsageError(
                f"memory of {memory >> 20} MB is too little; give at least {-(-least >> 20)}MB"
            )
        if memory is None:
            self._room = math.inf
        else:
            self._room = memory - least
        self._index = copy(empty)
        self._labels = list[pa.Table]()
        self._held = 0
        self._segments: list[Segment] = []

    def add(self, units: Floats, labels: pa.Table) -> None:
        if not len(units):
            return
        self._index.add(units)
        self._labels.append(labels)
        # Arrow's columns are joined, then written
        self._held += self._bytes * len(units) + 3 * labels.nbytes
        if self._held > self._room:
            self.finish()

    def finish(self) -> list[Segment]:
        """Store the rows that are held, and return all segments."""
        if self._labels:
            self._segments.append(self._store(Segment(self._index, join_labels(self._labels))))
            self._index = copy(self._empty)
            self._labels = []
            self._held = 0
        return self._segments


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
        *,
        split: bool = False,
        lexical: bool = False,
    ) -> None:
        self.lexical = lexical  #: Whether BM25 is stored with the index.
        #: Whether long rows are in parts with the ids ROW#PART; answers have the best of each row.
        self.split = split
        self.known_kinds: dict[str, str] | None = None  #: ``kinds``, if they were looked for
        masked = np.zeros(sum(map(len, segments)), bool)
        masked[[] if deleted is None else deleted] = True
        self._set_segments(segments, masked)
        self.empty = empty  #: FAISS's index, trained, without rows.
        self.factory = factory  #: FAISS's description of the index.
        self.recall = recall  #: recall@10 as measured at the build; None for an exact index.
        self.effort = effort  #: The default effort of a search.
        #: The number of the next row without an id.
        if numbered is None:
            self.numbered = len(masked)
        else:
            self.numbered = numbered
        #: Writes a segment that is complete, and returns it as read from the disk.
        self.store: Store = _in_memory
        self.memory: int | None = None  #: Bytes that the process may take; None: no limit.

    @classmethod
    def build(
        cls,
        rows: IndexRows,
        factory: str | None = None,
        *,
        target: float = TARGET,
        memory: int | None = None,
        store: Store = _in_memory,
        split: bool = False,
        lexical: bool = False,
    ) -> "VectorIndex":
        """Index rows in one pass.

        An approximate index is trained on a sample of them, and tuned for a recall@10.
        """
        if not 0 < target <= 1:
            raise UsageError(f"target recall is {target}; give a number above 0 and at most 1")
        if lexical and not rows.has_texts:
            raise _no_texts_error()
        chosen, why = (factory, "") if factory is not None else choose_factory(*rows.shape, target)
        index = cls([], _train(chosen, rows), chosen, split=split, lexical=lexical)
        index.store = store
        index.memory = memory
        truth = None
        if not index.exact:
            truth = Truth(*rows.sample(queries_for(rows.shape[0])))
        index._append(rows, truth)
        if not index.rows:
            raise UsageError("every text is blank; give at least one sentence")
        if truth is not None:
            if why:
                note(why)
            index.recall, index.effort = tune(
                truth,
                lambda units, k, effort: index.nearest(units, k, effort=effort),
                index.empty,
                target,
            )
            if index.recall.at_10 < target:
                note(
                    f"recall@10 is below {target:g}; `index build` with a finer"
                    f" {keyword('factory')} reaches more"
                )
        return index

    def _set_segments(self, segments: list[Segment], masked: RowMask) -> None:
        self.segments = segments
        #: Columns ``id``, ``text`` if the rows have texts, and ``cells`` if some have further
        #: columns.
        if segments:
            self.labels = join_labels([segment.labels for segment in segments])
        else:
            self.labels = label_table([], None, 0)
        self._set_masked(masked)

    @property
    def live_labels(self) -> pa.Table:
        """The labels of the rows that are not deleted."""
        if self.masked.any():
            return self.labels.filter(pa.array(~self.masked))
        return self.labels

    @property
    def kinds(self) -> dict[str, str]:
        """The types of the further columns."""
        if self.known_kinds is None:
            self.known_kinds = column_kinds(self.live_labels)
        return self.known_kinds

    def _set_masked(self, masked: RowMask) -> None:
        self.known_kinds = None
        self.counted: Lexical | None = None  #: ``words``, if they have been counted.
        self.known_rarity: Rarity | None = None  #: ``rarity``, if it was drawn.
        self.masked = masked  #: Over all rows, whether each is deleted.
        #: Number of rows that are not deleted, n.
        self.rows = len(masked) - int(np.count_nonzero(masked))

    @property
    def has_texts(self) -> bool:
        return "text" in self.labels.column_names

    @property
    def text_ids(self) -> bool:
        """Whether ids are texts; if some are, row numbers are shown as texts, too."""
        return bool(self.labels.schema.field("id").type == pa.large_string())

    def way(self, by: Way | None, *, hybrid: bool = False, lexical: bool = False) -> Way:
        """Return how rows are ranked, see ``chosen_way``: by both, if words were counted and nobody
        says it.
        """
        chosen = chosen_way(by, hybrid=hybrid, lexical=lexical)
        return chosen or ("both" if self.lexical else "meaning")

    def set_lexical(self, lexical: bool) -> None:
        """Count words from now on, or keep none."""
        if lexical and not self.has_texts:
            raise _no_texts_error()
        self.lexical = lexical

    @property
    def words(self) -> Lexical:
        """BM25 over the rows that are not deleted."""
        if not self.lexical:
            raise UsageError(
                "the index has no BM25: `promptcli index compact DIR --lexical` counts its words"
            )
        if self.counted is None:
            live = self.live()
            texts = []
            if self.has_texts:
                texts = self.labels.column("text").take(live).to_pylist()
            self.counted = Lexical.build(texts, live, self.texts_of)
        return self.counted

    @property
    def rarity(self) -> Rarity:
        """How rare a cosine is among random pairs of the rows that are not deleted."""
        if self.known_rarity is None:
            self.known_rarity = self._draw_rarity()
        return self.known_rarity

    def _draw_rarity(self) -> Rarity:
        rows = self.live()
        try:
            vectors = self.vectors(rows[sample_rows(len(rows))])
        except UsageError:  # FAISS gives none back
            return UNKNOWN
        return Rarity.of_rows(unit(vectors))

    def check_rarity(self, min_rarity: float | None, by: Way) -> None:
        """Refuse to leave out rows by a rarity that is unknown, or that no cosine has."""
        if min_rarity is not None:
            check_rarity(self.rarity, min_rarity, by)

    def texts_of(self, rows: RowNumbers) -> list[str]:
        """Return the texts of rows."""
        column = self.labels.column("text")
        return [column[row].as_py() for row in rows.tolist()]

    @property
    def width(self) -> int:
        return int(self.empty.d)

    @property
    def exact(self) -> bool:
        """Whether every vector is compared, in full precision."""
        return is_exact(self.empty)

    @property
    def rounding(self) -> float:
        """How far a score may be from the cosine of the vectors; see ``reaches``."""
        return ROUNDING if self.exact else ROUGHLY

    def is_answer(self, hit: Hit, min_score: float | None, min_rarity: float | None) -> bool:
        """Return whether a hit is near enough, within rounding, and rare enough."""
        return is_answer(hit.score, hit.rarity, min_score, min_rarity, self.rounding)

    def columns(self) -> list[str]:
        """Return the names of the columns of its rows besides the text."""
        return cell_columns(self.labels)

    @property
    def keeps_vectors(self) -> bool:
        """Whether vectors come back at half precision or better, so that they may be indexed
        again.
        """
        index = faiss.downcast_index(self.empty)
        if isinstance(index, faiss.IndexRefine):
            finest = index.refine_index
        else:
            finest = getattr(index, "storage", index)
        return int(getattr(faiss.downcast_index(finest), "code_size", 0)) >= 2 * self.width

    def add(self, rows: IndexRows) -> None:
        """Append rows; row numbers as ids go on from the last row, and rows with a blank text are
        left out.
        """
        self._check(rows)
        self._append(rows)

    def upsert(self, rows: IndexRows) -> int:
        """Replace the rows that have the same ids, append the others, and return how many rows were
        replaced.

        The rows are read twice, block by block: for their ids, and when they are indexed.
        """
        self._check(rows)
        names = pa.chunked_array(
            [pa.array(map(str, block.ids), pa.large_string()) for block in rows.blocks()]
        )
        numbers = not self.text_ids and len(_numbers(names)) == len(names)
        before = self.masked
        replaced = self.find(names)
        self._mask(replaced)
        try:
            self._append(rows, name=int if numbers else str)
        except BaseException:
            self._set_masked(before)
            raise
        return len(replaced)

    def delete(self, ids: Collection[int | str]) -> int:
        """Delete the rows with these ids and return how many they were.

        If an id is unknown, nothing is deleted.
        """
        names = _names(ids)
        rows = self.find(names)
        if unknown := sorted(
            set(self._row_names(names).to_pylist()).difference(self._rows_of(rows))
        ):
            shown = list_some([repr(name[:40]) for name in unknown])
            count = f"{len(unknown):,} of {len(names):,} ids"
            raise UsageError(f"{count} are not in the index: {shown}; nothing was deleted")
        self._mask(rows)
        return len(rows)

    def compact(self) -> None:
        """Rewrite all segments without the deleted rows, in as few segments as the memory
        allows.
        """
        with _refusals(self.factory, (self.rows, self.width)):
            self._replace(0, self._rewriter(0).finish())

    def search(
        self,
        queries: Floats | None,
        k: int = 10,
        *,
        words: Sequence[str] | None = None,
        where: str | None = None,
        among: RowMask | None = None,
    ) -> list[list[Hit]]:
        """Return the k nearest rows of each of q queries, best first; all n if k is larger.

        Equal scores are ordered by row, whatever the batch. A graph (HNSW) may return fewer.

        Args:
            queries: (q, d); scaled to length 1 here. None: ranked by words alone.
            k: At least 1.
            words: q texts to rank by BM25, too, see ``join_rankings``; the score of a hit is its
                cosine. Without ``queries`` it is BM25.
            where: Condition that answers fulfil, such as ``year > 2020 and lang = "en"``; see
                ``where.Condition``.
            among: What ``allowed`` returned for it, if it is known.
        """
        if among is None:
            allowed = self.allowed_rows(where)
        else:
            allowed = among
        are_cosines = queries is not None
        return [
            list(self.hits(answer, are_cosines=are_cosines))
            for answer in self.search_rows(queries, k, words, allowed)
        ]

    def search_rows(
        self,
        queries: Floats | None,
        k: int,
        words: Sequence[str] | None = None,
        allowed: RowMask | None = None,
    ) -> list[Answer]:
        """Return rows and scores of the k nearest of each query; see ``search`` and ``allowed``."""
        if not isinstance(k, int | np.integer) or k < 1:
            raise UsageError(f"k is {k!r}; give an integer, at least 1")
        if queries is not None and (queries.ndim != 2 or queries.shape[1] != self.width):
            raise UsageError(
                f"queries of shape {queries.shape} do not fit an index of width {self.width}"
            )
        units = None
        if queries is not None:
            units = unit_rows(queries, "queries")

        def rank(count: int) -> list[Answer]:
            if units is None:
                return [self.words.rank(text, count, allowed) for text in words or ()]
            if words is None:
                return list[Answer](self.nearest(units, count, allowed))
            nearest = self.nearest(units, max(count, DEPTH), allowed)
            return [
                self._join(*asked, count, allowed)
                for asked in zip(units, nearest, words, strict=True)
            ]

        if self.split:
            return self._best_parts(rank, k)
        return rank(k)

    def _join(
        self, query: Floats, nearest: Ranking, text: str, count: int, allowed: RowMask | None
    ) -> JoinedRanking:
        """Return the best rows by vectors and words together, see ``join_rankings``."""
        asked = self.words.ask(text)
        ranking = asked.rank(max(count, DEPTH), allowed)

        def cosines_of(rows: RowNumbers) -> Floats:
            try:
                cosines: Floats = self.vectors(rows) @ query
            except UsageError:  # FAISS gives none back
                return np.full(len(rows), nearest[1].min(initial=0))
            return cosines

        return join_rankings(
            nearest,
            ranking,
            count,
            asked.match(ranking),
            cosines_of,
            asked.scores_of,
        )

    def _best_parts(self, rank: Callable[[int], list[Answer]], k: int) -> list[Answer]:
        count = min(_PARTS * k, self.rows)
        answers = rank(count)
        while count < self.rows and any(
            len(set(self._rows_of(answer[0]))) < k for answer in answers
        ):
            count = min(_PARTS * count, self.rows)
            answers = rank(count)
        best = list[Answer]()
        for answer in answers:
            first = dict[str, int]()
            for place, name in enumerate(self._rows_of(answer[0])):
                first.setdefault(name, place)
            places = list(first.values())[:k]
            if isinstance(answer, JoinedRanking):
                best.append(answer.take(np.array(places, np.int64)))
            else:
                best.append((answer[0][places], answer[1][places]))
        return best

    def _rows_of(self, parts: RowNumbers) -> list[str]:
        names: list[str] = self._row_names(
            self.labels.column("id").take(parts).cast(pa.large_string())
        ).to_pylist()
        return names

    def _row_names(self, ids: Any) -> Any:
        """Return ids, an Arrow column of texts, without the numbers of parts."""
        if self.split:
            return pc.replace_substring_regex(ids, PART, "")
        return ids

    def live(self) -> RowNumbers:
        return np.flatnonzero(~self.masked)

    def find(self, names: Any, *, exact: bool = False) -> RowNumbers:
        """Return the rows whose id, as text, is in an Arrow column and that are not deleted.

        They are all parts of a row, or with ``exact`` the parts named.
        """
        if not self.text_ids:
            names = _numbers(names)
        ids = self.labels.column("id")
        if self.split and not exact:
            ids = self._row_names(ids.cast(pa.large_string()))
            names = self._row_names(names)
        return np.flatnonzero(pc.is_in(ids, value_set=names).to_numpy() & ~self.masked)

    def nearest(
        self, units: Floats, k: int, allowed: RowMask | None = None, effort: Effort | None = None
    ) -> list[Ranking]:
        """Return rows and scores of the k nearest of each unit vector, best first, among the
        allowed (or live) rows.

        If an approximate search finds fewer than k rows though there are more, it looks further.
        """
        k = min(k, self.rows)
        effort = effort or self.effort
        if allowed is not None and not self.exact and 0 < allowed.sum() <= _FEW:
            few = np.flatnonzero(allowed)
            exact = faiss.IndexFlatIP(self.width)
            exact.add(self.vectors(few))
            answers = Segment(exact, pa.table({})).search(units, k, None, effort)
            return [(few[rows], scores) for rows, scores in answers]
        if allowed is None and self.rows < len(self.masked):
            allowed = ~self.masked
        answers = self._search_segments(units, k, allowed, effort)
        if allowed is None:
            wanted = k
        else:
            wanted = min(k, int(np.count_nonzero(allowed)))
        for greater in greater_efforts(self.empty, effort, self.rows):
            short = [query for query, (rows, _) in enumerate(answers) if len(rows) < wanted]
            if not short:
                break
            further = self._search_segments(units[short], k, allowed, greater)
            for query, answer in zip(short, further, strict=True):
                answers[query] = answer
        return answers

    def _search_segments(
        self, units: Floats, k: int, allowed: RowMask | None, effort: Effort
    ) -> list[Ranking]:
        """Return what a search of that effort finds in all segments, k rows of each query at
        most.
        """
        by_segment = []
        for start, segment in self._segments_with_starts():
            mask = None
            if allowed is not None:
                mask = allowed[start : start + len(segment)]
            answers = segment.search(units, k, None if mask is None or mask.all() else mask, effort)
            by_segment.append([(start + rows, scores) for rows, scores in answers])
        if not by_segment:
            return [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in units]
        if len(by_segment) == 1:  # whose rows are in order
            return by_segment[0]
        merged = []
        for parts in zip(*by_segment, strict=True):
            rows, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
            order = np.lexsort((rows, -scores))[:k]
            merged.append((rows[order], scores[order]))
        return merged

    def hits(self, answer: Answer, *, are_cosines: bool = True) -> Iterator[Hit]:
        """Yield the rows of an answer as hits; the score is the cosine, or by words alone BM25."""
        rows, scores = answer[:2]
        rarities: list[float | None] = [None] * len(rows)
        if are_cosines:
            rarities = self.rarity.percents(scores)
        ways: Iterable[tuple[Any, ...]] = [()] * len(rows)
        if isinstance(answer, JoinedRanking):
            ways = ways_of(answer)
        ids = self.labels.column("id")
        texts = self.labels.column("text") if self.has_texts else None
        cells = None
        if CELLS in self.labels.column_names:
            cells = self.labels.column(CELLS)
        # cell by cell: Table.take takes 50 ms for ten of nine million rows
        found = zip(rows.tolist(), scores.tolist(), rarities, ways, strict=True)
        for rank, (row, score, rarity, way) in enumerate(found, 1):
            text = None
            if texts is not None:
                text = texts[row].as_py()
            columns = None
            if cells is not None:
                columns = shown_cells(cells[row].as_py() or (), self.kinds)
            named_way = dict(zip(WAY_FIELDS, way, strict=False))
            yield Hit(rank, ids[row].as_py(), text, score, columns, rarity=rarity, **named_way)

    def vectors(self, rows: RowNumbers) -> Floats:
        """Return the unit vectors (m, d) of m rows, in the precision that the index keeps."""
        vectors = np.empty((len(rows), self.width), np.float32)
        for start, segment in self._segments_with_starts():
            inside = (rows >= start) & (rows < start + len(segment))
            if inside.any():
                vectors[inside] = segment.vectors(rows[inside] - start)
        return vectors

    def _segments_with_starts(self) -> Iterator[tuple[int, Segment]]:
        start = 0
        for segment in self.segments:
            yield start, segment
            start += len(segment)

    def _append(
        self,
        rows: IndexRows,
        truth: Truth | None = None,
        *,
        name: Callable[[Any], int | str] | None = None,
    ) -> None:
        """Append rows, joined with the small segments at the end.

        ``name`` converts given ids, which must be new.
        """
        total = rows.shape[0]
        first = len(self.segments)
        while (
            first and len(self.segments[first - 1]) <= max(_SMALL, 2 * total) and self.keeps_vectors
        ):
            first -= 1
            total += len(self.segments[first])
        joined_rows = int(np.count_nonzero(~self.masked[sum(map(len, self.segments[:first])) :]))
        start = 0
        blank = 0
        highest = -1
        with _refusals(self.factory, rows.shape):
            builder = self._rewriter(first)
            for block in rows.blocks():
                units = unit_rows(block.vectors, start=start)
                source = start + np.arange(len(block.vectors))
                ids: Any
                if name is None:
                    ids = block.ids
                else:
                    ids = [name(row_id) for row_id in block.ids]
                labels = label_table(ids, block.texts, self.numbered, block.cells)
                kept = np.array([bool(text.strip()) for text in block.texts or ()], bool)
                if block.blank is not None:
                    kept = ~block.blank
                if not kept.all():
                    units = units[kept]
                    labels = labels.filter(pa.array(kept))
                    source = source[kept]
                    blank += len(kept) - len(units)
                builder.add(units, labels)
                if truth is not None:
                    truth.add(units, source)
                start += len(block.vectors)
            segments = builder.finish()
        if segments and not isinstance(ids, range):
            highest = self._check_new(
                join_labels([segment.labels for segment in segments])["id"][joined_rows:]
            )
        self._replace(first, segments)
        self.numbered = max(self.numbered + start, 1 + highest)
        if blank and self.rows:
            note(f"{blank:,} of {start:,} rows are blank and were left out")

    def _check_new(self, ids: Any) -> int:
        """Refuse ids that are given twice or that the index has.

        Return the highest number among them, or -1.

        The first part of a row and the row itself have the same. Of each id only a hash is kept in
        memory.
        """

        def names(chunk: Any) -> Any:
            texts = chunk.cast(pa.large_string())
            if self.split:
                return pc.replace_substring_regex(texts, f"{_FIRST_PART}$", "")
            return texts

        keys = [np.empty(0, np.int64)]
        highest = -1
        for chunk in map(names, ids.chunks):
            if self.split:
                parts = [pc.replace_substring_regex(chunk, "$", _FIRST_PART)]
            else:
                parts = []
            if self.rows and len(known := self.find(pa.concat_arrays([chunk, *parts]), exact=True)):
                existing_id = self.labels.column("id")[int(known[0])].as_py()
                raise UsageError(
                    f"the index has the id {existing_id!r}; {keyword('replace')} its row (Python:"
                    " upsert), or give another id"
                )
            keys.append(np.fromiter(map(hash, chunk.to_pylist()), np.int64, len(chunk)))
            highest = max([highest, *_numbers(chunk).to_pylist()])
        hashes = np.sort(np.concatenate(keys))
        repeated = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        seen = set[str]()
        for name in (name for chunk in ids.chunks if repeated for name in names(chunk).to_pylist()):
            if name in seen:
                raise UsageError(
                    f"the id {name!r} is given twice; give each row its own, or number the rows:"
                    f" {keyword('id_field')} -"
                )
            if hash(name) in repeated:
                seen.add(name)
        return highest

    def _rewriter(self, first: int) -> Builder:
        """Return a builder that has taken the rows of the segments from ``first`` on that are not
        deleted.
        """
        builder = Builder(self.empty, self.store, self.memory)
        for start, segment in list(self._segments_with_starts())[first:]:
            for at in range(0, len(segment), BLOCK):
                live = ~self.masked[start + at : start + min(at + BLOCK, len(segment))]
                labels = segment.labels.slice(at, len(live)).filter(pa.array(live))
                if live.any():
                    builder.add(segment.vectors(at + np.flatnonzero(live)), labels)
        return builder

    def _replace(self, first: int, segments: list[Segment]) -> None:
        """Put segments without deleted rows in the place of those from ``first`` on."""
        kept = self.masked[: sum(map(len, self.segments[:first]))]
        masked = np.concatenate([kept, np.zeros(sum(map(len, segments)), bool)])
        self._set_segments([*self.segments[:first], *segments], masked)

    def _check(self, rows: IndexRows) -> None:
        if rows.shape[1] != self.width:
            raise UsageError(
                f"vectors of width {rows.shape[1]} do not fit an index of width {self.width}"
            )
        if self.rows and rows.has_texts != self.has_texts:
            which = (
                "has texts, the new rows have none"
                if self.has_texts
                else "has no texts, the new rows do"
            )
            raise UsageError(f"the index {which}; build it again from all rows")

    def _mask(self, rows: RowNumbers) -> None:
        # FAISS cannot mask rows of every kind of index
        for segment in self.segments[: len(rows)][:1]:
            try:
                segment.search(
                    np.zeros((1, self.width), np.float32),
                    1,
                    np.arange(len(segment)) > 0,
                    self.effort,
                )
            except PromptcliError:
                why = (
                    f"an index of factory {self.factory!r} cannot delete rows; build it again, e.g."
                    " as Flat"
                )
                raise UsageError(why) from None
        masked = self.masked.copy()
        masked[rows] = True
        self._set_masked(masked)

    def allowed_rows(
        self, where: str | Condition | None, before_each: Callable[[], None] = Condition.go_on
    ) -> RowMask | None:
        """Return which rows may be answers, see ``search``; None: all that are not deleted.

        ``before_each`` is called before every comparison of a condition, see ``Condition``.
        """
        if where is None:
            return None
        allowed = ~self.masked
        condition = Condition(where, before_each) if isinstance(where, str) else where
        allowed[allowed] = condition.rows(
            self.labels if allowed.all() else self.labels.filter(pa.array(allowed))
        )
        condition.check()
        return allowed


def _no_texts_error() -> UsageError:
    return UsageError(
        "BM25 is over texts, and these rows have none; embed to .parquet or .jsonl, which hold"
        " texts"
    )


def _train(factory: str, rows: IndexRows) -> Any:
    index = make_index(factory, rows.shape[1])
    size = training_size(factory, rows.shape[0])
    if not index.is_trained:
        units = unit_rows(rows.sample(max(BLOCK, size))[1])
        with _refusals(factory, rows.shape):
            index.train(units)
    return index


@contextlib.contextmanager
def _refusals(factory: str, shape: tuple[int, int]) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise UsageError(
            f"factory {factory!r} does not index {shape} vectors: {explain(error)}"
        ) from None


def _numbers(names: Any) -> Any:
    """Return the ids in an Arrow column of texts that are whole numbers of 64 bits."""
    written = names.filter(pc.match_substring_regex(names, _NUMBER)).to_pylist()
    return pa.array(
        [number for number in map(int, written) if -(1 << 63) <= number < 1 << 63], pa.int64()
    )


def _names(ids: Collection[int | str]) -> Any:
    """Return distinct ids as an Arrow column of texts; a single id is refused."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Collection):
        raise UsageError(f"ids are {type(ids).__name__}, not a list; give [{ids!r:.40}]")
    return pa.array({str(name) for name in ids}, pa.large_string())
