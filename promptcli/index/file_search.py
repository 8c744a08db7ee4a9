"""Search in files without an index: every line of a text, and every row of a table, is compared with the query."""

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from promptcli.data.dialect import CELLS, TEXT, Fields, format_of, split_columns
from promptcli.data.files import check_file, open_file, open_text
from promptcli.data.rows import open_rows
from promptcli.data.vectors.precision import unit
from promptcli.embedding.splitting import Splitter
from promptcli.errors import NotFoundError, UsageError
from promptcli.index.rows import Mask
from promptcli.notes import note

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder
    from promptcli.models.loading import Model

_WINDOW = 16_384  # lines that are encoded together


@dataclass(frozen=True)
class Line:
    """A line that answers a query."""

    file: str
    line: int  #: its number, from 1; in a table the number of its row
    score: float  #: cosine to the query
    text: str  #: the line, or its best part
    before: tuple[str, ...]  #: neighbours above
    after: tuple[str, ...]  #: neighbours below


def search(
    query: str,
    files: Sequence[str | Path],
    k: int = 10,
    *,
    model: "Model" = "mini-static",
    context: int = 0,
    min_score: float | None = None,
    split: bool = False,
    where: str | None = None,
) -> list[Line]:
    """Return the lines of files that are nearest to a query, best first; no index is needed, and none is made.

    Args:
        query: What to look for.
        files: Texts, tables (FILE:COLUMN names that of the text), globs, and folders; hidden files in a folder, and
            those that are not text, are left out.
        k: Maximum number of lines.
        model: Encoder.
        context: Neighbouring lines to return on each side.
        min_score: Leave out lines below this cosine.
        split: Split lines longer than the model's window at sentence ends, and show the best part of each line.
        where: Condition on the other columns of tables, e.g. 'year > 2020 and lang = "en"'; see ``search_index``.

    Raises:
        NotFoundError: No such file.
        UsageError: An empty query, a file that is not text, or no line to search.
    """
    from promptcli.models.loading import open_model

    if not query.strip():
        raise UsageError("the query is empty; give a few words, or a sentence")
    named = find_files(files)
    condition = None
    if where is not None:
        from promptcli.index.where import Condition  # pyarrow.compute, which a search without a condition does not need

        condition = Condition(where)
    nearest = _Nearest(open_model(model, dtype="auto", rows=_WINDOW), query, k, split=split)
    unreadable: list[str] = []
    for file, in_folder in named.items():
        if (rows := read_lines(file, unreadable if in_folder else None, cells=where is not None)) is not None:
            nearest.add(file, rows[TEXT], None if condition is None else condition.rows(pa.table(rows)))
    nearest.rank()
    if condition is not None:
        condition.check()
    skipped = f"; {len(unreadable):,} not read, e.g. {unreadable[0]}" if unreadable else ""
    if not nearest.count and condition is None:
        raise UsageError(f"no line to search in {', '.join(map(str, files))}{skipped}")
    note(f"searched {nearest.count:,} lines; files: {len(named) - len(unreadable):,}{skipped}")
    return [
        Line(
            file,
            number + 1,
            score,
            text,
            before=tuple(lines[max(0, number - context) : number]),
            after=tuple(lines[number + 1 : number + 1 + context]),
        )
        for score, file, number, text in nearest.best
        if (lines := nearest.lines[file]) and (min_score is None or score >= min_score)
    ]


class _Nearest:
    """The k lines that are nearest to a query so far."""

    def __init__(self, encoder: "Encoder", query: str, k: int, *, split: bool) -> None:
        self.k, self.count = k, 0
        self.best: list[tuple[float, str, int, str]] = []  #: cosine, file, number of the line from 0, its text
        self.lines: dict[str, list[str]] = {}  #: of the files that hold a line in ``best``
        self._documents = encoder.in_role("document", report=True)
        self._query = unit(encoder.in_role("query", report=True).encode([query]))[0]
        self._splitter = Splitter(self._documents) if split else None
        self._waiting: list[tuple[str, int]] = []

    def add(self, file: str, lines: list[str], chosen: Mask | None) -> None:
        """Compare the lines of a file, those of the files before it at the latest when a window is full."""
        self.lines[file] = lines
        for number, line in enumerate(lines):
            if line.strip() and (chosen is None or chosen[number]):
                self._waiting.append((file, number))
            if len(self._waiting) == _WINDOW:
                self.rank()
                self.lines[file] = lines

    def rank(self) -> None:
        """Compare the lines that are waiting."""
        lines = [self.lines[file][number] for file, number in self._waiting]
        texts, rows = [line.strip() for line in lines], list(range(len(lines)))
        if self._splitter is not None:
            _, texts, rows = self._splitter.rows(rows, texts)
        if texts:
            scores = unit(self._documents.encode(texts)) @ self._query
            best = dict[int, int]()  # number of a line -> its best text
            for place in np.argsort(-scores, kind="stable").tolist():
                best.setdefault(rows[place], place)
                if len(best) == self.k:
                    break
            ranked = [
                (float(scores[place]), *self._waiting[row], lines[row] if self._splitter is None else texts[place])
                for row, place in best.items()
            ]
            self.best = sorted([*self.best, *ranked], key=lambda each: -each[0])[: self.k]
        self.count += len(lines)
        self.lines = {file: self.lines[file] for _, file, *_ in self.best}
        self._waiting = []


def find_files(names: Sequence[str | Path]) -> dict[str, bool]:
    """Return the files, in order, and whether each was found in a folder or by a glob."""
    files: dict[str, bool] = {}
    for name in map(str, names):
        path = Path(name)
        if path.is_dir():
            inside = [file for file in sorted(path.rglob("*")) if file.is_file()]
            shown = (file for file in inside if not any(part[0] == "." for part in file.relative_to(path).parts))
            files |= dict.fromkeys(map(str, shown), True)
        elif not path.exists() and glob.has_magic(name):
            matching = sorted(glob.glob(name, recursive=True))
            files |= dict.fromkeys(filter(os.path.isfile, matching), True)
        else:
            check_file(Path(split_columns(name)[0]), regular=True)
            files[name] = False
    if not files:
        raise NotFoundError(f"no file in {', '.join(map(str, names))}; give texts, tables, or folders of them")
    return files


def read_lines(file: str, unreadable: list[str] | None, *, cells: bool) -> dict[str, Any] | None:
    """Return the lines of a text, or the texts of the rows of a table, and the ``cells`` of these, if they are wanted.

    With ``unreadable``, a file that cannot be read adds its reason to it and has None; else it is an error.
    """
    path, named = split_columns(file)
    form, ending = format_of(path)
    try:
        if form != "text" or named:
            with open_rows(file, Fields(remedy="", cells=cells)) as rows:
                table = pa.Table.from_batches(rows)
            texts = {TEXT: table.column(TEXT).to_pylist()}
            return texts | {CELLS: table.column(CELLS)} if cells else texts
        with open_file(file) as stream:
            return {TEXT: [line.rstrip("\r\n") for line in open_text(stream, file, ending, note).lines]}
    except UsageError as error:
        if unreadable is None:
            raise
        unreadable.append(str(error))
        return None
