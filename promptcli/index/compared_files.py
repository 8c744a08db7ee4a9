"""The files of two sets of sentences that are compared: read, their texts compared, and encoded.

See ``leakage``.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from promptcli.data.bad_lines import BadRows
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.file_arguments import split_columns
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
from promptcli.data.parquet_files import RecordBatch
from promptcli.data.row_batches import Rows
from promptcli.data.rows import open_rows, sentences_of
from promptcli.data.vectors.formats import Floats
from promptcli.errors import UsageError
from promptcli.index.basics import INDEX_MANIFEST
from promptcli.index.inputs import spool
from promptcli.index.leakage import ComparedRows, TextSet
from promptcli.index.vector_index import VectorIndex
from promptcli.models import loading as encoders
from promptcli.models.language_choice import model_for
from promptcli.notes import note

if TYPE_CHECKING:
    from promptcli.models.loading import Model

#: Layouts whose sentences are compared.
_LAYOUTS = (TRIPLETS, PAIRS, LABELLED_PAIRS, GRADED_PAIRS, SENTENCES)
_FAST = "mini-static"  # the model for English if none is named
_SAMPLE = 1000  # texts of each file that show the language

Given = str | Path | BinaryIO


def note_if_same(first: Given, second: Given) -> None:
    """Say of two names of one file that it is compared with itself; refuse one stream as both."""
    if not isinstance(first, str | Path) or not isinstance(second, str | Path):
        if first is second:
            raise UsageError("standard input is one file; give the name of the other")
        return
    names = [split_columns(str(name)) for name in (first, second)]
    same_columns = names[0][1] == names[1][1]
    if same_columns and all(os.path.exists(name) for name, _ in names):
        if os.path.samefile(names[0][0], names[1][0]):
            note(f"{first} is compared with itself: every row occurs in it")


def read_set(file: Given, bad: BadRows) -> TextSet:
    """Return the texts of a file, without blank ones."""
    kept = list[RecordBatch]()
    with _open(file, bad) as rows:
        for batch in rows:
            texts = batch.column(TEXT).to_pylist()
            is_text = pa.array([bool(text.strip()) for text in texts], pa.bool_())
            kept.append(batch.select([ID, TEXT]).filter(is_text))
    table = pa.Table.from_batches(kept)
    return TextSet(table.column(ID), table.column(TEXT))


def compare_texts(
    file: Given, source: TextSet, bad: BadRows
) -> tuple[ComparedRows, list[RecordBatch]]:
    """Compare the texts of a file with those of a set, and return the rows that have no equal."""
    compared = ComparedRows(source)
    with _open(file, bad) as rows:
        rest = list(compared.without_equals(rows))
    return compared, rest


def encode_both(
    model: "Model | None", source: TextSet, rest: list[RecordBatch]
) -> tuple[VectorIndex, Iterator[Floats]]:
    """Return an index of the distinct texts of a set, and the vectors of the rows that have no
    equal in it.
    """
    texts = source.texts.take(pa.array(source.distinct))
    ids = pa.array(range(len(texts)), pa.int64())
    distinct = pa.table({ID: ids, TEXT: texts})
    head = [*_first_texts(distinct), *_first_texts(rest[0])]
    chosen = model_for(model, head, default=_FAST)
    count = sum(map(len, rest))
    encoder = encoders.open_encoder(chosen, dtype="auto", rows=len(distinct) + count)
    documents = encoder.in_role("document", report=True)
    vectors_of_set = spool(documents, distinct.to_batches(), None, len(distinct), "embed")
    index = VectorIndex.build(vectors_of_set)
    vectors_of_rest = spool(documents, rest, None, count, "embed")
    return index, (block.vectors for block in vectors_of_rest.blocks())


def _first_texts(rows: Any) -> list[str]:
    """Return the texts of the first rows, which show the language."""
    texts: list[str] = rows.column(TEXT).slice(0, _SAMPLE).to_pylist()
    return texts


@contextlib.contextmanager
def _open(file: Given, bad: BadRows) -> Iterator[Rows]:
    """Open the sentences of a file, those of pairs and triplets too."""
    stdin = None if isinstance(file, str | Path) else file
    path = file if isinstance(file, str | Path) else STANDARD
    if (Path(path) / INDEX_MANIFEST).is_file():
        raise UsageError(
            f"{path} is an index; `promptcli index dups DIR --against FILE` compares one with a"
            " file or with another index"
        )
    layouts = _LAYOUTS if stdin is None else (SENTENCES,)  # a stream is text
    fields = ColumnChoice(layouts=layouts, remedy="")
    with open_rows(path, fields, stdin=stdin, bad=bad) as rows:
        yield sentences_of(rows)
