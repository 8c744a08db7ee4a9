"""Lists and files as new rows: passages or lines of texts, rows of tables, vectors.

Only this module of the package opens files of sentences or vectors.
"""

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from promptcli.data.arguments import as_ids, as_texts
from promptcli.data.cells import CellReader, type_of
from promptcli.data.csv_options import CsvOptions
from promptcli.data.input_files import STANDARD
from promptcli.data.layouts import ID, TEXT, ColumnChoice
from promptcli.data.rows import ROW, Rows, open_rows
from promptcli.data.vectors.formats import Manifest, escape_name, holds_vectors, read_vectors
from promptcli.data.vectors.parquet import BLOCK_ROWS, Block, ParquetRows
from promptcli.data.vectors.part_folder import PartFolder, is_part_folder
from promptcli.data.vectors.precision import PRECISIONS
from promptcli.embedding.passages import AUTO, WAYS, Passage, has_passages, passages_of
from promptcli.embedding.splitting import check_whole
from promptcli.errors import UsageError, unknown_name_error, with_count
from promptcli.retrieval.new_rows import NewRows, unit_rows

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder

#: The end of the id of a row of a file: its first and last line, and the numbers of parts.
LINES_IN_ID = re.compile(r":(\d+)(?:-(\d+))?(?:#\d+)*$")
#: Our own columns and their types; a file's front matter cannot replace them.
_PLACE_TYPES = {"file": "text", "line": "number", "end_line": "number", "heading": "text"}
_PASSAGES_PER_BLOCK = 4096


@dataclass(frozen=True)
class Reading:
    """How files become rows; the same for all files of an index."""

    rows: str = AUTO  #: How texts are split, one of ``passages.WAYS``.
    text_field: str | None = None  #: Column of the sentence in tables.
    #: Column of the id; ``-`` for row numbers; None: ``id``, if there is one.
    id_field: str | None = None
    split: bool = False  #: Whether rows longer than the window are split.
    csv: dict[str, str] | None = None  #: How tables are written.

    def __post_init__(self) -> None:
        if self.rows not in WAYS:
            raise unknown_name_error("unit of rows", self.rows, WAYS)


@dataclass
class SentenceFile:
    """An open file of sentences, or a list of them."""

    text_field: str | None  #: the column that is read
    id_field: str | None
    #: Returns its rows in blocks, without vectors.
    blocks: "Callable[[Encoder], Iterator[NewRows]]"


@contextlib.contextmanager
def open_sentences(
    sentences: Any,
    ids: Any,
    columns: Any,
    reading: Reading,
    fields: ColumnChoice | None = None,
    skip_bad: bool = False,
) -> Iterator[SentenceFile]:
    """Open a list of sentences with their ids and columns, a file, or a stream.

    ``fields`` chooses the columns to read of a file; None: the choice of ``reading``.
    """
    if is_list(sentences):
        rows = _listed_rows(sentences, ids, columns)
        if reading.split:
            check_whole(rows.ids)
        yield SentenceFile(None, None, lambda encoder: iter([rows]))
        return
    if isinstance(sentences, str | Path) and Path(sentences).is_dir():
        raise UsageError(
            f"{sentences} is a folder; `promptcli index sync DIR {sentences}` indexes the files in"
            " it"
        )
    fields = fields or ColumnChoice(reading.text_field, reading.id_field)
    fields = replace(fields, cells=True)
    with open_rows(sentences, fields, csv=reading.csv, skip_bad=skip_bad) as source:

        def blocks(encoder: "Encoder") -> Iterator[NewRows]:
            if source.is_text and has_passages(source.first_texts, source.name, reading.rows):
                return _placed_rows(
                    str(sentences), passages_of(source.texts(), source.name, encoder)
                )
            return _table_rows(source, reading)

        text_field = source.columns.get(TEXT) or None
        yield SentenceFile(text_field, fields.id or source.columns.get(ID), blocks)


def is_list(sentences: Any) -> bool:
    """Return whether sentences are a list, rather than a file or a stream."""
    return not isinstance(sentences, str | Path) and not hasattr(sentences, "read")


