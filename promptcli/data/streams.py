r"""Numbered lines of a UTF-8 file, gzip file or stream, and the SHA-256 of the bytes read. Knows nothing of sentences.

A line ends at ``\n`` only: U+2028, form feeds and the like may stand inside a sentence.
"""

import contextlib
import gzip
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from promptcli.errors import NotFoundError, UsageError, did_you_mean

#: The longest line in bytes. Longer "lines" come from files that are no text, and would fill the memory.
LONGEST_LINE = 64 << 20

#: The path that stands for standard input, and for standard output.
STANDARD = Path("-")

_BUFFER = 1 << 20
_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class HashedBytes(io.RawIOBase):
    """A stream that passes bytes on and hashes them, so that a pipe, too, is read only once."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill ``buffer`` with what has arrived, at least a byte unless the stream is at its end; return how many."""
        read = getattr(self._stream, "read1", self._stream.read)
        data = read(len(buffer))
        buffer[: len(data)] = data
        self._hash.update(data)
        return len(data)

    def sha256(self) -> str:
        """Return the hex SHA-256 of the bytes read so far."""
        return self._hash.hexdigest()


def check_file(path: Path) -> None:
    """Refuse a path that cannot be read as a file.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is a folder, or may not be read.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        near = did_you_mean(path.name, _names_in(path.parent))
        raise NotFoundError(
            f"{str(path)!r} cannot be opened ({reason}); give a file, or - for standard input{near}"
        ) from None
    if stat.S_ISDIR(mode):
        raise UsageError(f"{str(path)!r} is a folder; give a file in it")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{str(path)!r} may not be read; change its permissions (chmod +r) or copy it")


def check_regular(path: Path) -> None:
    """Refuse what ``check_file`` refuses, and a pipe: for formats that are not read from front to end.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is a folder or a pipe, or may not be read.
    """
    check_file(path)
    if not path.is_file():
        raise UsageError(f"{str(path)!r} is a pipe, and {path.suffix} is not read from front to end; give a file")


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (OSError, ValueError):
        return []


@contextlib.contextmanager
def open_hashed(path: Path, stdin: BinaryIO | None = None) -> Iterator[HashedBytes]:
    """Open a file for reading once from the start; ``stdin`` is read in its place where given.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is a folder, or may not be read.
    """
    if stdin is not None:
        yield HashedBytes(stdin)
        return
    check_file(path)
    with path.open("rb") as file:
        yield HashedBytes(file)


def read_lines(raw: HashedBytes, name: str, *, gzipped: bool = False, first: int = 1) -> Iterator[tuple[int, str]]:
    """Yield (line number, line with its line ending); a byte order mark before line 1 is dropped.

    Args:
        raw: The bytes.
        name: What the source is called in messages.
        gzipped: The bytes are gzip-compressed.
        first: Number of the line that they begin with.

    Raises:
        UsageError: not UTF-8, a NUL byte, a line beyond ``LONGEST_LINE``, or damaged gzip data; with line and byte.
    """
    stream: io.BufferedIOBase = io.BufferedReader(raw, _BUFFER)
    if gzipped:
        stream = gzip.GzipFile(fileobj=stream, mode="rb")
    number = first - 1
    try:
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            yield number, _decode(line, name, number)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(
            f"{name}: line {number + 1}: damaged or cut-off gzip data ({error}); compress it anew"
        ) from None


def strip_ending(line: str) -> str:
    r"""Return ``line`` without its ``\n`` or ``\r\n``."""
    return line.removesuffix("\n").removesuffix("\r")


def count_lines(path: Path) -> int:
    """Return the number of lines of a plain file, the last one with or without its line ending."""
    lines, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(_BUFFER):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def _decode(line: bytes, name: str, number: int) -> str:
    if len(line) > LONGEST_LINE:
        raise UsageError(
            f"{name}: line {number} is longer than {LONGEST_LINE >> 20} MiB; give text with one sentence a line"
        )
    if number == 1:
        _refuse_other_kinds(line, name)
        line = line.removeprefix(_BOM)
    if b"\0" in line:
        at = line.index(b"\0") + 1
        raise UsageError(
            f"{name}: line {number}, byte {at}: a NUL byte, so no UTF-8 text (UTF-16? iconv -f UTF-16 -t UTF-8)"
        )
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"line {number}, byte {error.start + 1} (0x{line[error.start]:02x})"
        raise UsageError(f"{name}: {found}: not UTF-8; convert it, e.g. iconv -f LATIN1 -t UTF-8 IN > OUT") from None


def _refuse_other_kinds(start: bytes, name: str) -> None:
    if start.startswith(_UTF16):
        raise UsageError(f"{name}: line 1, byte 1: UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 IN > OUT")
    if start.startswith(_GZIP):
        raise UsageError(f"{name}: line 1, byte 1: gzip data; name the file .gz, or pipe it through gunzip -c")
