r"""Files, pipes and URLs: their names, their bytes with a SHA-256, and their lines.

A line ends at ``\n`` only (at ``\r`` in a file without ``\n``): U+2028, form feeds and the like may occur inside a
sentence.
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

from promptcli.errors import NotFoundError, PromptcliError, UsageError, did_you_mean, one_line

#: The longest line in bytes. Longer "lines" come from files that are not text, and would fill the memory.
LONGEST_LINE = 64 << 20
#: The path of standard input and of standard output.
STANDARD = Path("-")

#: Bytes of a text file by which its form is recognised.
LOOK = 1 << 16

_BUFFER = 1 << 20
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
#: First bytes of files that are not text, and what to do with them.
_OTHER_KINDS = {
    **dict.fromkeys(_UTF16, "UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 IN > OUT"),
    b"\x1f\x8b": "gzip data; name the file .gz, or pipe it through gunzip -c",
    b"PK\x03\x04": "an Excel workbook or a zip archive, not text; save the table as CSV, or unpack it",
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
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError)
_WILDCARDS = "*?["
#: File systems of fsspec on this machine.
_LOCAL = ("memory", "file", "local")


class HashedBytes(io.RawIOBase):
    """A stream that hashes the bytes it passes on, so that a pipe, too, is read only once."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self.live = not stream.seekable()  #: a pipe, whose next rows may be a long time coming

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill ``buffer`` with the bytes that have arrived, at least one before the end; return how many."""
        data = getattr(self._stream, "read1", self._stream.read)(len(buffer))
        buffer[: len(data)] = data
        self._hash.update(data)
        return len(data)

    def sha256(self) -> str:
        """Return the hex SHA-256 of the bytes read so far."""
        return self._hash.hexdigest()


def is_remote(name: str | Path) -> bool:
    """Return whether a name is a URL that fsspec opens."""
    return "://" in str(name)


def needs_network(names: Iterable[str]) -> str | None:
    """Return the first of these names that is on another machine, or None."""
    return next((name for name in names if is_remote(name) and name.partition("://")[0] not in _LOCAL), None)


def check_file(path: Path, *, regular: bool = False) -> None:
    """Refuse a path that cannot be read as a file; with ``regular`` a pipe, too."""
    try:
        os.stat(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        names: list[str] = []
        with contextlib.suppress(OSError, ValueError):
            names = os.listdir(path.parent)
        near = did_you_mean(path.name, names)
        raise NotFoundError(
            f"{str(path)!r} cannot be opened ({reason}); give a file, or - for standard input{near}"
        ) from None
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a folder; give a file in it")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{str(path)!r} may not be read; change its permissions (chmod +r) or copy it")
    if regular and not path.is_file():
        raise UsageError(f"{str(path)!r} is a pipe, which is read only once; give a file")


@contextlib.contextmanager
def open_file(name: str | Path) -> Iterator[BinaryIO]:
    """Open a local file or a URL for reading."""
    if is_remote(name):
        file = cast(BinaryIO, _remotely(str(name), lambda system, path: system.open(path, "rb")))
    else:
        check_file(Path(name))
        file = Path(name).open("rb")
    with file:
        yield file


class _Recoded(io.RawIOBase):
    r"""A stream that begins with bytes read before; UTF-16 becomes UTF-8 and, if it ends lines alone, ``\r`` ``\n``."""

    def __init__(self, head: bytes, stream: Any, *, utf16: bool, returns: bool) -> None:
        self._head, self._stream, self._returns = head, stream, returns
        self._decoder = codecs.getincrementaldecoder("utf-16")("surrogatepass") if utf16 else None
        self._ready = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill ``buffer``; return how many bytes."""
        while not self._ready:
            data, self._head = self._head, b""
            data = data or self._stream.read1(len(buffer))
            self._ready = data if self._decoder is None else self._utf8(data)
            if self._returns:
                self._ready = self._ready.replace(b"\r", b"\n")
            if not data:
                break
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _utf8(self, data: bytes) -> bytes:
        assert self._decoder is not None
        if not data and self._decoder.getstate()[0]:
            self._decoder.reset()
            return b"\xff"  # half a character at the end: refused with its line
        return self._decoder.decode(data).encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Text:
    """An open file of text after a first look."""

    head: str  #: its first ``LOOK`` bytes
    complete: bool  #: whether that is all of it
    plain: bool  #: whether its lines can be counted by the line feeds of the file
    lines: Iterator[str]  #: as ``read_lines`` yields them


