r"""Files, pipes and URLs: their names, their bytes with a SHA-256, and their lines.

Only ``\n`` ends a line: U+2028, form feeds and the like may occur inside a sentence. A file whose
lines end with ``\r`` alone is refused.
"""

import bz2
import contextlib
import glob
import gzip
import hashlib
import io
import lzma
import os
import re
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, cast

from promptcli.data.arguments import check_encodable, is_unicode
from promptcli.errors import (
    NotFoundError,
    PromptcliError,
    UsageError,
    did_you_mean,
    join_lines,
    with_count,
)
from promptcli.notes import is_offline, note

#: Characters of the longest line. A file with a longer line is not a text, and would fill the
#: memory.
MAX_LINE_CHARACTERS = 64 << 20
#: Bytes that any compressed file may unpack to, however small it is.
MAX_UNPACKED_BYTES = 1 << 28
#: A compressed file may unpack to more bytes if they are at most this many times its size.
MAX_UNPACKED_RATIO = 1000
#: Bytes that an empty line takes in memory.
_LINE_BYTES = 64
#: The path of standard input and of standard output.
STANDARD = Path("-")

_BUFFER = 1 << 20
#: First bytes of a file that is not text -> its kind.
_BINARY_KINDS = {
    b"\x1f\x8b": "gzip data without the ending .gz",
    b"PK\x03\x04": "an Office document or a zip archive",
    b"\xd0\xcf\x11\xe0": "an old Office document",
    b"{\\rtf": "an RTF document",
    b"%PDF-": "a PDF",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
    b"PAR1": "Parquet without the ending .parquet",
}


def _open_zstd(stream: Any) -> Any:
    import pyarrow as pa

    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd"), _BUFFER)


#: Ending of a compressed file -> function that unpacks its stream.
COMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda stream: gzip.GzipFile(fileobj=stream),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _open_zstd,
}
#: Extensions of Markdown, of Org, and of all texts that are always read as prose.
MARKDOWN = (".md", ".markdown", ".mdx", ".rmd", ".qmd")
ORG = ".org"
PROSE = (*MARKDOWN, ".rst", ORG)
_WILDCARDS = "*?["
_WORKBOOK = re.compile(r"(?s)(.*?\.xlsx):(.+)", re.IGNORECASE)
#: A word of the command line that is more likely a misspelt file name than a sentence.
_NAME_OF_FILE = re.compile(r"^\S[^\s/]*/\S*$|^\S+\.[a-z][a-z0-9]+(:[^\s/]+)?$")
#: URLs of fsspec that need no network.
_LOCAL = ("memory://", "file://", "local://")


def is_remote(name: str | Path) -> bool:
    """Return whether a name is a URL that fsspec opens."""
    return "://" in str(name)


