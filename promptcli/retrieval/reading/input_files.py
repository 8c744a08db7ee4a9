r"""Files, pipes and URLs: their names, their bytes with a SHA-256, and their lines.

A line ends at ``\n`` only (at ``\r`` in a file without ``\n``): U+2028, form feeds and the like may
occur inside a sentence.
"""

import bz2
import codecs
import contextlib
import glob
import gzip
import hashlib
import io
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from promptcli.data.given import check_encodable, is_unicode
from promptcli.data.input_files import on_file_system
from promptcli.errors import (
    NoColumnError,
    NotFoundError,
    UsageError,
    counted,
    did_you_mean,
    one_line,
)
from promptcli.notes import note
from promptcli.retrieval.reading.bad_lines import REFUSED, BadRows

#: The longest line in characters. Longer "lines" come from files that are not text, and would fill
#: the memory.
LONGEST_LINE = 64 << 20
#: What a compressed file may unpack to, in bytes, however small it is; beyond, it may have so many
#: times its own size.
UNPACKED = 1 << 28
RATIO = 1000
#: Bytes that an empty line costs in memory.
LINE = 64
#: The path of standard input and of standard output.
STANDARD = Path("-")

#: Bytes of a text file by which its form is recognised.
LOOK = 1 << 16

_BUFFER = 1 << 20
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_IMAGE = "an image, not text; give a text or a table"
#: First bytes of files that are not text, and what to do with them.
_OTHER_KINDS = {
    b"\x1f\x8b": "gzip data; name the file .gz, or pipe it through gunzip -c",
    b"PK\x03\x04": (
        "an Office document or a zip archive, not text; save it as text or CSV, unpack it, or end"
        " the name of a workbook with .xlsx"
    ),
    b"\xd0\xcf\x11\xe0": "an old Office document, not text; save it as text or CSV",
    b"{\\rtf": "an RTF document; save it as plain text",
    b"%PDF-": "a PDF, not text; extract its text first, e.g. pdftotext FILE.pdf FILE.txt",
    b"\x89PNG": _IMAGE,
    b"\xff\xd8\xff": _IMAGE,
    b"GIF8": _IMAGE,
    b"PAR1": "Parquet; end its name with .parquet",
}
_CONVERT = "convert it: iconv -f CP1252 -t UTF-8 IN > OUT (with the encoding it is in)"


def _open_zstd(stream: Any) -> Any:
    import pyarrow as pa

    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd"), _BUFFER)


#: Ending of a compressed file -> how it is opened.
COMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda stream: gzip.GzipFile(fileobj=stream),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _open_zstd,
}
_WILDCARDS = "*?["
#: A word that is more likely the misspelt name of a file than a sentence.
_NAME_OF_FILE = re.compile(r"^\S[^\s/]*/\S*$|^\S+\.[a-z][a-z0-9]+(:[^\s/]+)?$")
#: File systems of fsspec on this machine.
_LOCAL = ("memory", "file", "local")


def is_remote(name: str | Path) -> bool:
    """Return whether a name is a URL that fsspec opens."""
    return "://" in str(name)


def needs_network(names: Iterable[str]) -> str | None:
    """Return the first of these names that is on another machine, or None."""
    return next(
        (name for name in names if is_remote(name) and name.partition("://")[0] not in _LOCAL), None
    )