def open_text(
    file: BinaryIO | io.RawIOBase, name: str, ending: str, tell: Callable[[str], None], *, lenient: bool = False
) -> Text:
    """Look at the beginning of a file, which may be a pipe; ``tell`` is called if it is not plain UTF-8.

    ``ending`` is a key of ``COMPRESSED``, or any other one; ``lenient`` is that of ``read_lines``.
    """
    stream: Any = io.BufferedReader(file, _BUFFER) if isinstance(file, io.RawIOBase) else file
    live = ending not in COMPRESSED and getattr(file, "live", False)
    if ending in COMPRESSED:
        stream = COMPRESSED[ending](stream)
    try:
        head = stream.read1(LOOK) if live else stream.read(LOOK)
        while live and b"\n" not in head and len(head) < LOOK and (more := stream.read1(LOOK - len(head))):
            head += more
    except _DAMAGED as error:
        if ending not in COMPRESSED:
            raise
        raise UsageError(f"{name}: line 1: {_damaged(ending, error)}") from None
    utf16 = head[:2] in _UTF16
    if utf16:
        tell(f"{name}: read as UTF-16")
    text = codecs.getincrementaldecoder("utf-16" if utf16 else "utf-8")("replace").decode(head)
    complete = len(head) < LOOK and not live
    returns = "\r" in text.removesuffix("\r" if not complete else "") and "\n" not in text
    if returns:
        tell(f"{name}: its lines end with a carriage return alone")
        text = text.replace("\r", "\n")
    elif "\ufffd" in text:
        text = head.decode("cp1252", "replace") if _is_western(head) else text
    stream = io.BufferedReader(_Recoded(head, stream, utf16=utf16, returns=returns), _BUFFER)
    lines = read_lines(stream, name, sample=None if utf16 else head, tell=tell, ending=ending, lenient=lenient)
    return Text(text.removeprefix("\ufeff"), complete, not (utf16 or returns or ending in COMPRESSED), lines)


def read_lines(
    file: Any,
    name: str,
    *,
    encoding: str = "utf-8",
    sample: bytes | None = None,
    tell: Callable[[str], None] = lambda message: None,
    ending: str = "",
    lenient: bool = False,
) -> Iterator[str]:
    """Yield lines with their line endings, without a byte order mark; messages call the file ``name``.

    With a ``sample`` a file that is not UTF-8, but looks like text of Western Europe's Windows, is read as such. If
    ``lenient``, a line with NUL bytes keeps them, and one that cannot be decoded has lone surrogates.
    """
    errors = "surrogateescape" if lenient else "strict"
    number, encoding = 1, encoding if sample is None else "ascii"  # the first line that is not decides
    try:
        while line := file.readline(LONGEST_LINE + 1):
            if number == 1:
                line = _first_line(line, name)
            if len(line) > LONGEST_LINE:
                size = f"{LONGEST_LINE >> 20} MiB"
                raise UsageError(f"{name}: line {number} is longer than {size}; give one row a line")
            if b"\0" in line and not lenient:
                raise UsageError(f"{name}: line {number}: a NUL byte, so not text; if it is UTF-16: iconv -f UTF-16")
            try:
                text = line.decode(encoding, "strict" if encoding == "ascii" else errors)
            except UnicodeDecodeError:
                if sample is None or encoding != "ascii":
                    raise
                encoding = _encoding_of(line, sample, lambda shown: tell(f"{name}: not UTF-8; {shown}"), number)
                text = line.decode(encoding, errors)
            yield text
            number += 1
    except UnicodeDecodeError:
        raise UsageError(f"{name}: line {number}: not {encoding.upper()}; {_CONVERT}") from None
    except _DAMAGED as error:
        if ending not in COMPRESSED or isinstance(error, PromptcliError):
            raise
        raise UsageError(f"{name}: line {number}: {_damaged(ending, error)}") from None


