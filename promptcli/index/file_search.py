"""Search in files without an index: every line of a text, and every row of a table, is compared with the query."""

import glob
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from promptcli.data.dialect import CELLS, TEXT, Fields, format_of, split_columns
from promptcli.data.files import check_file, open_file, open_text, skipped_files
from promptcli.data.rows import open_rows
from promptcli.data.vectors.precision import unit
from promptcli.embedding.splitting import Splitter
from promptcli.encoder.unknown_letters import note_unknown_letters
from promptcli.errors import NotFoundError, UsageError, counted
from promptcli.index.where import Condition
from promptcli.notes import note, working

if TYPE_CHECKING:
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
        where: Condition on the other columns of tables, e.g. 'year > 2020 and lang = "en"'.

    Raises:
        NotFoundError: No such file.
        UsageError: An empty query, a file that is not text, or no line to search.
    """
    from promptcli.models.loading import open_model

    if not query.strip():
        raise UsageError("the query is empty; give a few words, or a sentence")
    named, unreadable = find_files(files), list[str]()
    condition = None if where is None else Condition(where)
    encoder = open_model(model, dtype="auto", rows=_WINDOW)
    documents = encoder.in_role("document", report=True)
    asked = unit(encoder.in_role("query", report=True).encode([query]))[0]
    splitter = Splitter(documents) if split else None
    candidates, best, count = _candidates(named, unreadable, condition), list[Line](), 0
    with working("search", None) as advance:
        while window := list(itertools.islice(candidates, _WINDOW)):
            texts, rows = [lines[number].strip() for _, number, lines in window], list(range(len(window)))
            if splitter is not None:
                _, texts, rows = splitter.rows(rows, texts)
            if not count:
                note_unknown_letters(documents, [query, *texts])
            scores = unit(documents.encode(texts, progress=advance)) @ asked
            nearest = dict[int, int]()  # number of a line in the window -> its best text
            for place in np.argsort(-scores, kind="stable").tolist():
                nearest.setdefault(rows[place], place)
                if len(nearest) == k:
                    break
            for row, place in nearest.items():
                file, number, lines = window[row]
                text = lines[number] if splitter is None else texts[place]
                before, after = lines[max(0, number - context) : number], lines[number + 1 : number + 1 + context]
                best.append(Line(file, number + 1, float(scores[place]), text, tuple(before), tuple(after)))
            best = sorted(best, key=lambda line: -line.score)[:k]
            count += len(window)
    if condition is not None:
        condition.check()
    skipped = f"; {skipped_files(unreadable)}" if unreadable else ""
    if not count and condition is None:
        raise UsageError(f"no line to search in {', '.join(map(str, files))}{skipped}")
    note(f"searched {counted(count, 'line')} of {counted(len(named) - len(unreadable), 'file')}{skipped}")
    return [line for line in best if min_score is None or line.score >= min_score]


def _candidates(
    named: dict[str, bool], unreadable: list[str], condition: Condition | None
) -> Iterator[tuple[str, int, list[str]]]:
    """Yield the file, number and neighbours of every line that is not blank and fulfils the condition."""
    for file, in_folder in named.items():
        rows = read_lines(file, unreadable if in_folder else None, cells=condition is not None)
        if rows is not None:
            chosen = itertools.repeat(True) if condition is None else condition.rows(pa.table(rows))
            for number, (line, wanted) in enumerate(zip(rows[TEXT], chosen, strict=False)):
                if wanted and line.strip():
                    yield file, number, rows[TEXT]


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
