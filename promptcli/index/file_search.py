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
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from promptcli.data.bad_lines import bad_rows
from promptcli.data.cells import Cells
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.file_arguments import split_columns
from promptcli.data.layouts import CELLS, TEXT
from promptcli.data.vectors.precision import unit
from promptcli.embedding.passages import Passage
from promptcli.embedding.splitting import Splitter
from promptcli.encoder.unknown_letters import note_unknown_letters
from promptcli.errors import UsageError, counted
from promptcli.index.basics import bad_lines_option, reaches
from promptcli.index.file_rows import FileRows, Reader
from promptcli.index.found_files import FoundFiles, find_files, list_of_names
from promptcli.jobs import Job, argument, function_of, option
from promptcli.notes import note, stage

if TYPE_CHECKING:
    from promptcli.index.where import Condition
    from promptcli.models.loading import Model

_FAST = "mini-static"  # the model for English if none is named
_WINDOW = 16_384  # rows that are encoded together


@dataclass(frozen=True)
class Line:
    """A passage, a line or a row of a table that answers a query."""

    file: str
    line: int  #: number of its first line, from 1; in a table the number of its row
    end_line: int  #: number of its last line
    score: float  #: cosine to the query
    heading: str  #: headings above a passage, joined by `` > ``
    text: str  #: the passage or the line, or its best part
    before: tuple[str, ...]  #: lines above
    after: tuple[str, ...]  #: lines below
    columns: dict[str, str] | None = None  #: of a table's row, those that were asked for


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
    min_score: float | None = option(
        None,
        "Leave out answers below this cosine, as it is printed: 1 finds exact copies of the query.",
    )
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
        from promptcli.models.language_choice import model_for
        from promptcli.models.loading import open_encoder, with_language

        if not self.query.strip():
            raise UsageError("the query is empty; give a few words, or a sentence")
        names = list_of_names(self.files)
        _check_order(self.query, names)
        found = find_files(names)
        condition = None
        if self.where is not None:
            from promptcli.index.where import Condition  # Arrow's functions

            condition = Condition(self.where)
        model = model_for(self.model, [self.query, *found.heads()], default=_FAST)
        encoder = open_encoder(model, dtype="auto", rows=_WINDOW)
        documents = encoder.in_role("document", report=True)
        asked = unit(encoder.in_role("query", report=True).encode([self.query]))[0]
        splitter = None
        if self.split:
            splitter = Splitter(documents)
        best = list[Line]()
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
                    note_unknown_letters(documents, [self.query, *texts])
                scores = unit(documents.encode(texts, progress=advance)) @ asked
                nearest = dict[int, int]()  # number of a row in the window -> its best text
                for place in np.argsort(-scores, kind="stable").tolist():
                    nearest.setdefault(places[place], place)
                    if len(nearest) == self.k:
                        break
                for number, place in nearest.items():
                    candidate = window[number]
                    part = texts[place]
                    whole = splitter is None or part == candidate.row.text
                    text = candidate.row.body if whole else part
                    line = _line(candidate, text, float(scores[place]), self.context)
                    best.append(replace(line, columns=_chosen_columns(candidate, self.columns)))
                best = sorted(best, key=lambda line: -line.score)[: self.k]
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
        return [
            line for line in best if self.min_score is None or reaches(line.score, self.min_score)
        ]


search = function_of(SearchFilesJob, "search")


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
    row = candidate.row
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
