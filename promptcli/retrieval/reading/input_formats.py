"""Formats of input files: a row says how files are recognised, and how their rows are read."""

import csv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from promptcli.extensions import Table
from promptcli.retrieval.reading.bad_lines import BadRows
from promptcli.retrieval.reading.column_choice import ColumnChoice, Tell
from promptcli.retrieval.reading.dialect import Dialect
from promptcli.retrieval.reading.file_arguments import PROSE, extension_of
from promptcli.retrieval.reading.input_files import (
    LONGEST_LINE,
    STANDARD,
    Text,
    count_lines,
    has_quotes,
)
from promptcli.retrieval.reading.layouts import SENTENCES
from promptcli.retrieval.reading.line_readers import (
    NumberedRows,
    read_array,
    read_json_lines,
    read_table,
)
from promptcli.retrieval.reading.parquet_rows import open_parquet_rows
from promptcli.retrieval.reading.row_batches import OpenFile, Rows
from promptcli.retrieval.reading.sniffing import (
    Look,
    recognise_array,
    recognise_json_lines,
    recognise_table,
)
from promptcli.retrieval.reading.xlsx import open_workbook_rows

#: Takes the lines of a file (without those above a table), its dialect, its name, and who gets
#: guesses and rows that cannot be read; returns the columns, None without names, and the rows.
LineReader = Callable[
    [Iterator[str], Dialect, str, Tell, BadRows], tuple[list[str] | None, NumberedRows]
]


@dataclass(frozen=True)
class LineFormat:
    """A format of lines of text, compressed or not."""

    read: LineReader | None  #: None: a line is a text
    extensions: tuple[str, ...] = ()  #: in small letters, with their point
    #: Returns the dialect of a file; None if it is in another format. It is asked of files with
    #: these extensions, then (``Look.by_name`` is false) of all that no row has recognised.
    #: Without it the extensions decide.
    recognise: Callable[[Look], Dialect | None] | None = None
    is_text: bool = False  #: whether rows are its passages or lines, rather than those of a table
    #: whether a row has its own columns, as an object has, rather than those of the first row
    has_objects: bool = False
    #: whether rows are cells between the dialect's delimiters, under a line of names
    is_delimited: bool = False
    joins_titles: bool = False  #: whether a BEIR corpus is written so, with titles beside texts
    #: counts the rows of a plain file, header and blank lines included; None: that takes long
    count: Callable[[Path, Dialect], int] | None = None


@dataclass(frozen=True)
class BinaryFormat:
    """A format that is not text, of tables; its files are recognised by their extensions."""

    open: Callable[[OpenFile, int], AbstractContextManager[Rows]]  #: the rows from a number on
    extensions: tuple[str, ...]


def _count_lines(path: Path, dialect: Dialect) -> int:
    return count_lines(path)


def _count_table_rows(path: Path, dialect: Dialect) -> int:
    """Return the number of rows of a plain file; a quoted cell may have lines."""
    if dialect.quoted and has_quotes(path):
        csv.field_size_limit(LONGEST_LINE)
        with path.open(
            encoding="latin-1", newline=""
        ) as lines:  # which decodes any byte, and quotes as themselves
            return sum(1 for _ in csv.reader(lines, delimiter=dialect.delimiter))
    return count_lines(path)


#: Text first: a file that no other row recognises is text.
INPUT_FORMATS: Table[LineFormat | BinaryFormat] = Table(
    "input_formats_of_indexes",
    {
        "text": LineFormat(None, extensions=PROSE, is_text=True, count=_count_lines),
        "array": LineFormat(
            read_array,
            extensions=(".json", ".jsonl", ".ndjson"),
            recognise=recognise_array,
            has_objects=True,
        ),
        "jsonl": LineFormat(
            read_json_lines,
            extensions=(".jsonl", ".ndjson", ".json"),
            recognise=recognise_json_lines,
            has_objects=True,
            joins_titles=True,
            count=_count_lines,
        ),
        "table": LineFormat(
            read_table,
            extensions=(".csv", ".tsv"),
            recognise=recognise_table,
            is_delimited=True,
            count=_count_table_rows,
        ),
        "parquet": BinaryFormat(open_parquet_rows, extensions=(".parquet",)),
        "xlsx": BinaryFormat(open_workbook_rows, extensions=(".xlsx",)),
    },
)


def extensions() -> set[str]:
    """Return the extensions of all formats; any other extension is recognised by its head."""
    return {extension for _, row in INPUT_FORMATS.scan() for extension in row.extensions}


def binary_format_of(path: str | Path) -> BinaryFormat | None:
    """Return the format of a file that is not text, by its extension; None if it is text."""
    extension = extension_of(path)[0]
    for name, row in INPUT_FORMATS.scan():
        if isinstance(row, BinaryFormat) and extension in row.extensions:
            INPUT_FORMATS[name]  # counts as used
            return row
    return None


def line_format(name: str) -> LineFormat:
    """Return the row of a dialect's format."""
    row = INPUT_FORMATS[name]
    assert isinstance(row, LineFormat)
    return row


def dialect_of(
    path: str | Path, text: Text, fields: ColumnChoice, name: str, tell: Tell
) -> Dialect:
    """Return the dialect of a file: by its extension, and by its head.

    ``tell`` gets what is not plain.
    """
    extension = extension_of(path)[0]
    if str(path) == str(STANDARD) and (
        fields.text or fields.id or fields.named or fields.layouts != (SENTENCES,)
    ):
        extension = ".jsonl" if text.head.lstrip()[:1] in ("{", "[") else ".csv"
    for by_name in (True, False):
        look = Look(text, fields, name, tell, extension, by_name)
        for key, row in INPUT_FORMATS.scan():
            if isinstance(row, BinaryFormat) or (extension in row.extensions) != by_name:
                continue
            dialect = None
            if row.recognise is not None:
                dialect = row.recognise(look)
            elif by_name:
                dialect = Dialect(key)
            if dialect is not None:
                return dialect
    return Dialect("text")
