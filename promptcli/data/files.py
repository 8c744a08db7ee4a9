r"""Files, pipes and URLs: their names, their bytes with a SHA-256, and their lines.

A line ends at ``\n`` only: U+2028, form feeds and the like may occur inside a sentence.
"""

import contextlib
import glob
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from promptcli.errors import NotFoundError, PromptcliError, UsageError, did_you_mean, one_line

#: The longest line in bytes. Longer "lines" come from files that are not text, and would fill the memory.
LONGEST_LINE = 64 << 20
#: The path of standard input and of standard output.
STANDARD = Path("-")

_BUFFER = 1 << 20
_BOM = b"\xef\xbb\xbf"
#: First bytes of files that are not text, and what to do with them.
_OTHER_KINDS = {
    b"\xff\xfe": "UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 IN > OUT",
    b"\xfe\xff": "UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 IN > OUT",
    b"\x1f\x8b": "gzip data; name the file .gz, or pipe it through gunzip -c",
}
_GZIP_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)
_WILDCARDS = "*?["
#: File systems of fsspec on this machine.
_LOCAL = ("memory", "file", "local")


class HashedBytes(io.RawIOBase):
    """A stream that hashes the bytes it passes on, so that a pipe, too, is read only once."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()

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


def read_lines(
    file: BinaryIO | io.RawIOBase, name: str, *, gzipped: bool = False, encoding: str = "utf-8"
) -> Iterator[str]:
    """Yield lines with their line endings, without a byte order mark; messages call the file ``name``."""
    stream: Any = io.BufferedReader(file, _BUFFER) if isinstance(file, io.RawIOBase) else file
    if gzipped:
        stream = gzip.GzipFile(fileobj=stream, mode="rb")
    number = 1
    try:
        while line := stream.readline(LONGEST_LINE + 1):
            if number == 1:
                if line[:2] in _OTHER_KINDS:
                    raise UsageError(f"{name}: line 1: {_OTHER_KINDS[line[:2]]}")
                line = line.removeprefix(_BOM)
            if len(line) > LONGEST_LINE:
                size = f"{LONGEST_LINE >> 20} MiB"
                raise UsageError(f"{name}: line {number} is longer than {size}; give one sentence a line")
            if b"\0" in line:
                raise UsageError(f"{name}: line {number}: a NUL byte, so not text; if it is UTF-16: iconv -f UTF-16")
            yield line.decode(encoding)
            number += 1
    except UnicodeDecodeError:
        raise UsageError(
            f"{name}: line {number}: not UTF-8; convert it, e.g. iconv -f LATIN1 -t UTF-8 IN > OUT"
        ) from None
    except _GZIP_ERRORS as error:
        raise UsageError(f"{name}: line {number}: damaged or cut-off gzip data ({error}); compress it again") from None


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
