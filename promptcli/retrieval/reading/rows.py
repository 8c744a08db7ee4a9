"""Rows of files, pipes and URLs as Arrow batches: text, CSV, TSV, JSON lines and Parquet.

Row i is line i.

A batch of sentences has the columns ``text`` and ``id``: the file's own ids as text, or the numbers
of the rows; and ``cells``, the file's other columns, if they are wanted. Batches of another layout
(see ``layouts``) have its columns, all of them text.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from promptcli.data.parquet_files import RecordBatch
from promptcli.errors import UsageError
from promptcli.notes import note
from promptcli.retrieval.reading.bad_lines import REFUSED, BadRows
from promptcli.retrieval.reading.column_choice import ColumnChoice, Tell
from promptcli.retrieval.reading.column_forms import ColumnForms
from promptcli.retrieval.reading.dialect import Dialect
from promptcli.retrieval.reading.file_arguments import extension_of, split_columns
from promptcli.retrieval.reading.input_files import (
    STANDARD,
    Text,
    check_file,
    is_remote,
    open_file,
    open_text,
)
from promptcli.retrieval.reading.input_formats import (
    BinaryFormat,
    binary_format_of,
    dialect_of,
    extensions,
    line_format,
)
from promptcli.retrieval.reading.layouts import ID, NUMERIC, PAIRS, TEXT, Columns
from promptcli.retrieval.reading.line_readers import with_all_negatives, with_title
from promptcli.retrieval.reading.row_batches import (
    OpenFile,
    Rows,
    batches_of,
    batches_of_texts,
    display_name,
)


@contextlib.contextmanager
def open_rows(
    path: str | Path,
    fields: ColumnChoice = ColumnChoice(),  # noqa: B008
    *,
    stdin: BinaryIO | None = None,
    skip_blank: bool = False,
    tell: Tell = note,
    bad: BadRows = REFUSED,
) -> Iterator[Rows]:
    """Open a file and read its first batch, so that a wrong file or field is known before any work
    is done.

    Args:
        path: A file or URL in the format of its extension (see ``input_formats``), or
            ``-``; also ``FILE:COLUMN``.
        fields: Which columns are read.
        stdin: Read if the path is ``-``: a table or JSON if a field is named, else plain text.
        skip_blank: Leave out empty sentences and number the others.
        tell: Gets what is guessed.
        bad: Gets the rows that cannot be read.
    """
    path, named = split_columns(str(path))
    if named:
        fields = dataclasses.replace(fields, named=named)
    if path != str(STANDARD):
        stdin = None
    with open_from(path, fields, stdin, tell=tell, bad=bad) as rows:
        yield numbered_rows(rows, skip_blank=skip_blank)


def numbered_rows(rows: Rows, *, skip_blank: bool = False) -> Rows:
    """Return rows whose first batch is read, with numbers if they have no ids; refuse an empty
    file.
    """
    batches = rows.batches
    if skip_blank:
        import pyarrow.compute as pc

        trimmed = ((batch, pc.utf8_trim_whitespace(batch.column(TEXT))) for batch in rows.batches)
        batches = filter(len, (batch.filter(pc.not_equal(texts, "")) for batch, texts in trimmed))
    if TEXT in rows.columns:
        batches = with_row_numbers(batches)
    first = next(batches, None)
    if first is None:
        raise UsageError(f"{display_name(rows.name)} is empty; give a file with at least one row")
    return dataclasses.replace(rows, batches=itertools.chain([first], batches))


def sentences_of(rows: Rows) -> Rows:
    """Return the sentences in all columns of pairs and triplets, with the ids ``ROW:COLUMN``, rows
    counted from 0; rows of sentences alone are returned unchanged.
    """
    if TEXT in rows.columns:
        return rows
    columns = {role: name for role, name in rows.columns.items() if role not in (ID, *NUMERIC)}
    batches = _sentence_batches(rows.batches, columns)
    return dataclasses.replace(rows, columns={TEXT: ""}, batches=batches)


def _sentence_batches(batches: Iterator[RecordBatch], columns: Columns) -> Iterator[RecordBatch]:
    """Yield batches of the sentences in these columns of others, row after row."""
    import pyarrow as pa

    names = list(columns.values())
    start = 0
    for batch in batches:
        texts_of_columns = [batch.column(role).to_pylist() for role in columns]
        texts = list[str]()
        ids = list[str]()
        for number, texts_of_row in enumerate(zip(*texts_of_columns, strict=True), start):
            texts += texts_of_row
            ids += [f"{number}:{name}" for name in names]
        yield pa.record_batch({TEXT: pa.array(texts, pa.string()), ID: pa.array(ids, pa.string())})
        start += len(batch)


# From the bytes of one file to its batches


@contextlib.contextmanager
def open_from(
    path: str | Path,
    fields: ColumnChoice,
    stdin: BinaryIO | None = None,
    *,
    start: int = 0,
    tell: Tell = note,
    bad: BadRows = REFUSED,
) -> Iterator[Rows]:
    """Open the rows of a file from row ``start`` on, without ids if it has none.

    ``tell`` gets what is guessed.
    """
    with recognise(path, fields, stdin, tell=tell, bad=bad) as file, file.rows(start) as rows:
        yield rows


@dataclass(frozen=True)
class RecognisedFile(OpenFile):
    """An open file whose format is known, by its name and its head; its rows can be walked once."""

    binary: BinaryFormat | None  #: None if it has lines
    text: Text | None  #: its lines
    dialect: Dialect | None  #: how they are written
    is_stored: bool  #: whether it can be read again, as a pipe and a URL cannot

    @property
    def is_text(self) -> bool:
        """Whether it is a text, of lines or passages, rather than a table."""
        return self.dialect is not None and line_format(self.dialect.format).is_text

    @property
    def is_told_by_head(self) -> bool:
        """Whether its name does not say its format."""
        return self.binary is None and extension_of(self.path)[0] not in extensions()

    @contextlib.contextmanager
    def rows(self, start: int = 0) -> Iterator[Rows]:
        """Yield its rows from row ``start`` on, without ids if it has none."""
        if self.binary is not None:
            with self.binary.open(self, start) as rows:
                yield rows
        elif self.text is not None and self.dialect is not None:
            yield self._of_lines(self.text, self.dialect, start)

    def _of_lines(self, text: Text, dialect: Dialect, start: int) -> Rows:
        name, fields, tell, bad = self.name, self.fields, self.tell, self.bad
        if not text.head:
            return Rows(str(self.path), {}, iter(()), text.sha256, lambda: 0)
        form = line_format(dialect.format)
        lines = itertools.islice(text.lines, dialect.skipped, None)
        forms = ColumnForms(dialect.delimiter if form.is_delimited else None)
        if form.read is None:
            columns = fields.choose(None, name, dialect, tell)
            texts = itertools.islice(lines, start, None)
            batches = batches_of_texts(texts, start + 1, columns, fields.cells, name, bad)
        else:
            header, rows = form.read(lines, dialect, name, tell, bad)
            names = set(header or ())
            if form.joins_titles and {"_id", "title", TEXT} <= names:
                if fields.text in (None, TEXT):
                    tell(f"{name}: a BEIR corpus; title and text are read as one")
                    rows = (
                        (number, row and {**row, TEXT: with_title(row)}) for number, row in rows
                    )
            columns = fields.choose(header, name, dialect, tell)
            if form.has_objects and header is not None and PAIRS[0] in columns and not fields.named:
                rows = with_all_negatives(rows, header, name, bad)
            wanted = itertools.islice(rows, start, None)
            batches = batches_of(wanted, columns, fields.cells, name, bad, forms)

        def total() -> int | None:
            if not self.is_stored or not text.plain or form.count is None:
                return None
            above = dialect.skipped + (form.is_delimited and not dialect.header)
            return max(form.count(Path(self.path), dialect) - above, 0)

        return Rows(str(self.path), columns, batches, text.sha256, total, forms, form.is_text)


@contextlib.contextmanager
def recognise(
    path: str | Path,
    fields: ColumnChoice,
    stdin: BinaryIO | None = None,
    *,
    tell: Tell = note,
    bad: BadRows = REFUSED,
) -> Iterator[RecognisedFile]:
    """Open a file and tell its format by its name and its head: text or table, in what dialect.

    Whatever reads files of sentences asks here, so that a file is the same to all.
    """
    binary = binary_format_of(path)
    if binary is not None and not is_remote(path):
        check_file(Path(path), regular=True)
    with contextlib.nullcontext(stdin) if stdin is not None else open_file(path) as file:
        is_stored = stdin is None and not is_remote(path) and Path(path).is_file()
        text = None
        dialect = None
        if binary is None:
            name = display_name(path)
            text = open_text(file, name, extension_of(path)[1], tell, bad)
            dialect = dialect_of(path, text, fields, name, tell) if text.head else Dialect("text")
        yield RecognisedFile(path, file, fields, tell, bad, binary, text, dialect, is_stored)


def with_row_numbers(batches: Iterator[RecordBatch], row: int = 0) -> Iterator[RecordBatch]:
    """Yield batches of sentences with the numbers of the rows as ids if they have none."""
    import numpy as np
    import pyarrow as pa

    for batch in batches:
        if ID in batch.schema.names:
            yield batch
        else:
            numbers = pa.py_buffer(np.arange(row, row + len(batch)))
            yield batch.append_column(
                ID, pa.Array.from_buffers(pa.int64(), len(batch), [None, numbers])
            )
        row += len(batch)
