"""The rows of files as a search and an index take them: passages or lines of texts, rows of
tables.

This is the only module of the package that opens files of sentences or of vectors.
"""

import contextlib
import datetime
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa

from promptcli.data.column_choice import ColumnChoice
from promptcli.data.file_arguments import names_file, split_columns
from promptcli.data.given import check_ids, check_texts
from promptcli.data.input_files import STANDARD
from promptcli.data.layouts import (
    GRADED_PAIRS,
    ID,
    LABELLED_PAIRS,
    PAIRS,
    SENTENCES,
    TEXT,
    TRIPLETS,
)
from promptcli.data.rows import Rows, open_rows, sentences_of
from promptcli.data.vectors import Manifest, escape_name, holds_vectors, read_vectors
from promptcli.data.vectors.formats import BLOCK, Block, ParquetRows, as_floats
from promptcli.data.vectors.part_folder import PartFolder, is_part_folder
from promptcli.data.vectors.precision import PRECISIONS, unit
from promptcli.embedding.passages import AUTO, WAYS, Passage, has_passages, passages_of
from promptcli.errors import NotFoundError, UsageError, counted, one_line, unknown
from promptcli.retrieval.found_files import FoundFiles
from promptcli.retrieval.store import NewRows

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder

#: Our own columns; the front matter of a file does not change them.
_PLACE = {"file": "text", "line": "number", "end_line": "number", "heading": "text"}
#: Layouts whose sentences are compared.
_LAYOUTS = (TRIPLETS, PAIRS, LABELLED_PAIRS, GRADED_PAIRS, SENTENCES)
_BATCH = 4096  # passages in a block


@dataclass(frozen=True)
class Reading:
    """How files become rows; the same for all files of an index."""

    rows: str = AUTO  #: How texts are read, one of ``passages.WAYS``.
    text_field: str | None = None  #: Column of the sentence in tables.
    #: Column of the id; ``-`` for row numbers; None: ``id``, if there is one.
    id_field: str | None = None
    split: bool = False  #: Whether rows longer than the window are split.
    csv: dict[str, str] | None = None  #: How tables are written.

    def __post_init__(self) -> None:
        if self.rows not in WAYS:
            raise unknown("rows", self.rows, WAYS)


@dataclass
class SentenceFile:
    """An open file of sentences."""

    head: list[str]  #: its first texts, which show the language
    text_field: str | None  #: the column that is read
    id_field: str | None
    #: Returns its rows in blocks, without vectors.
    blocks: "Callable[[Encoder], Iterator[NewRows]]"


@contextlib.contextmanager
def open_given(
    sentences: Any,
    ids: Any,
    columns: Any,
    reading: Reading,
    fields: ColumnChoice | None = None,
    skip_bad: bool = False,
) -> Iterator[SentenceFile]:
    """Open a list of sentences with their ids and columns, a file of them, or a stream."""
    if is_list(sentences):
        rows = _given_rows(sentences, ids, columns)
        yield SentenceFile(list(rows.texts or ()), None, None, lambda encoder: iter([rows]))
        return
    if isinstance(sentences, str | Path) and Path(sentences).is_dir():
        raise UsageError(
            f"{sentences} is a folder; `promptcli index sync DIR {sentences}` indexes the files in"
            " it"
        )
    with open_sentences(sentences, reading, fields, skip_bad) as opened:
        yield opened


def is_list(sentences: Any) -> bool:
    """Return whether sentences are a list, rather than a file or a stream."""
    return not isinstance(sentences, str | Path) and not hasattr(sentences, "read")


def _given_rows(sentences: Any, ids: Any, columns: Any) -> NewRows:
    """Return the texts of a list as rows."""
    texts = check_texts(sentences)
    if not texts:
        raise UsageError("no sentences are given; give at least one")
    names = range(len(texts)) if ids is None else check_ids(ids)
    table: Mapping[str, Sequence[Any]] = {}
    if columns is not None:
        table = {str(name): list(columns[name]) for name in columns}
    for name, given in {"ids": names, **table}.items():
        if len(given) != len(texts):
            raise UsageError(
                f"{len(given):,} for {counted(len(texts), 'sentence')}; give one for each",
                parameter="ids" if name == "ids" else "columns",
            )
    typed_columns = {name: typed(_plain(values)) for name, values in table.items()}
    values = {name: cells for name, (_, cells) in typed_columns.items()}
    types = {name: kind for name, (kind, _) in typed_columns.items()}
    return NewRows(names, texts, columns=values, types=types, are_numbered=ids is None)


