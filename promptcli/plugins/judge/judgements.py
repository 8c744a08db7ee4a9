"""Grades of documents for queries, each appended to a file at once."""

import csv
import json
import os
from collections.abc import Iterable
from pathlib import Path

from promptcli.data.input_files import LONGEST_LINE
from promptcli.errors import CheckFailedError, UsageError, with_count
from promptcli.notes import note
from promptcli.storage.files import write_text

#: A person's word for a document -> its grade.
GRADES = {"right": 2, "partly": 1, "wrong": 0}
_HEADERS = ("grade", "query", "document")

Pair = tuple[str, str]  #: a query and a document, by their texts


class Judgements:
    """Grades by pair, in order; a kill can lose only the file's last line."""

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
                self._take((query, text), grade)
            except (ValueError, TypeError, KeyError):
                raise CheckFailedError(f"{path}: line {number} is damaged; delete it") from None
        self._length = len(complete)

    def _take(self, pair: Pair, grade: int | None) -> None:
        self.grades.pop(pair, None)
        if grade is not None:
            self.grades[pair] = grade

    def add(self, pair: Pair, grade: int | None) -> None:
        """Store a grade; None withdraws it."""
        line = json.dumps([*pair, grade]).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.seek(self._length)
            file.truncate()  # removes a line cut by a kill
            file.write(line)
            file.flush()
            os.fsync(descriptor)
        self._length += len(line)
        self._take(pair, grade)

    def undo(self) -> None:
        """Withdraw the last grade, if any."""
        if self.grades:
            self.add(next(reversed(self.grades)), None)

    def write_template(self, path: Path, pairs: Iterable[Pair]) -> int:
        """Write a table of pairs with an empty first column to fill in, or add missing pairs to it;
        pairs that look the same share a row.

        Return the number of new rows.
        """
        headers, content, there = [*_HEADERS], "\t".join(_HEADERS) + "\n", set[Pair]()
        if path.exists():
            headers, rows = _rows(path)
            there = {(row["query"], row["document"]) for row in rows}
            content = path.read_bytes().decode()
            if not content.endswith("\n"):
                content += "\n"
        new = dict.fromkeys(cells for cells in map(_cells, pairs) if cells not in there)
        for cells in new:
            row = dict(zip(_HEADERS, ("", *cells), strict=True))
            content += "\t".join(row.get(header, "") for header in headers) + "\n"
        if new:
            write_text(path, content)
        return len(new)

    def read_template(self, path: Path, pairs: Iterable[Pair]) -> None:
        """Store the grades of a table by ``write_template``; empty grades stay open."""
        named: dict[Pair, list[Pair]] = {}
        for pair in pairs:
            named.setdefault(_cells(pair), []).append(pair)
        others = 0
        for number, row in enumerate(_rows(path)[1], 2):
            written = (row["grade"] or "").strip().lower()
            if not written:
                continue
            if written not in GRADES:
                allowed = ", ".join(GRADES)
                raise UsageError(f"{path}: row {number}: grade {written!r}; write {allowed}")
            same = named.get((row["query"], row["document"]), [])
            if not same:
                others += 1
            for pair in same:
                if self.grades.get(pair) != GRADES[written]:
                    self.add(pair, GRADES[written])
        if others:
            note(f"{path}: {with_count(others, 'row')} of no hit of this comparison left out")


def _rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return a table's column names, and its rows by these names."""
    csv.field_size_limit(LONGEST_LINE)
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


def _cells(pair: Pair) -> Pair:
    """Return a pair as the cells of a table."""
    query, text = pair
    return _on_one_line(query), _on_one_line(text)


def _on_one_line(cell: str) -> str:
    """Return a text without tabs and line ends, as a table's cell."""
    return " ".join(cell.replace('"', "'").split())