def _first_line(line: bytes, name: str) -> bytes:
    for first, kind in _OTHER_KINDS.items():
        if line.startswith(first):
            raise UsageError(f"{name}: line 1: {kind}")
    return line.removeprefix(_BOM)


def _damaged(ending: str, error: BaseException) -> str:
    return f"damaged or cut-off {ending} data ({one_line(error, 100)}); compress it again"


def _encoding_of(line: bytes, sample: bytes, tell: Callable[[str], None], number: int) -> str:
    try:
        line.decode()
    except UnicodeDecodeError:
        if not _is_western(line if sample.isascii() else sample):
            return "utf-8"
        text = line.decode("cp1252", "replace").strip()
        place = next((place for place, sign in enumerate(text) if not sign.isascii()), 0)
        shown = text[max(place - 30, 0) : place + 30]
        tell(f"read as Windows' cp1252, e.g. line {number}: {shown}; if that is wrong, {_CONVERT}")
        return "cp1252"
    return "utf-8"


#: Signs that other encodings of one byte have for letters: not inside a word, or not at this end of one.
_NOT_WESTERN = re.compile(
    r"[^\W\d_][\xa1-\xb6\xb8-\xbf][^\W\d_]|[\xa3\xa5\xb3\xb9\xbc\xbe][^\W\d_]|[a-z][À-ÖØ-ÞŠŒŽŸ„\u201a]"
)


def _is_western(data: bytes) -> bool:
    """Return whether text that is not UTF-8 looks like cp1252: mostly ASCII letters, no signs inside words."""
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        return False
    letters = [character for character in text if character.isalpha()]
    foreign = sum(not character.isascii() for character in letters)
    return 2 * foreign <= len(letters) and _NOT_WESTERN.search(text) is None


def count_lines(path: Path) -> int:
    """Return the number of lines of a plain file, the last one with or without its line ending."""
    lines, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(_BUFFER):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def state_of(name: str) -> tuple[int, str]:
    """Return the size of a file and a stamp that changes when the file does."""
    if is_remote(name):
        state: tuple[int, str] = _remotely(name, lambda system, path: (int(system.size(path)), str(system.ukey(path))))
        return state
    check_file(Path(name), regular=True)
    local = Path(name).stat()
    return local.st_size, str(local.st_mtime_ns)


def find_inputs(names: Sequence[str]) -> list[str]:
    """Return the files of names, globs, folders of Parquet files and URLs, in order; globs sorted."""
    files: list[str] = []
    for name in names:
        if not name.strip():
            raise UsageError("the name of an input is empty (a variable that is not set?); give a file")
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
        raise UsageError("parts are made from files, which can be read again, not from standard input; give files")
    if path.is_dir():
        inside = (file for file in path.rglob("*.parquet") if file.is_file())
        # Arrow and Spark, too, skip names that begin with an underscore or a dot
        files = sorted(
            str(file) for file in inside if not any(step[0] in "._" for step in file.relative_to(path).parts)
        )
        if not files:
            raise UsageError(
                f"{name!r} is a folder without .parquet files; give files, or a glob such as '{name}/*.txt'"
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
        return [path] if system.exists(path) else []

    protocol = name.partition("://")[0]
    files = _remotely(name, look)
    if not files:
        raise NotFoundError(f"{name!r}: no such file; give a file, a glob, or a folder of .parquet files")
    return [f"{protocol}://{path.removeprefix(f'{protocol}://').lstrip('/')}" for path in files]


def _remotely(name: str, do: Callable[[Any, str], Any]) -> Any:
    """Return what ``do`` makes of the file system of a URL and the path on it."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(name)
        return do(system, path)
    except ImportError as error:
        raise NotFoundError(f"{name!r} needs another package: {one_line(error, 160)}") from None
    except PromptcliError:
        raise
    except Exception as error:  # every store raises its own classes
        raise NotFoundError(f"{name!r} cannot be read ({type(error).__name__}: {one_line(error, 160)})") from None
