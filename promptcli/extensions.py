"""Tables of rows by name, to which installed packages add rows by entry points.

docs/extending.md describes the tables.
"""

import contextlib
import contextvars
import hashlib
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from promptcli.errors import join_lines
from promptcli.notes import warn

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_PLUGINS = "promptcli.plugins."
Row = TypeVar("Row")


@dataclass(frozen=True, order=True)
class Extension:
    """The origin of a row that is not promptcli's; each version of its code has its own."""

    table: str
    name: str
    distribution: str | None  #: None if a program added the row itself
    version: str | None
    #: SHA-256 of the distribution's RECORD, which has the hash of each file; of the file times if
    #: the install is editable or a program added the row
    record: str

    def __str__(self) -> str:
        """Return distribution, version and the beginning of the hash."""
        owner = self.name
        if self.distribution is not None:
            owner = f"{self.distribution} {self.version}"
        return f"{owner}, {self.record[:16]}"


#: Extensions whose rows were looked up within ``used_extensions``.
_USED: contextvars.ContextVar[set[Extension] | None] = contextvars.ContextVar("used", default=None)


@contextlib.contextmanager
def used_extensions() -> Iterator[set[Extension]]:
    """Yield a set that receives each extension whose row is looked up within the block."""
    outer = _USED.get()
    used: set[Extension] = set()
    token = _USED.set(used)
    try:
        yield used
    finally:
        _USED.reset(token)
        if outer is not None:
            outer |= used


class Table(MutableMapping[str, Row]):
    """Rows by name: built-in ones, and those of the entry points ``promptcli.NAME``.

    Entry points are loaded when all rows are listed, or a name that is not built in is looked up. A
    row that cannot be imported, or whose name is taken, is left out with a warning. A plug-in of
    promptcli whose folder was deleted is left out silently.
    """

    def __init__(self, name: str, rows: Mapping[str, Row]) -> None:
        self.name = name
        self.built_in = rows
        self._rows = dict(rows)
        self._is_complete = False
        self._extensions: dict[str, Extension] = {}
        self._lock = threading.RLock()

    def _complete(self) -> dict[str, Row]:
        """Return all rows; the first call loads those of entry points."""
        from importlib.metadata import entry_points  # slow, and most commands need no plug-in

        with self._lock:
            if not self._is_complete:
                self._is_complete = True  # a plug-in may look up rows while it is loaded
                for point in entry_points(group=f"promptcli.{self.name}"):
                    self._add(point)
            return self._rows

    def _add(self, point: "EntryPoint") -> None:
        """Add the row of an entry point."""
        try:
            if point.name in self._rows:
                raise ValueError("that name is taken; rename the entry point")
            self._rows[point.name] = point.load()
        except Exception as error:  # a package may raise anything
            if not f"{getattr(error, 'name', '')}.".startswith(_PLUGINS):
                row = f"the row {point.name!r} that {point.value} adds to {self.name}"
                warn(f"{row} is left out: {type(error).__name__}: {join_lines(error, 160)}")
            return
        distribution = point.dist
        if point.value.startswith("promptcli.") or distribution is None:
            return
        record = distribution.read_text("RECORD")
        is_editable = '"editable": true' in (distribution.read_text("direct_url.json") or "")
        if record is None or is_editable:
            code = _hash_of_times(point.module)
        else:
            code = hashlib.sha256(record.encode()).hexdigest()
        self._extensions[point.name] = Extension(
            self.name, point.name, distribution.name, distribution.version, code
        )

    def extension(self, name: str) -> Extension | None:
        """Return the origin of a row that was looked up; None if it is promptcli's."""
        return self._extensions.get(name)

    def __getitem__(self, name: str) -> Row:
        row = self._rows[name] if name in self._rows else self._complete()[name]
        used = _USED.get()
        if used is not None and name in self._extensions:
            used.add(self._extensions[name])
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(self._complete())

    def __len__(self) -> int:
        return len(self._complete())

    def __delitem__(self, name: str) -> None:
        del self._complete()[name]
        self._extensions.pop(name, None)

    def __setitem__(self, name: str, row: Row) -> None:
        self._complete()[name] = row
        self._extensions.pop(name, None)
        if row is not self.built_in.get(name):
            module = str(getattr(row, "__module__", ""))
            self._extensions[name] = Extension(self.name, name, None, None, _hash_of_times(module))


def _hash_of_times(module: str) -> str:
    """Return the hash of the names and times of all Python files of a module's outermost package,
    or "" if the module has no file.
    """
    outermost = sys.modules.get(module.partition(".")[0])
    origin = getattr(outermost, "__file__", None)
    if origin is None:
        return ""
    path = Path(origin)
    files = path.parent.rglob("*.py") if path.name == "__init__.py" else [path]
    times = sorted((str(file), file.stat().st_mtime_ns) for file in files)
    return hashlib.sha256(repr(times).encode()).hexdigest()