def check_file(path: Path, *, regular: bool = False, allowed: str | None = None) -> None:
    """Refuse a path that cannot be read as a file; with ``regular`` a pipe, too.

    ``allowed`` says what may be given instead of a file that is missing.
    """
    if path == STANDARD and not path.exists():
        raise UsageError("- is standard input, which is not read here; give a file")
    if allowed is None:
        allowed = "a file" if regular else "a file, or -"
    try:
        os.stat(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        names: list[str] = []
        with contextlib.suppress(OSError, ValueError):
            names = [name for name in os.listdir(path.parent) if name != path.name]  # a dead link
        near = did_you_mean(path.name, names)
        raise NotFoundError(
            f"{str(path)!r} cannot be opened ({reason}); give {allowed}{near}"
        ) from None
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a folder; give a file in it")
    if not os.access(path, os.R_OK):
        raise UsageError(
            f"{str(path)!r} may not be read; change its permissions (chmod +r) or copy it"
        )
    if regular and not path.is_file():
        raise UsageError(f"{str(path)!r} is a pipe, which is read only once; give a file")


def check_sentence(word: str) -> None:
    """Refuse a sentence of the command line that looks like the name of a file, or is not text."""
    if _NAME_OF_FILE.search(word):
        check_file(Path(word))
    check_encodable(word)


@contextlib.contextmanager
def open_file(name: str | Path) -> Iterator[BinaryIO]:
    """Open a local file or a URL for reading."""
    if is_remote(name):
        file = cast(
            BinaryIO, on_file_system(str(name), lambda system, path: system.open(path, "rb"))
        )
    else:
        check_file(Path(name))
        file = Path(name).open("rb")
    with file:
        yield file


class _HashedBytes(io.RawIOBase):
    """A stream that hashes the bytes it passes on, so that a pipe, too, is read only once."""

    def __init__(self, stream: BinaryIO) -> None:
        self._read = getattr(stream, "read1", stream.read)
        self.hash = hashlib.sha256()
        self.size = 0  #: bytes so far

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill ``buffer`` with the bytes that have arrived, at least one before the end.

        Return how many.
        """
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        self.hash.update(data)
        self.size += len(data)
        return len(data)


@dataclass(frozen=True)
class Text:
    """An open file of text after a first look."""

    head: str  #: its first ``LOOK`` bytes; of a pipe those that have arrived
    complete: bool  #: whether that is all of it
    plain: bool  #: whether its lines can be counted by the line feeds of the file
    lines: Iterator[str]  #: with their line ends, ``\\n`` if it has others
    sha256: Callable[[], str]  #: hex SHA-256 of the bytes read so far


def open_text(
    file: BinaryIO,
    name: str,
    ending: str,
    tell: Callable[[str], None],
    bad: BadRows = REFUSED,
) -> Text:
    """Look at the beginning of a file, which may be a pipe.

    ``tell`` is called if it is not plain UTF-8, ``bad`` gets lines that are not text.

    ``ending`` is a key of ``COMPRESSED``, or any other one. A file that is not UTF-8, but looks
    like text of Western Europe's Windows, is read as such.
    """
    raw = _HashedBytes(file)
    stream = io.BufferedReader(raw, _BUFFER)
    if ending in COMPRESSED:
        stream = io.BufferedReader(COMPRESSED[ending](stream), _BUFFER)
    with _naming_damage(name, ending):
        head = stream.peek(LOOK)[:LOOK]
    for first, kind in _OTHER_KINDS.items():
        if head.startswith(first):
            raise UsageError(f"{name}: {kind}")
    utf16 = head[:2] in _UTF16
    encoding = "utf-16" if utf16 else "utf-8-sig"
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
    if utf16:
        tell(f"{name}: read as UTF-16")
    elif "\ufffd" in text and _is_western(head):
        text = head.decode("cp1252")
    returns = "\r" in text.removesuffix("\r") and "\n" not in text
    if returns:
        tell(f"{name}: its lines end with a carriage return alone")
    errors = "surrogatepass" if utf16 else "surrogateescape"
    newline = None if returns else "\n"
    text_lines = io.TextIOWrapper(stream, encoding, errors, newline)
    lines = _check_lines(text_lines, name, None if utf16 else head, tell, ending=ending, bad=bad)
    if ending in COMPRESSED:
        lines = _no_bomb(lines, name, lambda: raw.size)
    return Text(
        text.replace("\r", "\n") if returns else _STRAY_RETURNS.sub("\r\n", text),
        len(head) < LOOK and file.seekable(),
        not (utf16 or returns or ending in COMPRESSED),
        lines,
        lambda: raw.hash.hexdigest(),
    )


def skipped_files(errors: Sequence[UsageError]) -> str:
    """Return the note on files that were left out, given the errors of reading them."""
    tables = [error for error in errors if isinstance(error, NoColumnError)]
    others = [error for error in errors if not isinstance(error, NoColumnError)]
    parts = list[str]()
    if others:
        names = [str(error).partition(": ")[0] for error in others]
        files = counted(len(others), "file")
        parts.append(
            f"skipped {files} that cannot be read as text or tables: {_first_names(names)}"
        )
    if tables:
        names = [error.file for error in tables]
        parts.append(
            f"skipped {counted(len(tables), 'table')} without a column 'text' or 'sentence':"
            f" {_first_names(names)}; {tables[0].hint}"
        )
    return "; ".join(parts)


def _first_names(names: Sequence[str]) -> str:
    if len(names) <= 3:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3:,} more"


def decoded_lines(path: Path, tell: Callable[[str], None] = note) -> Iterator[str]:
    """Yield the lines of a file of text, which may be compressed or in another encoding than UTF-8;
    ``tell`` is called if it is.
    """
    with open_file(path) as file:
        yield from open_text(file, str(path), path.suffix.lower(), tell).lines


def read_lines(path: Path, encoding: str = "utf-8-sig") -> Iterator[str]:
    """Yield the lines of a local file with their line ends, without a byte order mark."""
    with open_file(path) as file, io.TextIOWrapper(file, encoding, "surrogateescape", "\n") as text:
        yield from _check_lines(text, str(path))


def _check_lines(
    text: io.TextIOWrapper,
    name: str,
    head: bytes | None = None,
    tell: Callable[[str], None] = lambda message: None,
    *,
    ending: str = "",
    bad: BadRows = REFUSED,
) -> Iterator[str]:
    """Yield lines that are whole and well encoded, and an empty one in place of a bad one; with a
    ``head`` they may be cp1252.
    """
    number = 1
    encoding = "" if head is not None else text.encoding.removesuffix("-sig")
    with _naming_damage(name, ending, lambda: number):
        try:
            while line := text.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE:
                    size = f"{LONGEST_LINE >> 20} MiB"
                    raise UsageError(
                        f"{name}: line {number} is longer than {size}; give one row a line"
                    )
                problem = None
                if "\0" in line:
                    problem = "a NUL byte; if it is UTF-16: iconv -f UTF-16"
                elif not line.isascii():
                    if not encoding:  # the first line that is not ASCII decides
                        data = line.encode("utf-8", "surrogateescape")
                        western = not is_unicode(line) and _is_western(
                            head if head and not head.isascii() else data
                        )
                        encoding = "cp1252" if western else "utf-8"
                        if western:
                            tell(
                                f"{name}: read as Windows' cp1252, e.g. line {number}:"
                                f" {_excerpt(data)}"
                            )
                    try:
                        if encoding == "cp1252":
                            line = line.encode("utf-8", "surrogateescape").decode("cp1252")
                        else:
                            # refuses a surrogate, which is a byte that could not be decoded
                            line.encode("utf-8")
                    except UnicodeError:
                        problem = f"not {encoding.upper()}; {_CONVERT}"
                if problem is not None:
                    bad.add(name, "line", number, problem, line)
                    line = "\n"
                yield _mend_end(line)
                number += 1
        except UnicodeError:
            raise UsageError(f"{name}: line {number}: not {encoding.upper()}; {_CONVERT}") from None


#: An end of line that was converted twice; it is looked for once in each run, however long that is.
_STRAY_RETURNS = re.compile("(?<!\r)\r\r+\n")


def _mend_end(line: str) -> str:
    """Return a line that ends with at most one carriage return."""
    if line.endswith(("\r\r\n", "\r\r")):
        return line.rstrip("\r\n") + "\r\n"
    return line


def without_end(line: str) -> str:
    """Return a line without its line end."""
    return line.removesuffix("\n").removesuffix("\r")


def check_unpacked(name: str, unpacked: int, packed: int, remedy: str) -> None:
    """Refuse a compressed file, of which ``packed`` bytes are read, that would fill the memory: few
    bytes become many.

    Text of any language becomes a tenth of its size, a line that is repeated a thousandth.
    """
    if unpacked > UNPACKED and unpacked > RATIO * packed:
        raise UsageError(
            f"{name} unpacks to more than {RATIO:,} times its size; if that is right, {remedy}"
        )


def _no_bomb(lines: Iterator[str], name: str, packed: Callable[[], int]) -> Iterator[str]:
    """Yield the lines of a compressed file while they are not too many for its size."""
    unpacked = 0
    for line in lines:
        unpacked += len(line) + LINE
        if unpacked > UNPACKED:
            check_unpacked(name, unpacked, packed(), "unpack it before")
        yield line


@contextlib.contextmanager
def _naming_damage(name: str, ending: str, line: Callable[[], int] = lambda: 1) -> Iterator[None]:
    """Name the file and the line at which compressed data are damaged."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        reason = one_line(error, 100)
        if ending in COMPRESSED:
            problem = f"damaged or cut-off {ending} data ({reason}); compress it again"
        else:
            problem = f"cannot be read ({reason}); copy it, or look at its disk"
        raise UsageError(f"{name}: line {line()}: {problem}") from None


def _excerpt(line: bytes) -> str:
    """Return a line of cp1252 around its first letter that is not ASCII, and what to do if that
    letter is wrong.
    """
    text = line.decode("cp1252", "replace").strip()
    place = next((place for place, sign in enumerate(text) if not sign.isascii()), 0)
    return f"{text[max(place - 20, 0) : place + 20]}; else: iconv -f ENCODING -t UTF-8"


#: Signs that other encodings of one byte have for letters: not inside a word, or not at this end of
#: one.
_NOT_WESTERN = re.compile(
    r"[^\W\d_][\xa1-\xb6\xb8-\xbf][^\W\d_]|[\xa3\xa5\xb3\xb9\xbc\xbe][^\W\d_]|[a-z][À-ÖØ-ÞŠŒŽŸ„\u201a]"
)


def _is_western(data: bytes) -> bool:
    """Return whether text that is not UTF-8 looks like cp1252: mostly ASCII letters, no signs
    inside words.
    """
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        return False
    letters = [character for character in text if character.isalpha()]
    foreign = sum(not character.isascii() for character in letters)
    return 2 * foreign <= len(letters) and _NOT_WESTERN.search(text) is None


def count_lines(path: Path) -> int:
    """Return the number of lines of a plain file, the last one with or without its line ending."""
    lines = 0
    last = b"\n"
    with path.open("rb") as file:
        while block := file.read(_BUFFER):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def has_quotes(path: Path) -> bool:
    """Return whether a plain file has a double quote."""
    with path.open("rb") as file:
        while block := file.read(_BUFFER):
            if b'"' in block:
                return True
    return False


def state_of(name: str) -> tuple[int, str]:
    """Return the size of a file and a stamp that changes when the file does."""
    if is_remote(name):
        state: tuple[int, str] = on_file_system(
            name, lambda system, path: (int(system.size(path)), str(system.ukey(path)))
        )
        return state
    check_file(Path(name), regular=True)
    local = Path(name).stat()
    return local.st_size, str(local.st_mtime_ns)


def find_inputs(names: Sequence[str]) -> list[str]:
    """Return the files of names, globs, folders of Parquet files and URLs, in order.

    Globs sorted.
    """
    files: list[str] = []
    for name in names:
        if not name.strip():
            raise UsageError(
                "the name of an input is empty (a variable that is not set?); give a file"
            )
        files += _find_remote(name) if is_remote(name) else _find_local(name)
    seen = set[str]()
    for name in files:
        if name in seen:
            raise UsageError(f"{name} is given twice; give every file once")
        seen.add(name)
    return files


def _find_local(name: str) -> list[str]:
    path = Path(name)
    if path == STANDARD:
        raise UsageError(
            "parts are made from files, which can be read again, not from standard input; give"
            " files"
        )
    if path.is_dir():
        inside = (file for file in path.rglob("*.parquet") if file.is_file())
        # Arrow and Spark, too, skip names that begin with an underscore or a dot
        files = sorted(
            str(file)
            for file in inside
            if not any(step[0] in "._" for step in file.relative_to(path).parts)
        )
        if not files:
            raise UsageError(
                f"{name!r} is a folder without .parquet files; give files, or a glob:"
                f" '{name}/*.txt'"
            )
        return files
    if not path.exists() and any(sign in name for sign in _WILDCARDS):
        files = sorted(file for file in glob.glob(name, recursive=True) if Path(file).is_file())
        if not files:
            raise NotFoundError(f"no file matches {name!r}; look with: ls {name}")
        return files
    check_file(path, regular=True)
    return [name]


def _find_remote(name: str) -> list[str]:
    def look(system: Any, path: str) -> list[str]:
        if any(sign in path for sign in _WILDCARDS):
            return sorted(system.glob(path))
        if system.isdir(path):
            return sorted(file for file in system.find(path) if file.endswith(".parquet"))
        if system.exists(path):
            return [path]
        return []

    protocol = name.partition("://")[0]
    files = on_file_system(name, look)
    if not files:
        raise NotFoundError(
            f"{name!r}: no such file; give a file, a glob, or a folder of .parquet files"
        )
    return [f"{protocol}://{path.removeprefix(f'{protocol}://').lstrip('/')}" for path in files]
