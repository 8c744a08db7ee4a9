"""Search in files without an index: every passage of a text, and every row of a table, is compared
with the query.
"""

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from promptcli.data.bad_lines import bad_rows
from promptcli.data.cells import Cells
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.file_arguments import split_columns
from promptcli.data.layouts import CELLS, TEXT
from promptcli.data.vectors.formats import Floats
from promptcli.data.vectors.precision import unit
from promptcli.embedding.passages import Passage
from promptcli.embedding.splitting import Splitter
from promptcli.errors import UsageError, counted
from promptcli.evaluation.lexical import (
    DEPTH,
    NO_MATCH,
    QueryWords,
    best_places,
    join_rankings,
    ways_of,
)
from promptcli.evaluation.rarity import Rarity, RowSample, check_least
from promptcli.index.basics import (
    WAY_FIELDS,
    Way,
    bad_lines_option,
    chosen_way,
    is_answer,
    min_rarity_option,
    min_score_option,
)
from promptcli.index.file_rows import FileRows, Reader
from promptcli.index.found_files import FoundFiles, find_files, list_of_names
from promptcli.jobs import Job, argument, function_of, option
from promptcli.notes import keyword, note, stage

if TYPE_CHECKING:
    from promptcli.index.where import Condition
    from promptcli.models.loading import Model

_FAST = "mini-static"  # the model for English if none is named
_WINDOW = 16_384  # rows that are encoded together
#: Times the rows that words find are held while files are read: how rare a word is, is only known
#: at the end.
_SPARE = 10


@dataclass(frozen=True)
class Line:
    """A passage, a line or a row of a table that answers a query."""

    file: str
    line: int  #: number of its first line, from 1; in a table the number of its row
    end_line: int  #: number of its last line
    score: float  #: cosine to the query; by words alone BM25
    heading: str  #: headings above a passage, joined by `` > ``
    text: str  #: the passage or the line, or its best part
    before: tuple[str, ...]  #: lines above
    after: tuple[str, ...]  #: lines below
    columns: dict[str, str] | None = None  #: of a table's row, those that were asked for
    #: ``meaning``, ``words`` or ``both``: what found it, see ``Hit``; None if one way ranked
    found_by: str | None = None
    bm25: float | None = None
    cosine_rank: int | None = None  #: by cosine alone; None beyond those that were compared
    bm25_rank: int | None = None  #: by words alone
    #: how many of 100 random pairs of rows the cosine exceeds; None if that is not known
    rarity: float | None = None


class _Candidate(NamedTuple):
    """A row of a file that is compared."""

    file: str
    row: Passage
    lines: Sequence[str]  #: of the file
    cells: Cells  #: its other columns, if they were asked for


