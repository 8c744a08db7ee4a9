"""Many files of sentences as one run of rows: each is counted once, and known again by its size,
time and hash.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcli.data.bad_rows import BadRows
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.input_files import file_sha256, state_of
from promptcli.data.layouts import ID, TEXT
from promptcli.data.rows import Batch, open_from, with_row_numbers
from promptcli.errors import UsageError, counted


@dataclass(frozen=True)
class InputFile:
    """A counted file of sentences."""

    path: str  #: as the user wrote it
    size: int
    sha256: str
    rows: int
    stamp: str  #: time of its last change, or a remote store's version
    text: str | None = None  #: column of the sentence; None in plain text
    id: str | None = None  #: column of the id


def count_input(
    name: str,
    fields: ColumnChoice,
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool | None = None,
) -> InputFile:
    """Read a file once, check every row, and count them; an empty file has none."""
    size, stamp = state_of(name)
    with open_from(name, fields, csv=csv, bad=BadRows(skip_bad)) as rows:
        count = sum(len(batch[TEXT]) for batch in rows)
        columns = rows.columns
        digest = rows.sha256()
    if state_of(name) != (size, stamp):
        raise UsageError(f"{name} is being written to; try again when it is complete")
    return InputFile(name, size, digest, count, stamp, columns.get(TEXT) or None, columns.get(ID))


def has_text_ids(files: Sequence[InputFile]) -> bool:
    """Return whether ids are those of a column, else row numbers.

    All files with rows must have ids, or none.
    """
    named = [file for file in files if file.rows and file.id is not None]
    if named and (without := [file.path for file in files if file.rows and file.id is None]):
        raise UsageError(
            f"{named[0].path} has ids (column {named[0].id!r}) and {without[0]} has none; give"
            " both ids"
        )
    return bool(named)


def check_same(files: Sequence[InputFile], names: Sequence[str], began: str) -> list[InputFile]:
    """Return counted files under their present names.

    ``began``, for messages, was begun with them.
    """
    if len(names) != len(files):
        raise UsageError(
            f"{began} was started with {counted(len(files), 'input file')}, not {len(names):,};"
            " give the same files"
        )
    renamed = [
        dataclasses.replace(file, path=name) for file, name in zip(files, names, strict=True)
    ]
    for file in renamed:
        check_unchanged(file, began)
    return renamed


def check_unchanged(file: InputFile, began: str) -> None:
    """Refuse a file that differs from the one counted.

    Its bytes are read only if its size or stamp leave a doubt.
    """
    size, stamp = state_of(file.path)
    if (size, stamp) != (file.size, file.stamp) and (
        size != file.size or file_sha256(file.path) != file.sha256
    ):
        hint = "put that one back, or give another folder with -o"
        raise UsageError(f"{file.path} is not the file that {began} was started with; {hint}")


def read_range(
    files: Sequence[InputFile],
    start: int,
    stop: int,
    began: str,
    csv: Mapping[str, Any] | None = None,
) -> Iterator[Batch]:
    """Yield the rows [start, stop) of all files, one after another; ids that are numbers count over
    all files.

    A row that cannot be read is left out: when the files were counted, it was refused or told.
    """
    first = 0
    for file in files:
        lower = max(start - first, 0)
        upper = min(stop - first, file.rows)
        if lower < upper:
            check_unchanged(file, began)
            with open_from(
                file.path,
                ColumnChoice(file.text, file.id),
                csv=csv,
                start=lower,
                bad=BadRows(skip=True, quiet=True),
            ) as rows:
                row = lower
                for batch in with_row_numbers(rows.batches, first + lower):
                    yield {name: values[: upper - row] for name, values in batch.items()}
                    row += len(batch[TEXT])
                    if row >= upper:
                        break
        first += file.rows
