"""Search without an index that is kept: of texts, files and folders."""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.data.csv_options import stored_options
from promptcli.data.file_arguments import split_columns
from promptcli.embedding.passages import AUTO
from promptcli.errors import UsageError, counted
from promptcli.models.entries import utc_now
from promptcli.models.language_choice import model_for
from promptcli.models.loading import with_language
from promptcli.notes import note
from promptcli.retrieval.files import FileRows, Reader, Reading
from promptcli.retrieval.found_files import FoundFiles, find_files, list_of_names
from promptcli.retrieval.origin import Origin
from promptcli.retrieval.ranking import Hit, Way
from promptcli.retrieval.sentence_index import SentenceIndex
from promptcli.retrieval.store import NewRows, Store

if TYPE_CHECKING:
    from promptcli.models.loading import Model

FAST = "mini-static"  #: the model for English if none is named


@dataclass(frozen=True)
class Line:
    """A passage, line or row of a file, and the lines around it."""

    file: str
    line: int  #: its first line, from 1; of a table the number of the row
    end_line: int
    score: float
    heading: str
    text: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    columns: dict[str, Any] | None
    found_by: str | None = None  #: see ``Hit``
    bm25: float | None = None
    cosine_rank: int | None = None
    bm25_rank: int | None = None


def search(
    query: str,
    texts: Any,
    k: int = 10,
    *,
    model: "Model | None" = None,
    context: int = 0,
    by: Way | None = None,
    min_score: float | None = None,
    where: str | None = None,
    rows: str = AUTO,
    split: bool = False,
    ignore: bool = True,
    exclude: Sequence[str] = (),
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    verbose: bool = False,
) -> "list[Hit] | list[Line]":
    """Return the texts, or the passages of files, that are nearest to a query, best first.

    No index is kept.

    Args:
        query: What to look for.
        texts: A list of texts, or a column of a DataFrame; or a file, folder or glob, and a list of
            paths: texts, and tables (``FILE:COLUMN`` names the column).
        k: Most answers.
        model: Encoder; None: mini-static (English), mini-multi for texts in its other languages.
        context: Neighbouring lines of a file to return on each side.
        by: See ``SentenceIndex.search``.
        min_score: Least score of an answer.
        where: Condition on the columns of tables, and on file, line, end_line, heading and front
            matter of texts.
        rows: What is compared in a text file: ``passages``, ``lines``, or by its look: ``auto``.
        split: Whether rows longer than the model's window are split.
        ignore: Whether ``.gitignore`` and ``.ignore`` are heeded in folders.
        exclude: Further patterns of what is left out.
        csv: How tables are written, see ``embed``.
        skip_bad: Leave out the rows that cannot be read, and say how many and why.
        verbose: Whether every file that is left out is named.

    Returns:
        Of a list of texts ``Hit``, whose ``id`` is the number of the text; of files ``Line``.

    Raises:
        NotFoundError: No such file.
        UsageError: An empty query, a file that is not text, or nothing to search.
    """
    if not query.strip():
        raise UsageError("the query is empty; give a few words, or a sentence", parameter="query")
    are_files = isinstance(texts, str | Path) or any(isinstance(each, Path) for each in texts)
    if not are_files:
        chosen = model_for(model, texts, FAST, query=query)
        index = SentenceIndex.build(texts, chosen, split=split)
        hits: list[Hit] = index.search(query, k, by=by, min_score=min_score)
        return hits
    names = list_of_names(texts)
    found = find_files(names, ignore=ignore, exclude=exclude)
    index = SentenceIndex(Store())
    encoder, documents = index.open_model(model, found.heads(), FAST, query)
    reading = Reading(rows, split=split, csv=stored_options(csv))
    settings = {"lexical": True, "factory": None, "created": utc_now(), "synced": None}
    read: dict[str, FileRows] = {}
    with index.store.changing():
        index.begin(Origin.of(encoder, documents), reading, settings, documents.width)
        reader = Reader(reading, lambda: documents, skip_bad)
        blocks = _blocks(reader, found, read)
        count = 0
        for block, given in index._encode(documents, blocks, split, "search"):
            index.store.append(block)
            count += given
    skipped = found.note(verbose=verbose)
    if not count:
        raise UsageError(
            f"no line to search in {', '.join(names)}" + f"; {skipped}" * bool(skipped)
        )
    with_model = f" with {with_language(encoder.name)}" if encoder.name else ""
    place = counted(len(read), "file")
    note(
        f"searched {counted(count, reader.unit)} of {place}{with_model}"
        + f"; {skipped}" * bool(skipped)
    )
    answers = index.search(query, k, by=by, min_score=min_score, where=where)
    return [_line(hit, read[str(hit.file)], context) for hit in answers]


def _blocks(reader: Reader, found: FoundFiles, read: dict[str, FileRows]) -> Iterator[NewRows]:
    """Yield the rows of files, and keep these in ``read``."""
    for file, in_folder in found.files.items():
        of_file = reader.read_found(file, found, in_folder=in_folder)
        if of_file is not None:
            read[file] = of_file
            rows = of_file.new_rows(file)
            rows.ids = [f"{place}:{file}" for place in range(len(rows))]  # the place in the file
            yield rows


def _line(hit: Hit, read: FileRows, context: int) -> Line:
    """Return a hit as a passage of its file."""
    place = int(str(hit.id).partition(":")[0])
    row = read.rows[place]
    text = row.body if hit.text == row.text else hit.text or ""
    first = row.line - 1
    return Line(
        str(hit.file),
        row.line,
        row.end_line,
        hit.score,
        row.heading,
        text,
        tuple(read.lines[max(0, first - context) : first]),
        tuple(read.lines[row.end_line : row.end_line + context]),
        {name: values[place] for name, values in read.columns.items()},
        hit.found_by,
        hit.bm25,
        hit.cosine_rank,
        hit.bm25_rank,
    )


def check_order(query: str, files: Sequence[str]) -> None:
    """Refuse a query and files in each other's place."""
    if not os.path.exists(query) or not files:
        return
    last = files[-1]
    if not os.path.exists(split_columns(last)[0]) and not glob.has_magic(last):
        where = " ".join([query, *files[:-1]])
        raise UsageError(
            f'the query comes first, then the files: `promptcli search "{last}" {where}`'
        )