@dataclass(frozen=True)
class SearchFilesJob(Job[list[Line]]):
    """Return the passages of files that are nearest to a query, best first.

    No index is needed, and none is made.

    Raises:
        NotFoundError: No such file.
        UsageError: An empty query, a file that is not text, or no line to search.
    """

    query: str = argument("What to look for.", metavar="QUERY")
    files: Sequence[str | Path] = argument(
        "Texts, tables (FILE:COLUMN names that of the text), globs, and folders; hidden files in"
        " a folder, and those that are not text, are left out.",
        metavar="FILE...",
        typed=list[str],
    )
    k: int = option(10, "Maximum number of answers.", names="k", min=1)
    _: KW_ONLY
    model: "Model | None" = option(
        None,
        "Encoder. Default: mini-static (English); mini-multi for texts in its other languages.",
        names="model m",
        typed=str,
        kind="named model",
    )
    context: int = option(0, "Neighbouring lines to return on each side.", min=0)
    by: Way | None = option(
        None,
        "How lines are ranked: both (by cosine and by words, BM25, together), meaning (by cosine)"
        " or words. Default: both.",
    )
    hybrid: bool = option(False, "The same as `by` both.")
    lexical: bool = option(False, "The same as `by` words.")
    min_score: float | None = min_score_option()
    min_rarity: float | None = min_rarity_option()
    rows: Literal["auto", "passages", "lines"] = option(
        "auto",
        "What is compared in a text: passages, lines, or by its look (auto: lines if it has a"
        " sentence a line). Of a table it is the rows.",
    )
    split: bool = option(
        False,
        "Split lines, and rows of tables, longer than the model's window at sentence ends, and"
        " show the best part of each.",
    )
    where: str | None = option(
        None,
        "Condition on the other columns of tables, or on file, line, end_line, heading and front"
        " matter of texts, e.g. 'year > 2020 and lang = \"en\"'; see `promptcli index search`.",
    )
    bad_lines: str | Path | None = bad_lines_option()
    verbose: bool = option(False, "Name every file that is left out, with the reason.")
    columns: Sequence[str] = option((), "Columns of tables to return with each hit.", hidden=True)

    def run(self) -> list[Line]:
        from promptcli.models.language_choice import model_for, note_unread
        from promptcli.models.loading import open_encoder, with_language

        if not self.query.strip():
            raise UsageError("the query is empty; give a few words, or a sentence")
        way = chosen_way(self.by, hybrid=self.hybrid, lexical=self.lexical)
        names = list_of_names(self.files)
        _check_order(self.query, names)
        if way is None:
            way = "both"
        if self.min_rarity is not None:
            check_least(self.min_rarity, way)
        found = find_files(names)
        condition = None
        if self.where is not None:
            from promptcli.index.where import Condition  # Arrow's functions

            condition = Condition(self.where)
        model = model_for(self.model, found.heads(), default=_FAST, query=self.query)
        encoder = open_encoder(model, dtype="auto", rows=_WINDOW)
        documents = encoder.in_role("document", report=True)
        asked = unit(encoder.in_role("query", report=True).encode([self.query]))[0]
        splitter = None
        if self.split:
            splitter = Splitter(documents)
        best_rows: _BestRows | None = None
        sample = RowSample()
        count = 0
        fields = ColumnChoice(remedy="", cells=condition is not None or bool(self.columns))
        with bad_rows(self.bad_lines) as bad, stage("search", None) as advance:
            reader = Reader(self.rows, lambda: documents, fields, bad)
            candidates = _candidates(reader, found, condition)
            while window := list(itertools.islice(candidates, _WINDOW)):
                texts = [candidate.row.text for candidate in window]
                places = list(range(len(window)))
                if splitter is not None:
                    _, texts, places = splitter.rows(places, texts)
                if not count:
                    note_unread(documents, [self.query, *texts])
                cosines = np.zeros(len(texts), np.float32)
                if way != "words":
                    units = unit(documents.encode(texts, progress=advance))
                    sample.add(units)
                    cosines = _products(units, asked)
                if best_rows is None:
                    best_rows = _BestRows(self.query, self.k, way, texts)
                best_rows.add(window, texts, places, cosines)
                count += len(window)
        if condition is not None:
            condition.check()
        skipped = found.note(verbose=self.verbose)
        if skipped:
            skipped = f"; {skipped}"
        if not count and condition is None:
            raise UsageError(f"no line to search in {', '.join(names)}{skipped}")
        by = f" with {with_language(encoder.name)}" if encoder.name else ""
        read = counted(len(found.files) - len(found.unreadable), "file")
        note(f"searched {counted(count, reader.unit)} of {read}{by}{skipped}")
        return [] if best_rows is None else self._answers(best_rows, sample.rarity())

    def _answers(self, rows: "_BestRows", rarity: Rarity) -> list[Line]:
        """Return the best rows that are neither too far nor too common."""
        if self.min_rarity is not None and not rarity.is_known:
            raise UsageError(f"{keyword('min_rarity')}: {rarity.too_few_rows}")
        lines = list[Line]()
        for candidate, line in rows.best(self.context):
            [percent] = rarity.percents([line.score])
            shown = _chosen_columns(candidate, self.columns)
            if is_answer(line.score, percent, self.min_score, self.min_rarity):
                lines.append(replace(line, columns=shown, rarity=percent))
        return lines


search = function_of(SearchFilesJob, "search")


