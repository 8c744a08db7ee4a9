"""A user's own file of rows of two texts and a number: graded pairs; queries, documents and grades."""

from collections.abc import Sequence
from pathlib import Path

from promptcli.data.dialect import Fields
from promptcli.data.given import finite_number
from promptcli.data.rows import open_rows
from promptcli.data.senteval import GoldRow
from promptcli.errors import NotFoundError, UsageError

#: The default columns of graded pairs, and of a retrieval set.
COLUMNS = ("sentence1", "sentence2", "score")
RETRIEVAL = ("query", "document", "grade")


def split_columns(word: str, columns: tuple[str, ...] = COLUMNS) -> tuple[Path, tuple[str, ...]]:
    """Return the file and the columns of ``FILE`` or ``FILE:first,second,score``; default: ``columns``.

    Example:
        >>> split_columns("pairs.csv:question,answer,gold")[1]
        ('question', 'answer', 'gold')
    """
    name, colon, listed = word.rpartition(":")
    named = tuple(column.strip() for column in listed.split(","))
    if colon and len(named) == len(columns) and not Path(word).exists():
        return Path(name), named
    return Path(word), columns


def is_pair_file(word: str) -> bool:
    """Return whether a word names a file of pairs rather than a task; refuse the name of a missing file."""
    path, _ = split_columns(word)
    written = len(path.parts) > 1 or path.suffix.lower() in (".csv", ".tsv", ".jsonl", ".parquet", ".gz")
    if written and not path.exists():
        raise NotFoundError(
            f"no task and no file {str(path)!r}; give a task, or graded pairs as FILE or FILE:{','.join(COLUMNS)}"
        )
    return written or (path.exists() and not path.is_dir())


def read_graded_pairs(path: Path, columns: Sequence[str] = COLUMNS) -> list[GoldRow]:
    """Return the pairs of a file and their scores, on any scale, without empty rows.

    Args:
        path: CSV, TSV or JSONL, each also gzipped, or Parquet.
        columns: Names of the two sentences' columns and of the score's.
    """
    rows = read_rows(path, columns)
    scores = {score for _, _, score in rows}
    if len(scores) < 2:
        raise UsageError(
            f"{path}: all {len(rows):,} scores are {scores.pop():g}; a rank correlation needs two different ones"
        )
    return rows


def read_rows(path: Path, columns: Sequence[str]) -> list[GoldRow]:
    """Return the rows of a file as two texts and a number, without empty ones."""
    pairs = list[GoldRow]()
    with open_rows(path, Fields(layouts=(COLUMNS,), named=tuple(columns))) as rows:
        for number, (first, second, score) in enumerate(rows.tuples(), 1):
            if not (first or second or score):
                continue
            value = finite_number(score)
            if value is None:
                raise UsageError(f"{path}: row {number}: the score {score!r} in {columns[2]!r} is not a number")
            pairs.append((first, second, value))
    if not pairs:
        raise UsageError(f"{path} holds no pairs; give rows of {', '.join(columns)}")
    return pairs