def check_file(path: Path, *, regular: bool = False, alternative: str | None = None) -> None:
    """Refuse a path that cannot be read as a file.

    Args:
        path: The path.
        regular: Whether a pipe is refused, too.
        alternative: What the message offers in place of a missing file.
    """
    if path == STANDARD and not path.exists():
        raise UsageError("- is standard input, which is not read here; give a file")
    if alternative is None:
        alternative = "a file" if regular else "a file, or -"
    try:
        os.stat(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        names = list[str]()
        with contextlib.suppress(OSError, ValueError):
            # a broken link is itself in the list
            names = [name for name in os.listdir(path.parent) if name != path.name]
        suggestion = did_you_mean(path.name, names)
        raise NotFoundError(
            f"{str(path)!r} cannot be opened ({reason}); give {alternative}{suggestion}"
        ) from None
    problem = ""
    if path.is_dir():
        problem = "is a folder; give a file in it"
    elif not os.access(path, os.R_OK):
        problem = "may not be read; change its permissions (chmod +r) or copy it"
    elif regular and not path.is_file():
        problem = "is a pipe, which is read only once; give a file"
    if problem:
        raise UsageError(f"{str(path)!r} {problem}")


def check_sentence(word: str) -> None:
    """Refuse a word that is not a sentence: the name of a missing file, or damaged text."""
    if _NAME_OF_FILE.search(word):
        check_file(Path(word))
    check_encodable(word)


def split_columns(word: str) -> tuple[str, str]:
    """Return the file and the columns of ``FILE:first,second,score``; the columns of ``FILE`` are
    "".

    The columns of ``FILE.xlsx:SHEET`` are ``SHEET:``, those of ``FILE.xlsx:SHEET:first,second`` are
    ``SHEET:first,second``.

    Example:
        >>> split_columns("pairs.csv:question,answer,gold")
        ('pairs.csv', 'question,answer,gold')
    """
    if is_remote(word) or os.path.exists(word):
        return word, ""
    workbook = _WORKBOOK.match(word)
    if workbook is not None and os.path.exists(workbook[1]):
        columns = workbook[2]
        return workbook[1], columns if ":" in columns else f"{columns}:"
    name, _, columns = word.rpartition(":")
    if os.path.exists(name) or (name and "," in columns and "/" not in columns):
        return name, columns
    return word, ""


def names_file(word: str) -> bool:
    """Return whether a word of the command line is a file that exists, or ``FILE:COLUMN`` of one.

    A sentence that begins with a file's name has a space after the colon.
    """
    if os.path.exists(word):
        return not os.path.isdir(word)
    name, columns = split_columns(word)
    return columns != "" and ": " not in word and os.path.exists(name) and not os.path.isdir(name)


def split_text_column(words: Sequence[str], text_field: str | None) -> tuple[list[str], str | None]:
    """Return files and the column of their sentences, from ``FILE:COLUMN`` or from ``text_field``;
    several columns, ``FILE:FIRST,SECOND``, are joined.

    Example:
        >>> split_text_column(["notes.txt"], None)
        (['notes.txt'], None)
    """
    files = list[str]()
    text_fields = set[str | None]()
    for word in words:
        file, columns = split_columns(word)
        if columns and text_field is not None:
            raise UsageError(f"{word!r} also names a column; leave one out", parameter="text_field")
        files.append(file)
        text_fields.add(columns or text_field)
    if len(text_fields) > 1:
        raise UsageError(
            "the files name different columns; give one for all", parameter="text_field"
        )
    return files, next(iter(text_fields), text_field)


def extension_of(name: str | Path) -> tuple[str, str]:
    """Return the extension of a file and its ending of a compressed file, in small letters.

    Example:
        >>> extension_of("notes/Alps.TXT.gz")
        ('.txt', '.gz')
    """
    path = Path(name)
    ending = ""
    if path.suffix.lower() in COMPRESSED:
        ending = path.suffix.lower()
        path = Path(path.stem)
    return path.suffix.lower(), ending


# Names of several files


def find_inputs(names: Sequence[str]) -> list[str]:
    """Return the files of names, globs, folders of Parquet files and URLs, in order.

    The files of a glob are sorted.
    """
    url = next((name for name in names if is_remote(name) and not name.startswith(_LOCAL)), "")
    if url and is_offline():
        raise UsageError(f"offline=True forbids to read {url} from another machine; copy it here")
    if url:
        note(f"reading {url} over the network")
    files = list[str]()
    for name in names:
        files += _find_remote(name) if is_remote(name) else _find_local(name)
    repeated_file = next((name for name, count in Counter(files).items() if count > 1), None)
    if repeated_file is not None:
        raise UsageError(f"{repeated_file} is given twice; give every file once")
    return files


def _find_local(name: str) -> list[str]:
    path = Path(name)
    if not name.strip():
        raise UsageError("the name of an input is empty; give a file")
    if path == STANDARD:
        raise UsageError(
            "parts are made from files, not from standard input, which can be read only once"
        )
    pattern = name
    if path.is_dir():
        pattern = f"{glob.escape(str(path))}/**/*.parquet"
    elif path.exists() or not any(sign in name for sign in _WILDCARDS):
        check_file(path, regular=True)
        return [name]
    files = sorted(file for file in glob.glob(pattern, recursive=True) if Path(file).is_file())
    if path.is_dir():
        # Arrow and Spark, too, skip names that begin with an underscore or a dot
        files = [file for file in files if f"{os.sep}_" not in file.removeprefix(str(path))]
    if not files:
        raise NotFoundError(f"no file matches {pattern!r}; look with: ls {pattern}")
    return files


def _find_remote(name: str) -> list[str]:
    def find(system: Any, path: str) -> list[str]:
        if any(sign in path for sign in _WILDCARDS):
            return sorted(system.glob(path))
        if system.isdir(path):
            return sorted(file for file in system.find(path) if file.endswith(".parquet"))
        return [path] if system.exists(path) else []

    protocol = name.partition("://")[0]
    files = on_file_system(name, find)
    if not files:
        raise NotFoundError(
            f"{name!r}: no such file; give a file, a glob, or a folder of .parquet files"
        )
    return [f"{protocol}://{path.removeprefix(f'{protocol}://').lstrip('/')}" for path in files]


def on_file_system(name: str, do: Callable[[Any, str], Any]) -> Any:
    """Return the result of ``do``, which takes the file system of a URL and the path on it."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(name)
        return do(system, path)
    except ImportError as error:
        raise NotFoundError(f"{name!r} needs another package: {join_lines(error, 160)}") from None
    except PromptcliError:
        raise
    except Exception as error:  # every store raises its own classes
        raise NotFoundError(
            f"{name!r} cannot be read ({type(error).__name__}: {join_lines(error, 160)})"
        ) from None


def state_of(name: str) -> tuple[int, str]:
    """Return the size of a file and its stamp, which changes with the file."""
    if is_remote(name):
        state: tuple[int, str] = on_file_system(
            name, lambda system, path: (int(system.size(path)), str(system.ukey(path)))
        )
        return state
    check_file(Path(name), regular=True)
    local = Path(name).stat()
    return local.st_size, str(local.st_mtime_ns)


# Reading


class BadRows:
    """The unreadable rows of a file: the first one is refused, or all are skipped and counted.

    Args:
        skip: Whether the rows are skipped. None: the first one is refused, and no option changes
            that.
        quiet: Whether ``tell`` is silent.
    """

    def __init__(self, skip: bool | None = None, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self.skips = bool(skip)
        self._hint = "; skip_bad=True leaves such rows out" if skip is not None else ""
        self.count = 0  #: skipped rows
        self._noun = "row"
        self._faults = list[str]()

    def add(
        self,
        name: str,
        kind: str,
        number: int,
        reason: str,
        *,
        lines: int = 1,
        parameter: str = "",
    ) -> None:
        """Add an unreadable row of the file ``name``.

        Its ``number`` counts lines or rows (``kind``) from 1. Several unreadable lines may be
        several rows, so the lines are counted.
        """
        fault = f"{kind} {number}: {reason}"
        if lines > 1:
            fault = f"{kind}s {number} to {number + lines - 1}: {reason}"
            self._noun = kind
        if not self.skips:
            raise UsageError(f"{name}: {fault}{self._hint}", parameter=parameter)
        if len(self._faults) < 4:
            self._faults.append(fault)
        self.count += lines

    def forget(self) -> None:
        """Forget the skipped rows, before the file is read again."""
        self.count = 0
        self._noun = "row"
        self._faults.clear()

    def tell(self, name: str, done: str) -> None:
        """Note how many rows were skipped, and the faults of the first three."""
        if self.count and not self._quiet:
            rows = with_count(self.count, self._noun)
            faults = "; ".join(self._faults[:3])
            more = "; ..." if len(self._faults) > 3 else ""
            note(f"{name}: {done} {rows} that cannot be read: {faults}{more}")


REFUSED = BadRows()


class _HashedBytes(io.RawIOBase):
    """A stream that hashes the bytes that are read from it; a pipe can be read only once."""

    def __init__(self, stream: BinaryIO) -> None:
        self._read = getattr(stream, "read1", stream.read)
        self.hash = hashlib.sha256()
        self.size = 0  #: bytes read so far

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read the bytes that have arrived, at least one unless the stream has ended."""
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        self.hash.update(data)
        self.size += len(data)
        return len(data)


class OpenText:
    """An open file of text; the lines of a ``stored`` one can be read again and again."""

    def __init__(self, path: str | Path, file: BinaryIO, *, stored: bool) -> None:
        self.path = path
        self.file = file
        self._stored = stored
        self._raw = _HashedBytes(file)

    @property
    def name(self) -> str:
        """The name of the file in messages."""
        return "standard input" if str(self.path) == str(STANDARD) else str(self.path)

    def sha256(self) -> str:
        """Return the hex SHA-256 of the stored file, or of the bytes read so far."""
        if not self._stored:
            return self._raw.hash.hexdigest()
        self.file.seek(0)
        return hashlib.file_digest(cast(Any, self.file), "sha256").hexdigest()

    def lines(self, encoding: str = "", bad: BadRows = REFUSED) -> Iterator[str]:
        """Yield the unpacked lines with their ends; an unreadable line is empty.

        Binary data are refused, and an encoding other than UTF-8 that the user has not named.
        """
        raw = self._raw
        if self._stored:
            self.file.seek(0)
            raw = _HashedBytes(self.file)
        ending = Path(self.path).suffix.lower()
        stream: Any = io.BufferedReader(raw, _BUFFER)
        if ending in COMPRESSED:
            stream = io.BufferedReader(COMPRESSED[ending](stream), _BUFFER)
        number, unpacked = 1, 0
        try:
            first_bytes = stream.peek(64)
            for start, kind in _BINARY_KINDS.items():
                if first_bytes.startswith(start):
                    cure = "save it as text or CSV, or give it the extension of its format"
                    raise UsageError(f"{self.name} is {kind}, not text; {cure}")
            text = io.TextIOWrapper(stream, encoding or "utf-8-sig", "surrogateescape", "\n")
            while line := text.readline(MAX_LINE_CHARACTERS + 1):
                if number == 1 or len(line) > MAX_LINE_CHARACTERS:
                    self._check_ends(line, number)
                if ending in COMPRESSED:
                    unpacked += len(line) + _LINE_BYTES
                    check_unpacked(self.name, unpacked, raw.size, "unpack it first")
                if line.endswith("\r\r\n"):  # a line end that was converted twice
                    line = line.rstrip("\r\n") + "\n"
                reason = ""
                if not line.isascii() and not is_unicode(line):
                    reason = f"is not {encoding or 'UTF-8'}; give encoding=cp1252, utf-16, ..."
                elif "\0" in line:
                    reason = "holds a NUL byte; it is not UTF-8 text"
                if reason:
                    bad.add(self.name, "line", number, reason, parameter="csv")
                    line = "\n"
                yield line
                number += 1
        except LookupError:
            raise UsageError(f"no encoding {encoding!r}; e.g. cp1252", parameter="csv") from None
        except (UnicodeError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            damaged = f"damaged or cut-off {ending} data" if ending in COMPRESSED else "unreadable"
            raise UsageError(
                f"{self.name}: line {number}: {damaged} ({join_lines(error, 100)})"
            ) from None

    def _check_ends(self, line: str, number: int) -> None:
        if len(line) > MAX_LINE_CHARACTERS:
            raise UsageError(
                f"{self.name}: line {number} is longer than {MAX_LINE_CHARACTERS >> 20} MiB;"
                " give one row a line"
            )
        if number == 1 and "\r" in line[:-2] and not line.endswith("\n"):
            raise UsageError(
                f"{self.name}: its lines end with a carriage return alone; convert it: tr '\\r'"
                " '\\n' < IN > OUT"
            )


@contextlib.contextmanager
def open_text(
    path: str | Path, stream: BinaryIO | None = None, *, stored: bool = False
) -> Iterator[OpenText]:
    """Open a file, a pipe or a URL, or the open ``stream`` of that name.

    With ``stored`` its lines can be read again and again: a pipe is copied to a temporary file.
    """
    opened: AbstractContextManager[BinaryIO]
    if stream is not None:
        opened = contextlib.nullcontext(stream)
    elif is_remote(path):
        opened = on_file_system(str(path), lambda system, place: system.open(place, "rb"))
    else:
        check_file(Path(path))
        opened = Path(path).open("rb")
    with opened as file:
        if not stored or file.seekable():
            yield OpenText(path, file, stored=stored)
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy)
            yield OpenText(path, copy, stored=stored)


def read_lines(path: Path, encoding: str = "") -> Iterator[str]:
    """Yield the lines of a local file with their ends, without a byte order mark."""
    with open_text(path) as text:
        yield from text.lines(encoding)


def without_end(line: str) -> str:
    """Return a line without its line end."""
    return line.removesuffix("\n").removesuffix("\r")


def check_unpacked(name: str, unpacked: int, packed: int, remedy: str) -> None:
    """Refuse a compressed file if ``packed`` bytes of it have unpacked to too many bytes.

    Text of any language shrinks to a tenth of its size, and a repeated line to a thousandth.
    """
    if unpacked > MAX_UNPACKED_BYTES and unpacked > MAX_UNPACKED_RATIO * packed:
        raise UsageError(
            f"{name} unpacks to more than {MAX_UNPACKED_RATIO:,} times its size; if it should,"
            f" {remedy}"
        )