class _BestRows:
    """The rows that may be among the k best, while files are read."""

    def __init__(self, query: str, k: int, by: Way, first_texts: Sequence[str]) -> None:
        self._by = by
        self._k = k
        self._depth = k if by == "meaning" else max(k, DEPTH)
        from promptcli.models.language_choice import main_language

        language = "" if by == "meaning" else main_language(first_texts)
        self._words = QueryWords(query, language)
        self._candidates = list[_Candidate]()
        self._texts = list[str]()  # what was compared: the text of a row, or a part of it
        self._numbers = np.empty(0, np.int64)  # of the rows, in the order of reading
        self._cosines = np.empty(0, np.float32)
        self._counts, self._lengths = self._words.count([])
        self._read = 0

    def add(
        self,
        window: Sequence[_Candidate],
        texts: Sequence[str],
        places: Sequence[int],
        cosines: Floats,
    ) -> None:
        """Compare further rows, and forget those that cannot be among the best.

        ``places`` are those of the rows in the window, one for each text.
        """
        counted_texts = texts if self._by != "meaning" else [""] * len(texts)
        counts, lengths = self._words.count(counted_texts)
        self._candidates += [window[place] for place in places]
        self._texts += texts
        self._numbers = np.concatenate([self._numbers, self._read + np.array(places, np.int64)])
        self._cosines = np.concatenate([self._cosines, cosines])
        self._counts = np.concatenate([self._counts, counts])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._read += len(window)
        self._forget()

    def best(self, context: int) -> Iterator[tuple[_Candidate, Line]]:
        """Yield the best rows, each with its line, best first."""
        ways: Iterable[tuple[Any, ...]] = repeat(())
        nearest = self._nearest(self._depth)
        scores = self._cosines
        if self._by == "meaning":
            chosen = nearest
        else:
            bm25, worded = self._word_scores(nearest)
        if self._by == "words":
            chosen = worded
            scores = bm25
        elif self._by == "both":
            match = NO_MATCH
            if len(worded):
                match = self._words.match(self._counts[worded[0]], float(bm25[worded[0]]))
            joined = join_rankings(
                (nearest, self._cosines[nearest]),
                (worded, bm25[worded]),
                len(nearest) + len(worded),
                match,
                self._cosines.__getitem__,
                bm25.__getitem__,
            )
            firsts = self._first_texts(joined.rows)[: self._k]
            joined = joined.take(firsts)
            chosen = joined.rows
            ways = ways_of(joined)
        for place, way in zip(chosen[: self._k].tolist(), ways, strict=False):
            candidate = self._candidates[place]
            line = _line(candidate, self._texts[place], float(scores[place]), context)
            yield candidate, replace(line, **dict(zip(WAY_FIELDS, way, strict=False)))

    def _word_scores(self, nearest: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
        """Return the scores of all rows by words, and the places of the best, best first.

        As they are written, words are looked for in these rows and in the nearest.
        """
        scores = self._words.scores(self._counts, self._lengths)
        compared = np.union1d(nearest, self._wordiest(scores, self._depth))
        scores[compared] += self._words.gains([self._texts[place] for place in compared.tolist()])
        return scores, self._wordiest(scores, self._depth)

    def _nearest(self, most: int) -> NDArray[np.int64]:
        order = np.argsort(-self._cosines, kind="stable")
        return order[self._first_texts(order)][:most]

    def _wordiest(self, bm25: Floats, most: int) -> NDArray[np.int64]:
        order = best_places(bm25, len(bm25))
        return order[self._first_texts(order)][:most]

    def _first_texts(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, of places in an order, those where a row is the first time."""
        return np.sort(np.unique(self._numbers[order], return_index=True)[1])

    def _forget(self) -> None:
        kept = self._nearest(self._depth)
        if self._by != "meaning":
            bm25 = self._words.scores(self._counts, self._lengths)
            kept = np.union1d(kept, self._wordiest(bm25, _SPARE * self._depth))
        kept = np.sort(kept)
        self._candidates = [self._candidates[place] for place in kept.tolist()]
        self._texts = [self._texts[place] for place in kept.tolist()]
        self._numbers = self._numbers[kept]
        self._cosines = self._cosines[kept]
        self._counts = self._counts[kept]
        self._lengths = self._lengths[kept]


def _check_order(query: str, files: Sequence[str]) -> None:
    """Refuse a query and files in each other's place."""
    if not os.path.exists(query) or not files:
        return
    last = files[-1]
    if not os.path.exists(split_columns(last)[0]) and not glob.has_magic(last):
        where = " ".join([query, *files[:-1]])
        raise UsageError(
            f'the query comes first, then the files: `promptcli search "{last}" {where}`'
        )


def _line(candidate: _Candidate, text: str, score: float, context: int) -> Line:
    """Return a row as a line; ``text`` is what of it was compared."""
    row = candidate.row
    if text == row.text:
        text = row.body
    lines = candidate.lines
    before = lines[max(0, row.line - 1 - context) : row.line - 1]
    after = lines[row.end_line : row.end_line + context]
    return Line(
        candidate.file,
        row.line,
        row.end_line,
        score,
        row.heading,
        text,
        tuple(before),
        tuple(after),
    )


def _products(rows: Floats, vector: Floats) -> Floats:
    """Return the products (n,) of rows (n, d) with a vector (d,)."""
    # ``rows @ vector`` would take all threads of OpenBLAS, which wait at work for a tenth of a
    # second after a product of a millisecond; ``einsum`` computes in this thread
    products: Floats = np.einsum("nd,d->n", rows, vector)
    return products


def _chosen_columns(candidate: _Candidate, columns: Sequence[str]) -> dict[str, str] | None:
    """Return the columns that are asked for, those that the row has."""
    if not columns:
        return None
    return {name: cell for name, cell in candidate.cells if name in columns}


def _candidates(
    reader: Reader,
    found: FoundFiles,
    condition: "Condition | None",
) -> Iterator[_Candidate]:
    """Yield the rows of files that fulfil the condition."""
    for file, in_folder in found.files.items():
        read = reader.read(file, found if in_folder else None)
        if read is not None:
            cells = repeat(()) if read.cells is None else read.cells.to_pylist()
            kept = _rows_to_keep(file, read, condition)
            for row, columns in itertools.compress(zip(read.rows, cells, strict=False), kept):
                yield _Candidate(file, row, read.lines, tuple(columns or ()))


def _rows_to_keep(file: str, read: FileRows, condition: "Condition | None") -> Iterable[bool]:
    """Return which rows fulfil a condition; say how columns of it are read in doubt."""
    if condition is None:
        return repeat(True)
    from promptcli.index.column_types import odd_columns

    columns = {
        "id": pa.array([row.line for row in read.rows], pa.int64()),
        TEXT: pa.array([row.text for row in read.rows], pa.string()),
    }
    if read.cells is not None:
        columns[CELLS] = read.cells
    labels = pa.table(columns)
    chosen = condition.rows(labels.drop_columns("id"))
    doubts = odd_columns(labels, condition.asked) | dict(read.doubts)
    for name, doubt in doubts.items():
        if name in condition.asked:
            note(f"{file}: {doubt}")
    return list(chosen)
