"""Sources of sentences: a file or standard input as a stream of records, row i = line i. Knows nothing of vectors."""

import contextlib
import functools
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from promptcli.data.given import is_unicode
from promptcli.data.streams import STANDARD, check_file, count_lines, open_hashed, read_lines
from promptcli.data.tables import (
    Chooser,
    Columns,
    Fields,
    FirstLayout,
    Lines,
    Record,
    read_csv,
    read_jsonl,
    read_parquet,
    read_text,
    read_tsv,
)
from promptcli.errors import UsageError
from promptcli.notes import note
from promptcli.storage.files import sha256

#: The reader of each extension; anything else is read as plain text. ``.gz`` may follow any of these.
FORMATS: dict[str, Callable[[Lines, Chooser, str, int], Iterator[Record]]] = {
    ".txt": read_text,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_jsonl,
    ".csv": read_csv,
    ".tsv": read_tsv,
}
#: Those under a header.
HEADED = (read_csv, read_tsv)


@dataclass(frozen=True)
class Source:
    """An open source of sentences; can be walked once."""

    name: str  #: The path as given, or ``-``.
    records: Iterator[Record]
    sha256: Callable[[], str]  #: Hex SHA-256 of the bytes as they came; right once the last record is out.
    total: Callable[[], int | None]  #: About how many records there are; None where that is not cheap to know.

    def __iter__(self) -> Iterator[Record]:
        return self.records


@contextlib.contextmanager
def open_source(path: Path, fields: Columns = Fields(), *, stdin: BinaryIO | None = None) -> Iterator[Source]:  # noqa: B008
    """Open a source and read its first record, so that a wrong file or field is known before any work is done.

    Args:
        path: A file, in the format of its extension (``FORMATS``, or Parquet), or ``-``.
        fields: Chooses the columns: ``Fields`` of a sentence and its id, or a ``FirstLayout`` of several columns.
        stdin: Read where the path is ``-``: JSONL if a field is asked for, else plain text.

    Raises:
        NotFoundError: there is no such file.
        UsageError: a folder, an empty file, no such field, or malformed content (here or while walking).
    """
    parquet = suffixes(path)[0] == ".parquet"
    opened = _open_parquet(path, fields) if parquet else _open_lines(path, fields, stdin if path == STANDARD else None)
    with opened as source:
        first = next(source.records, None)
        if first is None:
            raise UsageError(f"{_name(path)} is empty: there is nothing to encode")
        yield replace(source, records=itertools.chain([first], source.records))


@contextlib.contextmanager
def open_pairs(a: str, b: str, fields: Fields = Fields()) -> Iterator[tuple[Iterator[tuple[str, str]], int]]:  # noqa: B008
    """Open pairs of sentences: two sentences, or rows of two files; yield the pairs and their number.

    Files are walked once before, to find faults first; the sentences of a pipe are kept instead.

    Raises:
        NotFoundError, UsageError: see ``open_source``; one file and one sentence, other numbers of rows, not UTF-8.
    """
    # a sentence may be too long for a path, which is no error here
    are_files = [os.path.exists(name) and not os.path.isdir(name) for name in (a, b)]
    if not any(are_files):
        for sentence in (a, b):
            check_encodable(sentence)
        yield iter([(a, b)]), 1
        return
    for name, is_file in zip((a, b), are_files, strict=True):
        if not is_file:
            raise UsageError(f"{name!r} is no file, but the other argument is; give two files or two sentences")
    with contextlib.ExitStack() as stack:
        sides: list[Iterator[str]] = []
        counts = []
        for path in (Path(a), Path(b)):
            with open_source(path, fields) as source:
                kept = None if path.is_file() else [record.text for record in source]
                counts.append(sum(1 for _ in source) if kept is None else len(kept))
            again = kept if kept is not None else stack.enter_context(open_source(path, fields))
            sides.append(one if isinstance(one, str) else one.text for one in again)
        if counts[0] != counts[1]:
            raise UsageError(
                f"{a} has {counts[0]:,} rows and {b} has {counts[1]:,}; row i of one is compared with row i of the"
                " other"
            )
        yield zip(*sides, strict=True), counts[0]


def are_sentences(given: Sequence[str]) -> bool:
    """Return whether words of the command line are sentences and no files: each has blanks and no file has its name.

    Raises:
        UsageError: A sentence that the terminal's encoding did not bring through.
    """
    if not all(" " in word.strip() and "\n" not in word and not os.path.exists(word) for word in given):
        return False
    for word in given:
        check_encodable(word)
    return True


def note_no_file(word: str) -> None:
    """Say that a word is read as a sentence where it looks like the name of a file, and no file has that name."""
    if " " not in word and re.fullmatch(r"\.[a-z][a-z0-9]+", Path(word).suffix) and not os.path.exists(word):
        note(f"{word}: no such file; read as a sentence")


def check_encodable(sentence: str) -> None:
    """Refuse a sentence of the command line that the terminal's encoding did not bring through."""
    if not is_unicode(sentence):
        raise UsageError(f"{sentence!r} is not UTF-8; set a UTF-8 locale, e.g. LC_ALL=C.UTF-8")


@contextlib.contextmanager
def _open_lines(path: Path, fields: Columns, stdin: BinaryIO | None) -> Iterator[Source]:
    suffix, gzipped = suffixes(path)
    reader = FORMATS.get(suffix, read_text)
    if stdin is not None and fields != Fields():
        reader = read_jsonl
    with open_hashed(path, stdin) as raw:
        lines = read_lines(raw, _name(path), gzipped=gzipped)
        if (first := next(lines, None)) is not None:
            lines = itertools.chain([first], lines)
            if isinstance(fields, FirstLayout) and (columns := fields.headless(first)):
                reader = functools.partial(read_tsv, columns=columns)

        def total() -> int | None:
            plain = stdin is None and not gzipped and stat.S_ISREG(path.stat().st_mode)  # counting would empty a pipe
            return max(count_lines(path) - (reader in HEADED), 0) if plain else None

        yield Source(str(path), reader(lines, fields.choose, _name(path), 1), raw.sha256, total)


@contextlib.contextmanager
def _open_parquet(path: Path, fields: Columns) -> Iterator[Source]:
    def total() -> int:
        import pyarrow.parquet as pq

        return int(pq.read_metadata(path).num_rows)

    check_file(path, regular=True)
    with contextlib.closing(read_parquet(path, fields.choose)) as records:
        yield Source(str(path), records, lambda: sha256(path), total)


def suffixes(path: Path) -> tuple[str, bool]:
    """Return the format's extension in lower case, and whether ``.gz`` follows it."""
    gzipped = path.suffix.lower() == ".gz"
    return (Path(path.stem).suffix if gzipped else path.suffix).lower(), gzipped


def _name(path: Path) -> str:
    return "standard input" if path == STANDARD else str(path)