def _plain(values: Iterable[Any]) -> list[Any]:
    """Return values of NumPy and pandas as Python's; missing ones are None."""
    plain = [value.item() if hasattr(value, "item") else value for value in values]
    return [None if value is None or value != value or value == "" else value for value in plain]


@contextlib.contextmanager
def open_sentences(
    file: str | Path | BinaryIO,
    reading: Reading,
    fields: ColumnChoice | None = None,
    skip_bad: bool = False,
) -> Iterator[SentenceFile]:
    """Open a file of sentences, or a stream."""
    path, stdin = _path_and_stream(file)
    fields = replace(fields or ColumnChoice(reading.text_field, reading.id_field), cells=True)
    name, named = split_columns(str(path))
    if stdin is None and len(named) == 1 and fields.id is not None:
        path, fields = Path(name), replace(fields, text=named[0])
    with open_rows(path, fields, csv=reading.csv, skip_bad=skip_bad, stdin=stdin) as source:
        source, head = source.peek()

        def blocks(encoder: "Encoder") -> Iterator[NewRows]:
            if source.is_text and has_passages(head, path, reading.rows):
                lines = (text for batch in source for text in batch.column(TEXT).to_pylist())
                yield from passage_blocks(str(path), passages_of(lines, head, path, encoder))
                return
            for batch in source:
                columns, types = _columns(batch, source)
                ids = batch.column(ID)
                texts = batch.column(TEXT).to_pylist()
                numbered = ids.type == pa.int64()
                yield NewRows(
                    ids.to_pylist(), texts, columns=columns, types=types, are_numbered=numbered
                )

        chosen = source.columns
        yield SentenceFile(head, chosen.get(TEXT) or None, fields.id or chosen.get(ID), blocks)


def _columns(batch: Any, source: Rows) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Return the further columns of a batch and their types."""
    return {name: batch.column(name).to_pylist() for name in source.types}, dict(source.types)


def typed(cells: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return the type of a column that all cells of text have, and its values."""
    for kind, convert in _CONVERTERS.items():
        with contextlib.suppress(ValueError):
            return kind, [None if cell is None else convert(cell) for cell in cells]
    return "text", list(cells)


def _number(cell: Any) -> float:
    if isinstance(cell, str) and ("_" in cell or not any(map(str.isdigit, cell))):
        raise ValueError(cell)
    if isinstance(cell, str) and cell.strip().lstrip("-").isdecimal():
        return int(cell)
    number = float(cell)
    return int(number) if isinstance(cell, int) else number


def _truth(cell: Any) -> bool:
    text = str(cell).lower()
    if text not in ("true", "false"):
        raise ValueError(cell)
    return text == "true"


def _date(cell: Any) -> str:
    text = str(cell)
    if len(text) < 10:
        raise ValueError(cell)
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    return moment.isoformat(" ").removesuffix(" 00:00:00")


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "truth": _truth,
    "number": _number,
    "date": _date,
}


def passage_blocks(file: str, passages: Iterator[Passage]) -> Iterator[NewRows]:
    """Yield passages of a file as rows with their ids and places."""
    given: dict[str, int] = {}
    while block := list(itertools.islice(passages, _BATCH)):
        columns, types = place_columns(file, block)
        texts = [passage.text for passage in block]
        yield NewRows(place_ids(file, block, given), texts, columns=columns, types=types)


