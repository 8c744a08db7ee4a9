"""Many files of sentences as one run of rows: found by name, glob, folder or URL, counted once, read from any row on.

Counting reads every byte once, for the SHA-256 too, and marks where every 65,536th row begins, so that plain files are
sought; Parquet files are by their row groups, compressed text is read from its start.
"""

import contextlib
import csv
import glob
import hashlib
import io
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from promptcli.data.streams import (
    GZIP_ERRORS,
    LONGEST_LINE,
    STANDARD,
    HashedBytes,
    check_file,
    open_buffered,
    read_lines,
)
from promptcli.data.tables import CSV_HINT, Choice, Chooser, Fields, Record, read_csv, read_parquet, read_text
from promptcli.data.text import FORMATS, HEADED, suffixes
from promptcli.errors import NotFoundError, PromptcliError, UsageError, one_line

#: Rows between two marks.
MARK = 65_536
_MAGIC = "*?["
#: File systems of fsspec that are on this machine.
_LOCAL = ("memory", "file", "local")


@dataclass(frozen=True)
class InputFile:
    """A counted file of sentences."""

    path: str  #: as it was given
    size: int
    sha256: str
    rows: int
    stamp: str  #: time of its last change, or what a remote store says of it: equal where the file is the same
    text: str | None = None  #: column of the sentence; None in plain text
    id: str | None = None  #: column of the id
    marks: tuple[tuple[int, int, int], ...] = ()  #: row, line from 1, byte at which it begins

    def __post_init__(self) -> None:
        marked = (number for row, line, byte in self.marks for number in (row, line - 1, byte))
        if min(self.rows, self.size, *marked) < 0 or any(row for row, *_ in self.marks[:1]):
            raise ValueError("rows and bytes of a file are counted from 0, lines from 1")


def is_remote(name: str) -> bool:
    """Return whether a name is a URL that fsspec opens."""
    return "://" in name


def needs_network(names: Iterable[str]) -> str | None:
    """Return the first of these names that lies on another machine, or None."""
    return next((name for name in names if is_remote(name) and name.partition("://")[0] not in _LOCAL), None)


def find_inputs(names: Sequence[str]) -> list[str]:
    """Return the files that names, globs, folders of Parquet files and URLs stand for, in this order; globs sorted.

    Raises:
        NotFoundError: A file that is not there, a glob that matches nothing, a file system that is not installed.
        UsageError: An empty name, a folder without Parquet files, standard input or a pipe, a file that is given twice.
    """
    found: list[str] = []
    for name in names:
        if not name.strip():
            raise UsageError("the name of an input is empty (a variable that is not set?); give a file")
        found += _find_remote(name) if is_remote(name) else _find_local(name)
    twice = next((name for name in found if found.count(name) > 1), None) if len(set(found)) < len(found) else None
    if twice is not None:
        raise UsageError(f"{twice} is given twice; give every file once")
    return found


def count_input(name: str, fields: Fields) -> InputFile:
    """Count the rows of a file and choose its columns; an empty file has none.

    Raises:
        NotFoundError, UsageError: It cannot be read, has no such field, or its first row is malformed.
    """
    size, stamp = _state(name)
    chosen = Choice("")

    def choose(columns: Sequence[str] | None, name: str) -> Choice:
        nonlocal chosen
        chosen = fields.choose(columns, name)
        return chosen

    with _open(name) as file:
        empty = next(_records(name, file, choose), None) is None
    with _open(name) as file:
        rows, marks, digest = _count(name, file)
    if _state(name) != (size, stamp):
        raise UsageError(f"{name} is being written to; try again when it is whole")
    return InputFile(name, size, digest, 0 if empty else rows, stamp, chosen.text or None, chosen.id, tuple(marks))


def has_text_ids(files: Sequence[InputFile]) -> bool:
    """Return whether ids are those of a column; else they are row numbers.

    Raises:
        UsageError: Some files have such a column and some have not.
    """
    without = [file.path for file in files if file.rows and file.id is None]
    named = [file for file in files if file.rows and file.id is not None]
    if named and without:
        raise UsageError(
            f"{named[0].path} has ids (column {named[0].id!r}) and {without[0]} has none; give files that all have them"
            ", or none"
        )
    return bool(named)


