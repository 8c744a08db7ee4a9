"""Grades of documents for queries; each grade is appended to a file at once."""

import csv
import json
import os
from collections.abc import Iterable
from pathlib import Path

from promptcli.data.input_files import MAX_LINE_CHARACTERS
from promptcli.errors import CheckFailedError, UsageError, with_count
from promptcli.notes import note
from promptcli.storage.files import write_text

#: The word by which a person grades a document -> the grade.
GRADES = {"right": 2, "partly": 1, "wrong": 0}
_HEADERS = ("grade", "query", "document")

Pair = tuple[str, str]  #: a query and a document, by their texts


class Judgements:
    """Grades by pair, in the order of grading; a kill can lose only the file's last line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.grades: dict[Pair, int] = {}
        complete = b""
        if path.is_file():
            content = path.read_bytes()
            complete = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(complete.splitlines(), 1):
            try:
                query, text, grade = json.loads(line)
                self._set((query, text), grade)
            except (ValueError, TypeError, KeyError):
                raise CheckFailedError(f"{path}: line {number} is damaged; delete it") from None
        self._length = len(complete)

    def _set(self, pair: Pair, grade: int | None) -> None:
        self.grades.pop(pair, None)
        if grade is not None:
            self.grades[pair] = grade

    def add(self, pair: Pair, grade: int | None) -> None:
        """Store a grade; None withdraws it."""
        line = json.dumps([*pair, grade]).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.seek(self._length)
            file.truncate()  # removes a line that a kill cut off
            file.write(line)
            file.flush()
            os.fsync(descriptor)
        self._length += len(line)
        self._set(pair, grade)

    def undo(self) -> None:
        """Withdraw the last grade, if there is one."""
        if self.grades:
            self.add(next(reversed(self.grades)), None)

    def write_template(self, path: Path, pairs: Iterable[Pair]) -> int:
        """Write a table of pairs with an empty first column to fill in, or add missing pairs to it.

        Pairs whose cells are equal share a row.

        Returns:
            The number of new rows.
        """
        headers, content = [*_HEADERS], "\t".join(_HEADERS) + "\n"
        written: set[Pair] = set()
        if path.exists():
            headers, rows = _read_table(path)
            written = {(row["query"], row["document"]) for row in rows}
            content = path.read_bytes().decode()
            if not content.endswith("\n"):
                content += "\n"
        missing = dict.fromkeys(cells for cells in map(_to_cells, pairs) if cells not in written)
        for query, document in missing:
            row = {"query": query, "document": document}
            content += "\t".join(row.get(header, "") for header in headers) + "\n"
        if missing:
            write_text(path, content)
        return len(missing)

    def read_template(self, path: Path, pairs: Iterable[Pair]) -> None:
        """Store the grades of a table by ``write_template``; pairs without a grade stay open."""
        pairs_of_row: dict[Pair, list[Pair]] = {}
        for pair in pairs:
            pairs_of_row.setdefault(_to_cells(pair), []).append(pair)
        other_rows = 0
        for number, row in enumerate(_read_table(path)[1], 2):
            word = (row["grade"] or "").strip().lower()
            if not word:
                continue
            if word not in GRADES:
                allowed = ", ".join(GRADES)
                raise UsageError(f"{path}: row {number}: unknown grade {word!r}; valid: {allowed}")
            row_pairs = pairs_of_row.get((row["query"], row["document"]), [])
            if not row_pairs:
                other_rows += 1
            for pair in row_pairs:
                if self.grades.get(pair) != GRADES[word]:
                    self.add(pair, GRADES[word])
        if other_rows:
            rows = with_count(other_rows, "row")
            note(f"{path}: left out {rows} whose document no ranking found")


def _read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return a table's headers, and its rows by these headers."""
    csv.field_size_limit(MAX_LINE_CHARACTERS)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, dialect=csv.excel_tab)
            rows = list(reader)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; save it as tabs in UTF-8") from None
    headers = list(reader.fieldnames or ())
    if not {*_HEADERS} <= {*headers}:
        raise UsageError(f"{path} must have the columns {', '.join(_HEADERS)}")
    return headers, rows


def _to_cells(pair: Pair) -> Pair:
    """Return a pair as the cells of a table: without tabs, line ends and double quotes."""
    query, text = (" ".join(text.replace('"', "'").split()) for text in pair)
    return query, text
