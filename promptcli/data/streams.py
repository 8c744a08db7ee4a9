r"""Lines of a UTF-8 file, gzip file or stream, and the SHA-256 of the bytes read. Knows nothing of sentences.

A line ends at ``\n`` only: U+2028, form feeds and the like may stand inside a sentence.
"""

import contextlib
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from promptcli.errors import NotFoundError, UsageError, did_you_mean

#: The longest line in bytes. Longer "lines" come from files that are no text, and would fill the memory.
LONGEST_LINE = 64 << 20

#: The path that stands for standard input, and for standard output.
STANDARD = Path("-")

BUFFER = 1 << 20
_BOM = b"\xef\xbb\xbf"
#: Bytes that a file of another kind begins with, and what to do with it.
_OTHER_KINDS = {
    b"\xff\xfe": "UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 IN > OUT",
    b"\xfe\xff": "UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 IN > OUT",
    b"\x1f\x8b": "gzip data; name the file .gz, or pipe it through gunzip -c",
}
#: What gzip raises for damaged data.
GZIP_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)


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


def check_file(path: Path, *, regular: bool = False) -> None:
    """Refuse a path that cannot be read as a file, and with ``regular`` a pipe.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It is a folder or a pipe, or may not be read.
    """
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
        raise UsageError(f"{str(path)!r} is a pipe, and {path.suffix} is not read from front to end; give a file")


@contextlib.contextmanager
def open_hashed(path: Path, stdin: BinaryIO | None = None) -> Iterator[HashedBytes]:
    """Open a file for reading once from the start; ``stdin`` is read in its place where given.

    Raises:
        NotFoundError, UsageError: See ``check_file``.
    """
    if stdin is not None:
        yield HashedBytes(stdin)
        return
    check_file(path)
    with path.open("rb") as file:
        yield HashedBytes(file)


def open_buffered(raw: HashedBytes, *, gzipped: bool = False) -> io.BufferedIOBase:
    """Return a stream of the bytes, decompressed where they are gzip-compressed."""
    stream = io.BufferedReader(raw, BUFFER)
    return gzip.GzipFile(fileobj=stream, mode="rb") if gzipped else stream


def read_lines(raw: HashedBytes, name: str, *, gzipped: bool = False, first: int = 1) -> Iterator[str]:
    """Yield lines with their line endings; a byte order mark before line 1 is dropped.

    In messages the source is called ``name``, and its first line has the number ``first``.

    Raises:
        UsageError: Not UTF-8, a NUL byte, a line beyond ``LONGEST_LINE``, or damaged gzip data; with line and byte.
    """
    stream, number = open_buffered(raw, gzipped=gzipped), first
    try:
        while line := stream.readline(LONGEST_LINE + 1):
            if number == 1:
                if line[:2] in _OTHER_KINDS:
                    raise UsageError(f"{name}: line 1, byte 1: {_OTHER_KINDS[line[:2]]}")
                line = line.removeprefix(_BOM)
            if len(line) > LONGEST_LINE:
                raise UsageError(
                    f"{name}: line {number} is longer than {LONGEST_LINE >> 20} MiB; give one sentence a line"
                )
            if b"\0" in line:
                at = line.index(b"\0") + 1
                raise UsageError(
                    f"{name}: line {number}, byte {at}: a NUL byte, so no UTF-8 text (UTF-16? iconv -f UTF-16 -t UTF-8)"
                )
            yield line.decode()
            number += 1
    except UnicodeDecodeError as error:
        found = f"line {number}, byte {error.start + 1} (0x{error.object[error.start]:02x})"
        raise UsageError(f"{name}: {found}: not UTF-8; convert it, e.g. iconv -f LATIN1 -t UTF-8 IN > OUT") from None
    except GZIP_ERRORS as error:
        raise UsageError(f"{name}: line {number}: damaged or cut-off gzip data ({error}); compress it again") from None


def count_lines(path: Path) -> int:
    """Return the number of lines of a plain file, the last one with or without its line ending."""
    lines, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(BUFFER):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")
