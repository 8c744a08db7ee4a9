"""A folder of Parquet files as rows of an index, read block by block: parts that ``embed`` made, or anybody's."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from promptcli.data.parquet_files import cells, open_parquet, read_batches
from promptcli.data.vectors.parquet import columns_of, rows_of
from promptcli.data.vectors.part_folder import PartFolder, is_part_folder
from promptcli.data.vectors.vector_format import COLUMN
from promptcli.errors import UsageError
from promptcli.index.rows import BLOCK, Block, Floats, RowNumbers

#: Row groups that a sample comes from, at least, and how many rows of each stand for one that is taken.
_GROUPS, _SPARSE = 64, 4


@dataclass(frozen=True)
class _Group:
    """A row group of a file."""

    path: Path
    number: int
    start: int  #: Its first row, over all files.
    rows: int


class PartRows:
    """The rows of all Parquet files of a folder, in the order of their names.

    Args:
        folder: Of parts with the same columns: ``embedding``, and ``id`` and ``text`` where there are any.

    Raises:
        UsageError: there are no such files, or their columns or widths differ.
        CheckFailedError: a part is missing, cut short, or not one of the folder's manifest.
    """

    def __init__(self, folder: Path) -> None:
        self.manifest: dict[str, Any] | None = None
        self._unread: dict[Path, Callable[[], None]] = {}  # what compares a part's checksum before its rows are read
        if is_part_folder(folder):
            parts = PartFolder(folder)
            parts.check()
            self.manifest = vars(parts.manifest)
            paths = [folder / part.path for part in parts.manifest.parts]
            self._unread = {path: functools.partial(parts.check_sum, shard) for shard, path in enumerate(paths)}
        else:
            paths = sorted(path for path in folder.iterdir() if path.suffix == ".parquet" and path.name[0] not in "._")
        self._groups: list[_Group] = []
        columns: dict[Path, Any] = {}
        count = 0
        for path in paths:
            with _opened(path) as file:
                if file.metadata.num_rows:
                    columns[path] = (set(columns_of(file, path)), _width(file, path))
                for number in range(file.num_row_groups):
                    rows = file.metadata.row_group(number).num_rows
                    self._groups.append(_Group(path, number, count, rows))
                    count += rows
        if not count:
            raise UsageError(f"{folder} holds no rows; give a folder of Parquet files with a column {COLUMN!r}")
        first = next(iter(columns))
        for path, (names, width) in columns.items():
            if width != columns[first][1]:
                raise UsageError(f"{path} holds vectors of {width} numbers, {first.name} of {columns[first][1]}")
            if names != columns[first][0]:
                here, there = (", ".join(sorted(found)) for found in (names, columns[first][0]))
                raise UsageError(f"{path} has the columns {here}; {first.name}: {there}")
        self._columns = sorted(columns[first][0])
        self.shape = (count, columns[first][1])
        self.has_texts = "text" in self._columns

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in order; ids that are row numbers over all files are numbers, others texts.

        Raises:
            CheckFailedError: A part of ours is not the one that was written.
        """
        for group in self._groups:
            row = group.start
            if group.path in self._unread:
                self._unread.pop(group.path)()
            for batch in self._batches(group, self._columns):
                for name in self._columns:
                    if batch.column(name).null_count:
                        raise UsageError(f"{group.path}: {name!r} is empty in some of the rows from {row} on")
                texts = [str(text) for text in cells(batch, "text", group.path)] if self.has_texts else None
                yield Block(self._vectors(batch, group), _ids(batch, row, group.path), texts)
                row += len(batch)

    def sample(self, count: int) -> tuple[RowNumbers, Floats]:
        """Return up to ``count`` rows, from row groups all over: only these are read."""
        count, random = min(count, self.shape[0]), np.random.default_rng(0)
        chosen: list[_Group] = []
        there = 0
        for place in random.permutation(len(self._groups)).tolist():
            chosen.append(self._groups[place])
            there += chosen[-1].rows
            if there >= _SPARSE * count and len(chosen) >= _GROUPS:
                break
        chosen.sort(key=lambda group: group.start)
        numbers = np.concatenate([np.arange(group.start, group.start + group.rows) for group in chosen])
        rows = np.sort(random.choice(numbers, count, replace=False)).astype(np.int64)
        vectors, done = np.empty((count, self.shape[1]), np.float32), 0
        for group in chosen:
            row = group.start
            for batch in self._batches(group, [COLUMN]):
                wanted = rows[(rows >= row) & (rows < row + len(batch))] - row
                if len(wanted):
                    vectors[done : done + len(wanted)] = self._vectors(batch.take(pa.array(wanted)), group)
                    done += len(wanted)
                row += len(batch)
        return rows, vectors

    def _batches(self, group: _Group, columns: Sequence[str]) -> Iterator[Any]:
        with _opened(group.path) as file:
            yield from read_batches(file, BLOCK, row_groups=[group.number], columns=list(columns))

    def _vectors(self, batch: Any, group: _Group) -> Floats:
        vectors = rows_of(batch.column(COLUMN), f"{group.path}: row group {group.number + 1}")
        if vectors.shape[1] != self.shape[1]:
            raise UsageError(f"{group.path}: vectors of {self.shape[1]} and of {vectors.shape[1]} numbers")
        return vectors


def _opened(path: Path) -> AbstractContextManager[Any]:
    return open_parquet(path, path, mend="make it again")


def _width(file: Any, path: Path) -> int:
    """Return the numbers in the first vector of a file."""
    first = next(file.iter_batches(1, columns=[COLUMN]))
    return int(rows_of(first.column(COLUMN), f"{path}: row 1").shape[1])


def _ids(batch: Any, row: int, path: Path) -> range | list[str]:
    """Return the ids of a batch whose first row has the number ``row``."""
    numbers = range(row, row + len(batch))
    if "id" not in batch.schema.names:
        return numbers
    found = batch.column("id")
    if pa.types.is_integer(found.type) and (found.to_numpy() == np.array(numbers)).all():
        return numbers
    return [str(name) for name in cells(batch, "id", path)]
