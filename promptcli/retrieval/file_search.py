"""Search in texts, files and folders without a stored index."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.data.arguments import as_list_of, check_query
from promptcli.data.csv_options import stored_options
from promptcli.data.layouts import ColumnChoice
from promptcli.data.rows import open_rows
from promptcli.embedding.passages import AUTO
from promptcli.errors import UsageError, with_count
from promptcli.models.loading import with_language
from promptcli.notes import note
from promptcli.retrieval.files import LINES_IN_ID, Reading, read_file
from promptcli.retrieval.found_files import FoundFiles, find_files
from promptcli.retrieval.new_rows import NewRows, encode_rows, prepare_rows
from promptcli.retrieval.ranking import Hit, RankBy
from promptcli.retrieval.sentence_index import SentenceIndex, begin_index, check_search
from promptcli.retrieval.store import creating
from promptcli.settings import list_of_names

if TYPE_CHECKING:
    from promptcli.models.loading import Model


def search(
    query: str,
    texts: Any,
    k: int = 10,
    *,
    model: "Model | None" = None,
    by: RankBy | None = None,
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
) -> list[Hit]:
    """Return the texts, or the passages of files, nearest to a query, best first.

    No index is stored.

    Args:
        query: The query, a sentence.
        texts: A list of texts, or a column of a DataFrame; or a file, a folder or a glob, or a list
            of paths. Files are texts and tables (``FILE:COLUMN`` names the column).
        k: Maximum number of answers.
        model: An encoder, or an argument of ``load``; None: ``mini-multi``.
        by: See ``SentenceIndex.search``.
        min_score: Lowest score of an answer.
        where: Condition on id and text; in files also on the columns of tables, and on file, line,
            end_line, heading and front matter of texts.
        rows: Unit of a text file: ``passages``, ``lines``, or ``auto``, by its layout.
        split: Whether rows longer than the model's window are split.
        ignore: Whether folders obey ``.gitignore`` and ``.ignore``.
        exclude: Further patterns of files to leave out.
        csv: How tables are written, see ``embed``.
        skip_bad: Leave out unreadable rows, and say how many and why.
        verbose: Whether to name every file that is left out.
        explain: Whether each answer keeps its explanation, see ``Hit.explain``.

    Returns:
        Hits; the ``id`` is the text's number, or FILE:LINES for files.

    Raises:
        NotFoundError: No such file.
        UsageError: An empty query, a file that is not text, or nothing to search.
    """
    check_query(query)
    check_search(k, by, where)
    if not isinstance(texts, str | Path):
        texts = as_list_of(texts, "texts", "texts or paths")
    if isinstance(texts, list) and not any(isinstance(text, Path) for text in texts):
        index = SentenceIndex.build(texts, model, split=split)
        return index.search(query, k, by=by, min_score=min_score, where=where, explain=explain)
    names = list_of_names(texts)
    found = find_files(names, ignore=ignore, exclude=exclude)
    reading = Reading(rows, split=split, csv=stored_options(csv))
    index, rows_read, files_read = _index_files(found, model, reading, skip_bad=skip_bad)
    left_out = found.summarize_left_out(verbose=verbose)
    end = f"; {left_out}" if left_out else ""
    if not rows_read:
        raise UsageError(f"no line to search in {', '.join(names)}{end}")
    model_name = index.load_origin().name
    with_model = f" with {with_language(model_name)}" if model_name else ""
    counts = f"{with_count(rows_read, 'row')} of {with_count(files_read, 'file')}"
    note(f"searched {counts}{with_model}{end}")
    return index.search(query, k, by=by, min_score=min_score, where=where, explain=explain)


def _index_files(
    found: FoundFiles, model: "Model | None", reading: Reading, *, skip_bad: bool
) -> tuple[SentenceIndex, int, int]:
    """Return an index of files in memory, and the numbers of rows and files that could be read."""
    rows_read = files_read = 0
    with creating() as store:
        index = begin_index(store, model, reading)
        documents = index.open_document_encoder()

        def blocks() -> Iterator[NewRows]:
            nonlocal files_read
            for file in found.files:
                file_blocks: list[NewRows] = []
                with found.reading(file):
                    file_blocks = read_file(file, reading, documents, skip_bad, keep_ids=True)
                    files_read += 1
                yield from file_blocks

        prepared_rows = prepare_rows(documents, blocks(), split=reading.split)
        for rows in encode_rows(documents, prepared_rows, "search"):
            store.append(rows)
            rows_read += rows.input_rows
    return index, rows_read, files_read


def place_of(hit: Hit) -> tuple[int, int]:
    """Return a hit's first and last line in its file, or its row number twice."""
    lines = LINES_IN_ID.search(str(hit.id))
    assert lines is not None
    return int(lines[1]), int(lines[2] or lines[1])


def texts_of(file: str, csv: dict[str, str] | None) -> list[str]:
    """Return all lines of a searched text, or the texts of a table; "" for an unreadable row."""
    texts: list[str] = []
    with open_rows(file, ColumnChoice(remedy=""), csv=csv, again=True) as source:
        for number, (text, *_) in source.numbered():
            texts += [""] * (number - len(texts))
            texts.append(text)
    return texts
