"""Tables of rows by name, to which installed packages add rows by entry points
(docs/extending.md).
"""

import functools
import glob
import os
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from promptcli.errors import one_line
from promptcli.notes import warn

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_GROUP = "promptcli."
Row = TypeVar("Row")


class Table(MutableMapping[str, Row], Generic[Row]):
    """Rows by name: built-in ones, and those of the entry points ``promptcli.NAME``, loaded on
    first use.

    Plug-ins that fail to load or reuse a name are skipped with a warning.
    """

    def __init__(self, name: str, rows: Mapping[str, Row]) -> None:
        self.name = name
        self.own = dict(rows)
        self._all: dict[str, Row] | None = None
        self._lock = threading.RLock()

    def _rows(self) -> dict[str, Row]:
        with self._lock:
            if self._all is None:
                self._all = dict(self.own)  # for plug-ins that look here while they are loaded
                for point in _entry_points().get(_GROUP + self.name, ()):
                    self._add(point, self._all)
            return self._all

    def _add(self, point: "EntryPoint", rows: dict[str, Row]) -> None:
        where = f"the row {point.name!r} that {point.value} adds to {self.name}"
        if point.name in rows:
            warn(f"{where} is left out: that name is taken")
            return
        try:
            rows[point.name] = point.load()
        except Exception as error:  # a package may raise anything
            warn(f"{where} is left out: {type(error).__name__}: {one_line(error, 160)}")

    def __getitem__(self, name: str) -> Row:
        return self._rows()[name]

    def __setitem__(self, name: str, row: Row) -> None:
        self._rows()[name] = row

    def __delitem__(self, name: str) -> None:
        del self._rows()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())


@functools.cache
def _entry_points() -> "dict[str, list[EntryPoint]]":
    """Return the entry points of our groups.

    The metadata of other packages, which takes long, is not read.
    """
    points: dict[str, list[EntryPoint]] = {}
    for folder in dict.fromkeys(sys.path):
        for path in glob.iglob(
            os.path.join(glob.escape(folder or "."), "*-info", "entry_points.txt")
        ):
            if f"[{_GROUP}" in Path(path).read_text(encoding="utf-8", errors="replace"):
                from importlib.metadata import Distribution

                for point in Distribution.at(os.path.dirname(path)).entry_points:
                    if point.group.startswith(_GROUP):
                        points.setdefault(point.group, []).append(point)
    return points
