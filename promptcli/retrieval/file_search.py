"""Search without an index that is kept: of texts, files and folders."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.data.csv_options import stored_options
from promptcli.data.given import check_query, check_rows
from promptcli.data.layouts import ColumnChoice
from promptcli.data.rows import open_rows
from promptcli.embedding.passages import AUTO
from promptcli.errors import UsageError, counted
from promptcli.models.loading import with_language
from promptcli.notes import note
from promptcli.retrieval.files import LINES, Reading, read_file
from promptcli.retrieval.found_files import find_files, list_of_names
from promptcli.retrieval.ranking import Explanation, Hit, Way
from promptcli.retrieval.sentence_index import SentenceIndex, prepared
from promptcli.retrieval.store import NewRows, creating

if TYPE_CHECKING:
    from promptcli.models.loading import Model


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
    explanation: dict[str, Explanation] | None = None


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
    explain: bool = False,
) -> "list[Hit] | list[Line]":
    """Return the texts, or the passages of files, that are nearest to a query, best first.

    No index is kept.

    Args:
        query: What to look for.
        texts: A list of texts, or a column of a DataFrame; or a file, folder or glob, and a list of
            paths: texts, and tables (``FILE:COLUMN`` names the column).
        k: Most answers.
        model: Encoder; None: ``mini-multi``.
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
        explain: Whether each answer keeps why it is there, see ``Hit.explain``.

    Returns:
        Of a list of texts ``Hit``, whose ``id`` is the number of the text; of files ``Line``.

    Raises:
        NotFoundError: No such file.
        UsageError: An empty query, a file that is not text, or nothing to search.
    """
    check_query(query)
    if not isinstance(texts, str | Path):
        texts = check_rows(texts, "texts", "texts or paths")
    if isinstance(texts, list) and not any(isinstance(each, Path) for each in texts):
        index = SentenceIndex.build(texts, model, split=split)
        hits: list[Hit] = index.search(query, k, by=by, min_score=min_score, explain=explain)
        return hits
    names = list_of_names(texts)
    found = find_files(names, ignore=ignore, exclude=exclude)
    reading = Reading(rows, split=split, csv=stored_options(csv))
    columns: dict[str, list[str]] = {}  # of each file that was read
    count = 0
    with creating() as store:
        index = SentenceIndex(store)
        documents = index.begin_with(model, reading)

        def blocks() -> Iterator[NewRows]:
            for file in found.files:
                of_file: list[NewRows] = []
                with found.reading(file):
                    of_file = read_file(file, reading, documents, skip_bad, keep_ids=True)
                    columns[file] = [name for each in of_file for name in each.columns]
                yield from of_file

        new = prepared(documents, blocks(), split)
        for block, given in index.encode(documents, new, "search"):
            store.append(block)
            count += given
    skipped = found.note(verbose=verbose)
    end = f"; {skipped}" if skipped else ""
    if not count:
        raise UsageError(f"no line to search in {', '.join(names)}{end}")
    name = index.origin.name
    with_model = f" with {with_language(name)}" if name else ""
    files = counted(len(columns), "file")
    note(f"searched {counted(count, 'row')} of {files}{with_model}{end}")
    answers = index.search(query, k, by=by, min_score=min_score, where=where, explain=explain)
    shown = {str(hit.file) for hit in answers} if context else ()
    around = {file: _texts(file, reading, skip_bad) for file in shown}
    return [
        _line(hit, columns[str(hit.file)], around.get(str(hit.file), []), context)
        for hit in answers
    ]


def _texts(file: str, reading: Reading, skip_bad: bool) -> list[str]:
    """Return all lines of a text, or the texts of a table."""
    with open_rows(file, ColumnChoice(remedy=""), csv=reading.csv, skip_bad=skip_bad) as source:
        return list(source.texts())


def _line(hit: Hit, names: Sequence[str], texts: Sequence[str], context: int) -> Line:
    """Return a hit as a passage of its file, whose columns and texts are given."""
    place = LINES.search(str(hit.id))
    assert place is not None
    line = int(place[1])
    end_line = int(place[2] or line)
    columns = dict.fromkeys(names) | (hit.columns or {})
    heading, text = "", hit.text or ""
    if list(columns)[:4] == ["file", "line", "end_line", "heading"]:
        heading = columns["heading"] or ""
        text = text.partition("\n")[2] if heading else text
    return Line(
        str(hit.file),
        line,
        end_line,
        hit.score,
        heading,
        text,
        tuple(texts[max(0, line - 1 - context) : line - 1]),
        tuple(texts[end_line : end_line + context]),
        columns,
        **hit.way(),
        explanation=hit.explanation,
    )