def place_columns(
    file: str, passages: Sequence[Passage], *, ends: bool = True
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Return the columns with the places of passages, or of lines, and the front matter."""
    columns: dict[str, list[Any]] = {
        "file": [escape_name(file)] * len(passages),
        "line": [passage.line for passage in passages],
    }
    types = dict(_PLACE)
    if ends:
        columns["end_line"] = [passage.end_line for passage in passages]
        columns["heading"] = [passage.heading or None for passage in passages]
    matter = [dict(passage.fields) for passage in passages]
    for name in dict.fromkeys(name for row in matter for name in row):
        if name not in (ID, TEXT, *_PLACE):
            types[name], columns[name] = typed([row.get(name) for row in matter])
    return columns, types


def place_ids(
    file: str, passages: Sequence[Passage], counts: dict[str, int] | None = None
) -> list[str]:
    """Return the ids of passages, ``FILE:FIRST-LAST``.

    If several are on the same lines, the id of the second ends in #2. ``counts`` holds how often
    each id was given, for further passages of the same file.
    """
    names = []
    seen = {} if counts is None else counts
    for passage in passages:
        last = "" if passage.end_line == passage.line else f"-{passage.end_line}"
        name = f"{escape_name(file)}:{passage.line}{last}"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def _path_and_stream(file: str | Path | BinaryIO) -> tuple[Path, BinaryIO | None]:
    if isinstance(file, str | Path):
        return Path(file), None
    return STANDARD, file


def is_query_file(query: str) -> bool:
    """Return whether a word is the name of a file of queries, rather than a sentence."""
    return names_file(query)


def queries_of(file: str | BinaryIO, text_field: str | None) -> Iterator[list[str]]:
    """Yield the sentences of a file of queries, in blocks."""
    if are_vectors(file):
        raise UsageError(f"{file} holds vectors, and queries are sentences")
    path, stdin = _path_and_stream(file)
    with open_rows(path, ColumnChoice(text_field), stdin=stdin) as source:
        for batch in source:
            yield batch.column(TEXT).to_pylist()


def read_compared(
    file: str | Path | BinaryIO, csv: Mapping[str, Any] | None, skip_bad: bool
) -> tuple[list[Any], list[str]]:
    """Return ids and texts of the sentences of a file, those of pairs and triplets too."""
    path, stdin = _path_and_stream(file)
    layouts = _LAYOUTS if stdin is None else (SENTENCES,)  # a stream is text
    fields = ColumnChoice(layouts=layouts, remedy="")
    ids, texts = [], []
    with open_rows(path, fields, csv=csv, skip_bad=skip_bad, stdin=stdin) as source:
        for batch in sentences_of(source):
            ids += batch.column(ID).to_pylist()
            texts += batch.column(TEXT).to_pylist()
    filled = [place for place, text in enumerate(texts) if text.strip()]
    return [ids[place] for place in filled], [texts[place] for place in filled]


# Files that are searched, or kept in an index of files


@dataclass(frozen=True)
class FileRows:
    """The rows of a file that are not blank, and all its lines."""

    lines: Sequence[str]  #: of a text, or the texts of a table
    rows: Sequence[Passage]
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)  #: the others of each row
    types: Mapping[str, str] = field(default_factory=dict)
    ids: Sequence[str] | None = None  #: of the rows of a table, if they were asked for

    def new_rows(self, file: str) -> NewRows:
        """Return the rows for an index of files."""
        ids = self.ids or place_ids(file, self.rows)
        texts = [row.text for row in self.rows]
        return NewRows(ids, texts, (), [file] * len(ids), self.columns, self.types)


@dataclass
class Reader:
    """Reads files in one way."""

    reading: Reading
    encoder: "Callable[[], Encoder]"  #: whose window passages fit
    skip_bad: bool = False  #: leave out the rows that cannot be read
    kinds: set[str] = field(default_factory=set)

    @property
    def unit(self) -> str:
        """What the rows that were read are called."""
        return next(iter(self.kinds)) if len(self.kinds) == 1 else "row"

    def read(self, file: str, *, in_folder: bool) -> FileRows:
        """Return the rows of a file, of the form that it has for every command."""
        path, named = split_columns(file)
        text_field = self.reading.text_field
        if len(named) == 1 and self.reading.id_field is not None:
            text_field, named = named[0], ()
        fields = ColumnChoice(text_field, self.reading.id_field, named=named, remedy="", cells=True)
        csv = self.reading.csv
        with open_rows(path, fields, csv=csv, skip_bad=self.skip_bad) as source:
            if source.is_text:
                return self._text(file, list(source.texts()))
            return self._table(source)

    def read_found(self, file: str, found: FoundFiles, *, in_folder: bool) -> FileRows | None:
        """Return the rows of a file; one of a folder that cannot be read is noted, and has None."""
        try:
            return self.read(file, in_folder=in_folder)
        except (UsageError, NotFoundError, OSError) as error:
            if not in_folder:
                raise
            if not isinstance(error, UsageError):  # it was removed in the meantime
                error = UsageError(f"{file}: {one_line(error, 100)}")
            found.unreadable[file] = error
            return None

    def _table(self, source: Rows) -> FileRows:
        table = pa.Table.from_batches(source)
        self.kinds.add("row")
        columns, types = _columns(table.combine_chunks().to_batches()[0], source)
        texts = table.column(TEXT).to_pylist()
        filled = [place for place, text in enumerate(texts) if text.strip()]
        rows = [_line(place + 1, texts[place]) for place in filled]
        kept = {name: [values[place] for place in filled] for name, values in columns.items()}
        ids = None
        if self.reading.id_field is not None:
            names = table.column(ID).to_pylist()
            ids = [str(names[place]) for place in filled]
        return FileRows(texts, rows, kept, types, ids)

    def _text(self, file: str, lines: list[str]) -> FileRows:
        has_ends = has_passages(lines, file, self.reading.rows)
        if has_ends:
            self.kinds.add("passage")
            rows = list(passages_of(lines, lines, file, self.encoder()))
        else:
            self.kinds.add("line")
            rows = [_line(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        columns, types = place_columns(file, rows, ends=has_ends)
        return FileRows(lines, rows, columns, types)


def _line(number: int, text: str) -> Passage:
    return Passage(number, number, "", text, text.strip())


# Files of vectors


def are_vectors(file: Any) -> bool:
    """Return whether a file, or a folder of Parquet parts, holds vectors."""
    if not isinstance(file, str | Path) or str(file) == str(STANDARD):
        return False
    path = Path(file)
    if path.is_dir():
        return is_part_folder(path) or any(each.suffix == ".parquet" for each in path.iterdir())
    return path.is_file() and holds_vectors(path)


def open_vectors(path: Path) -> tuple[Iterator[NewRows], Manifest | None, int]:
    """Return the rows of a file of vectors in blocks, without blank ones, who made them if that is
    known, and their width.
    """
    manifest: Manifest | None = None
    if path.is_dir():
        rows: ParquetRows
        if is_part_folder(path):
            parts = PartFolder(path)
            rows, manifest = parts, parts.manifest
        else:
            inside = (each for each in path.iterdir() if each.name[0] not in "._")
            rows = ParquetRows(sorted(each for each in inside if each.suffix == ".parquet"))
        return _vector_rows(rows.blocks()), manifest, rows.shape[1]
    vectors = read_vectors(path)
    if PRECISIONS[vectors.precision].packed:
        raise UsageError(f"{path} holds binary vectors; embed again as float32, float16 or int8")
    blank = np.zeros(len(vectors.matrix), bool)
    if vectors.manifest is not None:
        for start, stop in vectors.manifest.report.blank_rows or ():
            blank[start:stop] = True

    def blocks() -> Iterator[Block]:
        for start in range(0, len(vectors.matrix), BLOCK):
            part = slice(start, start + BLOCK)
            texts = None if vectors.texts is None else vectors.texts[part]
            yield Block(vectors.matrix[part], vectors.ids[part], texts, start, blank[part])

    return _vector_rows(blocks()), vectors.manifest, vectors.matrix.shape[1]


def _vector_rows(blocks: Iterable[Block]) -> Iterator[NewRows]:
    for block in blocks:
        units = unit_rows(block.vectors, f"rows from {block.row}")
        kept = np.ones(len(units), bool)
        if block.texts is not None:
            kept = np.array([bool(text.strip()) for text in block.texts])
        elif block.blank is not None:
            kept = ~block.blank
        texts = None if block.texts is None else list(block.texts)
        rows = NewRows(block.ids, texts, vectors=units, are_numbered=isinstance(block.ids, range))
        yield rows.take(np.flatnonzero(kept).tolist())


def unit_rows(vectors: Any, name: str = "rows") -> Any:
    """Return vectors (n, d) scaled to length 1; zero vectors stay so."""
    floats = as_floats(np.asarray(vectors))
    wrong = np.flatnonzero(~np.isfinite(floats).all(axis=1))
    if len(wrong):
        raise UsageError(f"{name}: vector {wrong[0]} holds a NaN or an infinity; embed again")
    return unit(floats)
