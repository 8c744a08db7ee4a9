"""Rows of files that cannot be read: refused, or written to a file and read as blank rows.

A blank row keeps its number, so that row i of the vectors stays line i of the input.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from promptcli.errors import UsageError, counted
from promptcli.notes import keyword, note
from promptcli.storage.files import atomic_path, check_output

_KEYS = ["file", "number", "reason", "line"]


class BadRows:
    """What is done with the rows of files that cannot be read: the first one is refused.

    ``hint`` ends its message.
    """

    skips = False  #: whether a row is read as a blank one

    def __init__(self, hint: str = "") -> None:
        self.hint = hint

    def add(self, name: str, kind: str, number: int, reason: str, line: str) -> None:
        """Take a row of the file ``name``; ``number`` counts its lines or rows (``kind``)."""
        raise UsageError(f"{name}: {kind} {number}: {reason}{self.hint}")


class _Ignored(BadRows):
    """Bad rows of files that were read before become blank without a note."""

    skips = True

    def add(self, name: str, kind: str, number: int, reason: str, line: str) -> None:
        pass


class _Written(BadRows):
    """Rows are written to a file, one JSON object a line."""

    skips = True

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self.count = 0
        self._file = file

    def add(self, name: str, kind: str, number: int, reason: str, line: str) -> None:
        values = [name, number, reason, _escape(line.rstrip("\r\n"))]
        row = json.dumps(dict(zip(_KEYS, values, strict=True)), ensure_ascii=False)
        self._file.write(row.encode("utf-8", "backslashreplace") + b"\n")
        self.count += 1


def _escape(line: str) -> str:
    """Return a line with bytes that are not UTF-8, and halves of surrogate pairs, as escapes."""
    try:
        data = line.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = line.encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "backslashreplace")


REFUSED = BadRows()
IGNORED: BadRows = _Ignored()


def refusal_with_hint() -> BadRows:
    """Return what refuses the first bad row where the user may have all written to a file."""
    file = keyword("bad_lines")
    return BadRows(f"; give {file} FILE to list such rows there and read the others")


@contextlib.contextmanager
def bad_rows(path: str | Path | None) -> Iterator[BadRows]:
    """Yield what is done with bad rows in the block: ``path`` gets them, if there is one.

    The file appears when the block ends well, with a note of their number.
    """
    if path is None:
        yield refusal_with_hint()
        return
    if str(path) == "-":
        raise UsageError(
            f"{keyword('bad_lines')} - is standard output, which has the results; give a file"
        )
    path = Path(path)
    check_output(path, force=True, parameter="bad_lines")
    if path.exists() and not _is_ours(path):
        raise UsageError(
            f"{keyword('bad_lines')} {path}: a file of something else; choose another name"
        )
    with atomic_path(path) as temporary:
        with temporary.open("xb") as file:
            written = _Written(file)
            yield written
    if written.count:
        rows = counted(written.count, "row")
        note(f"{rows} cannot be read: listed in {path}, and read as blank")


def _is_ours(path: Path) -> bool:
    """Return whether a file may be replaced: it is empty, or holds rows of an earlier call."""
    with path.open("rb") as file:
        first = file.readline(1 << 20)
    if not first:
        return True
    try:
        row = json.loads(first)
    except ValueError:
        return False
    return isinstance(row, dict) and list(row) == _KEYS
