"""Retrieval sets as folders: BEIR's (corpus.jsonl, queries.jsonl, qrels/*.tsv) and MS MARCO's
(collection.tsv, ...).
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from promptcli.data.cells import finite_number
from promptcli.data.input_files import read_lines
from promptcli.data.layouts import ID, TEXT, ColumnChoice
from promptcli.data.rows import open_rows
from promptcli.data.senteval import GoldRows
from promptcli.errors import NotFoundError, UsageError, with_count
from promptcli.notes import note

#: Patterns of the files of documents and of judgements, best first. Test judgements come first.
_DOCUMENTS = ("corpus.jsonl*", "collection.tsv*")
_QRELS = ("qrels/test.tsv", "qrels/*.tsv", "qrels*test*.tsv", "qrels*dev*.tsv", "qrels*.tsv")


def is_retrieval_folder(path: Path) -> bool:
    """Return whether a path is a retrieval folder, or the judgements file in one."""
    return path.is_dir() or (path.is_file() and "qrels" in path.name + path.parent.name)


def read_retrieval_folder(path: Path) -> GoldRows:
    """Return rows of query, document and grade: ``all`` judgements and then the unjudged documents,
    judgements of ``missing`` documents, and the queries that are documents themselves (``own``).
    """
    folder, qrels = path, path
    if path.is_dir():
        qrels, *others = _find_files(folder, _QRELS, "judgements")
        if others:
            judgements = qrels.relative_to(folder)
            note(f"{folder}: judgements of {judgements}; for others: retrieval:{others[0]}")
    else:
        folder = path.parent.parent if path.parent.name == "qrels" else path.parent
    split = qrels.name.removeprefix("qrels")
    documents = _read_texts(_find_files(folder, _DOCUMENTS, "documents")[0])
    queries = _read_texts(
        _find_files(folder, ("queries.jsonl*", f"queries{split}", "queries*.tsv"), "queries")[0]
    )
    rows: GoldRows = {"all": [], "missing": [], "own": []}
    judged: set[str] = set()
    without_query = 0
    for query, document, grade in _read_judgements(qrels):
        if query not in queries:
            without_query += 1
        elif document not in documents:
            rows["missing"].append((queries[query], document, grade))
        else:
            rows["all"].append((queries[query], documents[document], grade))
            judged.add(document)
    rows["all"] += [("", text, 0.0) for name, text in documents.items() if name not in judged]
    copies = Counter(documents.values())
    for name, text in queries.items():
        if documents.get(name) == text and copies[text] == 1:
            rows["own"].append((text, text, 0.0))
    if rows["missing"]:
        count = with_count(len(rows["missing"]), "judged document")
        note(f"{qrels}: {count} missing from the documents, scored as not found")
    if without_query:
        note(f"{qrels}: {with_count(without_query, 'judgement')} of missing queries left out")
    if rows["own"]:
        own = f"{len(rows['own']):,} queries are documents with the same id"
        note(f"{folder}: {own}, which do not count as their answers")
    return rows


def _find_files(folder: Path, patterns: tuple[str, ...], what: str) -> list[Path]:
    files = dict.fromkeys(file for pattern in patterns for file in sorted(folder.glob(pattern)))
    if not files:
        raise NotFoundError(
            f"{folder} has no {what}; a retrieval folder holds one of: {', '.join(patterns)}"
        )
    return list(files)


def _read_texts(path: Path) -> dict[str, str]:
    fields, csv = ColumnChoice("2", "1"), {"header": "false", "quote": ""}
    if ".jsonl" in path.name:
        fields, csv = ColumnChoice(remedy="give objects with _id and text"), {}
    texts = dict[str, str]()
    with open_rows(path, fields, csv=csv) as rows:
        for batch in rows:
            texts.update(zip(map(str, batch[ID]), batch[TEXT], strict=True))
    return texts


def _read_judgements(path: Path) -> Iterator[tuple[str, str, float]]:
    """Yield query, document and grade, from BEIR's three columns with a header or TREC's four."""
    for number, line in enumerate(read_lines(path), 1):
        cells = line.split("\t" if "\t" in line else None)
        grade = None
        if len(cells) in (3, 4):
            grade = finite_number(cells[-1])
        if grade is not None:
            yield cells[0], cells[-2], grade
        elif number > 1 and line.strip():
            raise UsageError(
                f"{path}: line {number}: give query, document and grade, separated by tabs"
            )