def _listed_rows(sentences: Any, ids: Any, columns: Any) -> NewRows:
    """Return the texts of a list as rows."""
    texts = as_texts(sentences)
    if not texts:
        raise UsageError("the list of sentences is empty")
    row_ids = range(len(texts)) if ids is None else as_ids(ids)
    table: dict[str, list[Any]] = {}
    if not (columns is None or isinstance(columns, Mapping) or hasattr(columns, "columns")):
        raise UsageError(
            "must be a dictionary of names and lists of values, or a DataFrame, got"
            f" {columns!r:.40}",
            parameter="columns",
        )
    for name in () if columns is None else columns:
        # NumPy's and pandas' values become Python's
        table[str(name)] = [
            value.item() if hasattr(value, "item") else value for value in columns[name]
        ]
    for name, values in {"ids": row_ids, **table}.items():
        if len(values) != len(texts):
            raise UsageError(
                f"has {len(values):,} values for {with_count(len(texts), 'sentence')}",
                parameter="ids" if name == "ids" else "columns",
            )
    # blank sentences are left out, so their ids do not count
    counts = Counter(str(name) for name, text in zip(row_ids, texts, strict=True) if text.strip())
    for name, count in counts.items():
        if count > 1:
            raise UsageError(
                f"the id {name!r} is given twice; give each sentence its own", parameter="ids"
            )
    cells, types = _read_cells(table, are_texts=False)
    return NewRows(row_ids, texts, columns=cells, types=types, are_numbered=ids is None)