def check_same(files: Sequence[InputFile], names: Sequence[str], began: str) -> list[InputFile]:
    """Return counted files under the names that they have now; only what looks changed is read again.

    ``began`` says in messages what was begun with them.

    Raises:
        UsageError: Others are given, or one has changed since.
    """
    if len(names) != len(files):
        raise UsageError(
            f"{began} was begun with {len(files):,} input files, not {len(names):,}; give the same files, or another"
            " folder with -o"
        )
    for file, name in zip(files, names, strict=True):
        check_unchanged(replace(file, path=name), began)
    return [replace(file, path=name) for file, name in zip(files, names, strict=True)]


def read_rows(files: Sequence[InputFile], start: int, stop: int, began: str) -> Iterator[Record]:
    """Yield the rows [start, stop) of all files in a row; ``row``, and the id where there is no column, count over all.

    ``began`` says in messages what was begun with the files.

    Raises:
        UsageError: A file has changed since it was counted, or a row is malformed.
    """
    first = 0
    for file in files:
        lower, upper = max(start - first, 0), min(stop - first, file.rows)
        if lower < upper:
            check_unchanged(file, began)
            number = lower
            for record in _read_range(file, lower, upper):
                # a blank line of JSONL has no id where the others have
                known = first + number if file.id is None else record.id if isinstance(record.id, str) else ""
                yield record._replace(row=first + number, id=known)
                number += 1
            if number < upper:
                raise _changed(file, began)
            check_unchanged(file, began)
        first += file.rows


def _read_range(file: InputFile, start: int, stop: int) -> Iterator[Record]:
    def choose(columns: Sequence[str] | None, name: str) -> Choice:
        return Choice(file.text or "", file.id)

    with _open(file.path) as opened:
        if suffixes(Path(file.path))[0] == ".parquet":
            records, before = read_parquet(file.path, choose, file=opened, start=start), start
        else:
            before, line, byte = next(mark for mark in reversed(file.marks) if mark[0] <= start)
            records = _records(file.path, opened, choose, header=file.marks[0][1] - 1, line=line, byte=byte)
        yield from itertools.islice(records, start - before, stop - before)


def _records(
    name: str, file: BinaryIO, choose: Chooser, *, header: int = 0, line: int = 1, byte: int = 0
) -> Generator[Record, None, None]:
    """Yield the records of an open file; from a line at a byte on, after its header of so many lines."""
    suffix, gzipped = suffixes(Path(name))
    if suffix == ".parquet":
        return (yield from read_parquet(name, choose, file=file))
    byte = 0 if gzipped else byte  # what is compressed is not sought
    lines = read_lines(HashedBytes(file), name, gzipped=gzipped)
    if byte:
        head = list(itertools.islice(lines, header))
        file.seek(byte)
        lines = itertools.chain(head, read_lines(HashedBytes(file), name, first=line))
    yield from FORMATS.get(suffix, read_text)(lines, choose, name, line - header if byte else 1)


def _count(name: str, file: BinaryIO) -> tuple[int, list[tuple[int, int, int]], str]:
    """Return the rows of an open file, its marks, and the SHA-256 of its bytes."""
    suffix, gzipped = suffixes(Path(name))
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        rows = int(pq.read_metadata(file).num_rows)
        file.seek(0)
        return rows, [], _sha256(file)
    raw = HashedBytes(file)
    try:
        rows, marks = _count_lines(open_buffered(raw, gzipped=gzipped), name, suffix)
    except GZIP_ERRORS as error:
        raise UsageError(f"{name}: damaged or cut-off gzip data ({error}); compress it again") from None
    return rows, marks[:1] if gzipped else marks, raw.sha256()