def _read_cells(
    columns: Mapping[str, Sequence[Any]], *, are_texts: bool
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Return columns with the parsed values of their cells, and their types."""
    reader = CellReader(CsvOptions(), are_texts=are_texts)
    types: dict[str, str] = {}
    values: dict[str, list[Any]] = {}
    for name, cells in columns.items():
        types[name] = type_of(reader.kinds(cells))
        values[name] = [reader.value(types[name], cell) for cell in cells]
    return values, types


def _table_rows(
    source: Rows, reading: Reading, file: str | None = None, *, keep_ids: bool = False
) -> Iterator[NewRows]:
    """Yield the rows of a table or the lines of a text.

    For one of several files, its name is ``file``; rows without text are then left out, and the ids
    are FILE:ROW unless ``reading`` names a column of ids. See ``read_file`` for ``keep_ids``.
    """
    for batch in source:
        ids = batch[ID]
        columns = {name: batch[name] for name in source.types}
        if file is not None and reading.id_field is None:
            ids = [f"{escape_name(file)}:{number + 1}" for number in batch[ROW]]
            if keep_ids and ID in source.columns:
                columns[ID] = batch[ID]
        elif reading.split:
            check_whole(ids)
        rows = NewRows(ids, batch[TEXT], columns=columns, types=source.types)
        if file is None:
            rows.are_numbered = ID not in source.columns
        else:
            rows.texts = [text.strip() for text in rows.texts]
            rows = rows.drop_blank()
        yield rows


def read_file(
    file: str,
    reading: Reading,
    encoder: "Encoder",
    skip_bad: bool = False,
    *,
    keep_ids: bool = False,
) -> list[NewRows]:
    """Return the rows with text of one of several files, in blocks.

    Args:
        file: A file, or ``FILE:COLUMN``.
        reading: How the file becomes rows. Unless it names a column of ids, they are FILE:LINE.
        encoder: The encoder whose window limits passages.
        skip_bad: Leave out the rows that cannot be read.
        keep_ids: Whether a table's own column of ids becomes the column ``id`` of the rows.
    """
    fields = ColumnChoice(reading.text_field, reading.id_field, remedy="", cells=True)
    with open_rows(file, fields, csv=reading.csv, skip_bad=skip_bad) as source:
        if not source.is_text:
            blocks = _table_rows(source, reading, file, keep_ids=keep_ids)
        elif has_passages(source.first_texts, source.name, reading.rows):
            blocks = _placed_rows(file, passages_of(source.texts(), source.name, encoder))
        else:
            lines = (
                Passage(number, number, "", text, text.strip())
                for number, text in enumerate(source.texts(), 1)
                if text.strip()
            )
            blocks = _placed_rows(file, lines, are_lines=True)
        return [replace(rows, source=file) for rows in blocks]


def _placed_rows(
    file: str, passages: Iterator[Passage], *, are_lines: bool = False
) -> Iterator[NewRows]:
    """Yield passages or lines of a file as rows, with the ids ``FILE:FIRST-LAST`` and columns for
    their places and the front matter.

    If several passages are on the same lines, the second id ends in #2.
    """
    file = escape_name(file)
    repeats: Counter[str] = Counter()
    while block := list(itertools.islice(passages, _PASSAGES_PER_BLOCK)):
        ids = []
        front_matter: dict[str, list[Any]] = {}
        for index, passage in enumerate(block):
            row_id = f"{file}:{passage.line}"
            if passage.end_line != passage.line:
                row_id += f"-{passage.end_line}"
            repeats[row_id] += 1
            ids.append(row_id if repeats[row_id] == 1 else f"{row_id}#{repeats[row_id]}")
            for name, value in passage.fields.items():
                if name not in (ID, TEXT, *_PLACE_TYPES):
                    front_matter.setdefault(name, [None] * len(block))[index] = value
        columns: dict[str, Sequence[Any]] = {
            "file": [file] * len(block),
            "line": [passage.line for passage in block],
        }
        if not are_lines:
            columns["end_line"] = [passage.end_line for passage in block]
            columns["heading"] = [passage.heading or None for passage in block]
        cells, types = _read_cells(front_matter, are_texts=True)
        columns |= cells
        types |= _PLACE_TYPES
        yield NewRows(ids, [passage.text for passage in block], columns=columns, types=types)


def queries_of(file: str | BinaryIO, text_field: str | None) -> Iterator[list[str]]:
    """Yield the sentences of a file of queries, in blocks."""
    if are_vectors(file):
        raise UsageError(f"{file} holds vectors, but queries must be sentences")
    with open_rows(file, ColumnChoice(text_field)) as source:
        for batch in source:
            yield list(batch[TEXT])


def are_vectors(file: Any) -> bool:
    """Return whether a file, or a folder of Parquet parts, holds vectors."""
    if not isinstance(file, str | Path) or str(file) == str(STANDARD):
        return False
    path = Path(file)
    if path.is_dir():
        return is_part_folder(path) or any(child.suffix == ".parquet" for child in path.iterdir())
    return path.is_file() and holds_vectors(path)


def open_vectors(path: Path) -> tuple[Iterator[NewRows], Manifest | None, int]:
    """Open a file of vectors, or a folder of Parquet parts.

    Returns:
        The rows in blocks, without blank rows; the manifest, if there is one; the vectors' width.
    """
    manifest: Manifest | None = None
    if path.is_dir():
        rows: ParquetRows
        if is_part_folder(path):
            rows = folder = PartFolder(path)
            manifest = folder.manifest
        else:
            files = sorted(child for child in path.iterdir() if child.suffix == ".parquet")
            rows = ParquetRows([file for file in files if file.name[0] not in "._"])
        return _vector_rows(rows.blocks()), manifest, rows.shape[1]
    vectors = read_vectors(path)
    if PRECISIONS[vectors.precision].is_packed:
        raise UsageError(f"{path} holds binary vectors; embed again as float32, float16 or int8")
    blank = np.zeros(len(vectors.matrix), bool)
    if vectors.manifest is not None:
        for start, stop in vectors.manifest.report.blank_rows or ():
            blank[start:stop] = True

    def blocks() -> Iterator[Block]:
        for start in range(0, len(vectors.matrix), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            texts = None if vectors.texts is None else vectors.texts[rows]
            yield Block(vectors.matrix[rows], vectors.ids[rows], texts, start, blank[rows])

    return _vector_rows(blocks()), vectors.manifest, vectors.matrix.shape[1]


def _vector_rows(blocks: Iterable[Block]) -> Iterator[NewRows]:
    for block in blocks:
        units = unit_rows(block.vectors, f"rows from {block.row}")
        is_filled = np.ones(len(units), bool)
        if block.texts is not None:
            is_filled = np.array([bool(text.strip()) for text in block.texts])
        elif block.blank is not None:
            is_filled = ~block.blank
        texts: Sequence[Any] = block.texts or [None] * len(units)
        rows = NewRows(block.ids, texts, vectors=units, are_numbered=isinstance(block.ids, range))
        yield rows.take(np.flatnonzero(is_filled).tolist())