def _count_lines(stream: io.BufferedIOBase, name: str, suffix: str) -> tuple[int, list[tuple[int, int, int]]]:
    number = byte = rows = 0

    def lines() -> Iterator[bytes]:
        nonlocal number, byte
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            byte += len(line)
            yield line

    reader = FORMATS.get(suffix, read_text)
    counted: Iterator[Any] = lines()
    if reader is read_csv:  # a quoted text may go over several lines
        counted = csv.reader((line.decode("utf-8", "replace") for line in lines()), strict=True)
    try:
        if reader in HEADED:
            next(counted, None)
        marks = [(0, number + 1, byte)]
        for rows, _ in enumerate(counted, start=1):
            if rows % MARK == 0:
                marks.append((rows, number + 1, byte))
    except csv.Error as error:
        raise UsageError(f"{name}: line {number}: {error}; {CSV_HINT}") from None
    return rows, marks


def _sha256(file: BinaryIO) -> str:
    return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def check_unchanged(file: InputFile, began: str) -> None:
    """Refuse a file that is another one than was counted; it is read only where size or stamp leave a doubt.

    Raises:
        NotFoundError, UsageError: It is gone, or has changed.
    """
    size, stamp = _state(file.path)
    if size == file.size and stamp == file.stamp:
        return
    if size == file.size:
        with _open(file.path) as opened:
            if _sha256(opened) == file.sha256:
                return
    raise _changed(file, began)


def _changed(file: InputFile, began: str) -> UsageError:
    return UsageError(
        f"{file.path} is not the file that {began} was begun with (its content has changed); put that one back, or give"
        " another folder with -o"
    )


def _find_local(name: str) -> list[str]:
    path = Path(name)
    if path == STANDARD:
        raise UsageError("parts are made from files that can be read again, not from standard input; give files")
    if path.is_dir():
        inside = (found for found in path.rglob("*.parquet") if found.is_file())
        # as Arrow and Spark do, what begins with an underscore or a dot is left out
        kept = sorted(str(one) for one in inside if not any(part[0] in "._" for part in one.relative_to(path).parts))
        if not kept:
            raise UsageError(
                f"{name!r} is a folder without .parquet files; give files, or a glob such as '{name}/*.txt'"
            )
        return kept
    if not path.exists() and any(sign in name for sign in _MAGIC):
        matched = sorted(found for found in glob.glob(name, recursive=True) if Path(found).is_file())
        if not matched:
            raise NotFoundError(f"no file matches {name!r}; look with: ls {name}")
        return matched
    check_file(path, regular=True)
    return [name]


def _find_remote(name: str) -> list[str]:
    def look(system: Any, path: str) -> list[str]:
        if any(sign in path for sign in _MAGIC):
            return sorted(system.glob(path))
        if system.isdir(path):
            return sorted(found for found in system.find(path) if found.endswith(".parquet"))
        return [path] if system.exists(path) else []

    protocol = name.partition("://")[0]
    found = _remotely(name, look)
    if not found:
        raise NotFoundError(f"{name!r}: no file is there; give a file, a glob, or a folder of .parquet files")
    return [f"{protocol}://{path.removeprefix(f'{protocol}://').lstrip('/')}" for path in found]


def _state(name: str) -> tuple[int, str]:
    """Return size and stamp of a file."""
    if is_remote(name):
        found: tuple[int, str] = _remotely(name, lambda system, path: (int(system.size(path)), str(system.ukey(path))))
        return found
    try:
        local = Path(name).stat()
    except OSError as error:
        raise NotFoundError(
            f"{name!r} cannot be opened ({error.strerror}); give the files that it was begun with"
        ) from None
    return local.st_size, str(local.st_mtime_ns)


@contextlib.contextmanager
def _open(name: str) -> Iterator[BinaryIO]:
    if is_remote(name):
        file = cast(BinaryIO, _remotely(name, lambda system, path: system.open(path, "rb")))
    else:
        check_file(Path(name), regular=True)
        file = Path(name).open("rb")
    with file:
        yield file


def _remotely(name: str, do: Callable[[Any, str], Any]) -> Any:
    """Return what is found on a file system of fsspec.

    Raises:
        NotFoundError: The file system is not installed or not known, or its answer is an error.
    """
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(name)
        return do(system, path)
    except ImportError as error:
        raise NotFoundError(f"{name!r} needs another package: {one_line(error, 160)}") from None
    except PromptcliError:
        raise
    except Exception as error:  # of any library of any store
        raise NotFoundError(f"{name!r} cannot be read ({type(error).__name__}: {one_line(error, 160)})") from None
