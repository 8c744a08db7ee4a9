"""Rows and queries of an index from files: sentences encoded window by window, or stored vectors and their texts.

Knows nothing of FAISS.
"""

import functools
import mmap
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa

from promptcli.data.streams import STANDARD
from promptcli.data.tables import Fields, Record, open_parquet, read_batches, values_of
from promptcli.data.text import Source, open_source
from promptcli.data.vectors import Vectors, holds_vectors, manifest_path, read_vectors
from promptcli.data.vectors.formats import COLUMN, Sink, columns_of, opened, rows_of
from promptcli.data.vectors.part_folder import PartFolder, is_part_folder
from promptcli.data.vectors.precision import PRECISIONS
from promptcli.encoder.embedding import EmbedReport, embed_stream, windows
from promptcli.encoder.encoded import Progress
from promptcli.errors import CheckFailedError, UsageError
from promptcli.index.origins import check_same, origin_of
from promptcli.index.rows import BLOCK, ArrayRows, Block, Floats, RowNumbers, Rows
from promptcli.index.stored import Origin
from promptcli.notes import is_shown, working
from promptcli.recipe import Recipe
from promptcli.registry.registry import portable

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder

#: Queries encoded and searched at once.
_WINDOW = 1024

#: Makes an encoder, once the input is known to be right.
Opener = Callable[[], "Encoder"]


@dataclass(frozen=True)
class Incoming:
    """Rows that are to be indexed, and how their encoding went (None: none was needed)."""

    rows: Rows
    report: EmbedReport | None


@dataclass(frozen=True)
class RowFiles:
    """Where the rows of an index are to come from."""

    file: Path  #: Sentences as for ``embed`` (``-`` for ``stdin``), or vectors.
    texts: Path | None  #: The sentences that a file of vectors was made from.
    fields: Fields  #: Of the file that holds sentences.
    stdin: BinaryIO | None = None
    spool: Path | None = None  #: The folder on whose disk encoded rows wait; None: that of temporary files.

    @property
    def are_vectors(self) -> bool:
        """Whether ``file`` holds vectors."""
        if self.file.is_dir():
            return is_part_folder(self.file) or any(path.suffix == ".parquet" for path in self.file.iterdir())
        return self.file != STANDARD and holds_vectors(self.file)

    def encoded(self, opener: Opener) -> "tuple[Incoming, Encoder]":
        """Return the rows of a file of sentences."""
        if self.texts is not None:
            raise UsageError(f"{self.file} holds sentences itself; leave out --texts, it is for .npy and .safetensors")
        with open_source(self.file, self.fields, stdin=self.stdin) as source:
            encoder = opener()
            with working("index", source.total() if is_shown() else None) as advance:
                return _encode_rows(encoder, source, self.spool, advance), encoder

    def stored(self) -> "tuple[Incoming, dict[str, Any] | None]":
        """Return the rows of a file of vectors, and its manifest where it has one."""
        if self.texts is None and self.fields != Fields():
            raise UsageError(f"{self.file} holds vectors; --text-field and --id-field are for sentences")
        if self.file.is_dir():
            if self.texts is not None:
                raise UsageError(f"{self.file} is a folder of parts, which hold their texts; leave out --texts")
            rows = PartRows(self.file)
            return Incoming(rows, None), rows.manifest
        return _stored_rows(self.file, self.texts, self.fields)


def rows_to_build(files: RowFiles, opener: Opener, *, named: bool, model: str | None) -> "tuple[Incoming, Origin]":
    """Return the rows of a new index, and the encoder they come from.

    Args:
        files: The input.
        opener: Makes the encoder; not called for vectors that say which encoder made them, unless ``named``.
        named: Whether the user named the encoder.
        model: The registry entry that holds its fitted numbers, if it has any.

    Raises:
        UsageError: vectors of another encoder than the one that is named, or of an unknown one.
    """
    if not files.are_vectors:
        rows, encoder = files.encoded(opener)
        return rows, origin_of(encoder, model)
    rows, manifest = files.stored()
    if named:
        encoder = opener()
        if manifest is not None:
            check_same(manifest["fingerprint"], encoder.fingerprint, str(files.file), "the encoder you name")
        width = rows.rows.shape[1]
        if width != encoder.width:
            raise UsageError(f"{files.file}: vectors of width {width}, but the encoder's are {encoder.width}")
        return rows, origin_of(encoder, model)
    if manifest is None:
        raise UsageError(f"{files.file} has no manifest, so its encoder is unknown; name it, e.g. --model NAME")
    recipe = portable(Recipe.from_dict(manifest["recipe"]))
    return rows, Origin(manifest["fingerprint"], recipe.to_dict(), None, manifest["model"])


def rows_to_add(files: RowFiles, origin: Origin, opener: Opener) -> "Incoming":
    """Return rows for an index whose vectors come from ``origin``; ``opener`` makes that encoder.

    Raises:
        UsageError: vectors of another encoder, or of an unknown one.
        CheckFailedError: the encoder cannot be made again.
    """
    if not files.are_vectors:
        return files.encoded(opener)[0]
    rows, manifest = files.stored()
    _check_manifest(manifest, origin, files.file)
    return rows


def read_queries(files: RowFiles, origin: Origin, opener: Opener) -> "Iterator[tuple[list[str], Floats]]":
    """Yield the queries of a file, text or else id, and their vectors (q, d), window by window.

    Stored vectors need no encoder.
    """
    if files.are_vectors:
        stored, manifest = RowFiles(files.file, None, files.fields).stored()
        _check_manifest(manifest, origin, files.file)
        for block in stored.rows.blocks():
            yield list(block.texts or map(str, block.ids)), block.vectors
        return
    with open_source(files.file, files.fields, stdin=files.stdin) as source:
        encoder = opener()
        for part in windows(source, lambda record: len(record.text), size=_WINDOW):
            texts = [record.text for record in part]
            yield texts, encoder.encode(texts)


def _check_manifest(manifest: "dict[str, object] | None", origin: Origin, file: Path) -> None:
    if manifest is None:
        raise UsageError(f"{file} has no manifest, so its encoder is unknown; embed the sentences again with -o FILE")
    check_same(str(manifest["fingerprint"]), origin.fingerprint, str(file))


def _encode_rows(encoder: "Encoder", source: Source, folder: Path | None, progress: Progress) -> Incoming:
    """Encode all sentences of a source, window by window, into files on the disk of ``folder``.

    Raises:
        PromptcliError: see ``embed_stream`` and ``Source``.
    """
    spool = Spool(folder)
    with opened(spool):
        report = embed_stream(encoder, source, spool, progress=progress)
    return Incoming(spool.rows(), report)


def _stored_rows(path: Path, texts: Path | None, fields: Fields) -> tuple[Incoming, dict[str, Any] | None]:
    """Return the rows of a vector file, and its manifest where it has one.

    Args:
        path: The vector file.
        texts: The file of sentences it was made from, for a file that holds no texts itself.
        fields: Of that file.

    Raises:
        NotFoundError, UsageError: see ``read_vectors`` and ``open_source``; or the rows are not equally many.
        CheckFailedError: a damaged file, or ``texts`` is not the file that the manifest names.
    """
    vectors = read_vectors(path)
    if PRECISIONS[vectors.precision].packed:
        raise UsageError(f"{path} holds one bit a number; embed again with --precision float32, float16 or int8")
    if vectors.manifest is not None and not {"fingerprint", "recipe", "model"} <= vectors.manifest.keys():
        raise CheckFailedError(f"{manifest_path(path)} does not say which encoder made the vectors; embed again")
    if texts is not None:
        vectors = _with_texts(vectors, path, texts, fields)
    return Incoming(ArrayRows(vectors.matrix, vectors.ids, vectors.texts), None), vectors.manifest


def _with_texts(vectors: Vectors, path: Path, texts: Path, fields: Fields) -> Vectors:
    if vectors.texts is not None:
        raise UsageError(f"{path} holds its texts itself; leave out --texts")
    with open_source(texts, fields) as source:
        records = list(source)
        digest = source.sha256()
    if len(records) != len(vectors.matrix):
        raise UsageError(f"{texts} has {len(records):,} sentences and {path} {len(vectors.matrix):,} vectors")
    expected = ((vectors.manifest or {}).get("input") or {}).get("sha256", digest)
    if digest != expected:
        raise CheckFailedError(
            f"{texts} is not the file that {path} was made from (its sha256 differs); embed it again"
        )
    ids: Any = [record.id for record in records]
    return replace(vectors, ids=ids, texts=[record.text for record in records])


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
            with _parquet(path) as file:
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
                texts = [str(text) for text in values_of(batch, "text", group.path)] if self.has_texts else None
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
        with _parquet(group.path) as file:
            yield from read_batches(file, BLOCK, row_groups=[group.number], columns=list(columns))

    def _vectors(self, batch: Any, group: _Group) -> Floats:
        vectors = rows_of(batch.column(COLUMN), f"{group.path}: row group {group.number + 1}")
        if vectors.shape[1] != self.shape[1]:
            raise UsageError(f"{group.path}: vectors of {self.shape[1]} and of {vectors.shape[1]} numbers")
        return vectors


def _parquet(path: Path) -> AbstractContextManager[Any]:
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
    return [str(name) for name in values_of(batch, "id", path)]


class Spool(Sink):
    """Takes the windows of ``embed_stream`` and holds none of them in memory.

    Args:
        folder: On its disk the rows wait; None: on that of temporary files.
    """

    def __init__(self, folder: Path | None) -> None:
        self._vectors, self._labels = (tempfile.TemporaryFile(dir=folder) for _ in range(2))
        self._writer: Any = None

    def write(self, records: Sequence[Record], vectors: Floats) -> None:
        """Append rows: ids are texts in all records of a source, or in none."""
        columns: dict[str, Any] = {"text": pa.array([record.text for record in records], pa.large_string())}
        if isinstance(records[0].id, str):
            columns["id"] = pa.array([record.id for record in records], pa.large_string())
        batch = pa.record_batch(columns)
        if self._writer is None:
            self._writer, self._width = pa.ipc.new_file(self._labels, batch.schema), vectors.shape[1]
        self._writer.write_batch(batch)
        self._vectors.write(np.ascontiguousarray(vectors, np.float32).data)

    def close(self) -> None:
        """Write what stands at the end; ``rows`` may be asked for after this."""
        self._writer.close()
        self._labels.flush()
        self._vectors.flush()

    def abandon(self) -> None:
        """Let go of the files."""
        self._vectors.close()
        self._labels.close()

    def rows(self) -> "SpooledRows":
        """Return what was written, mapped."""
        matrix = np.frombuffer(_mapped(self._vectors), np.float32).reshape(-1, self._width)
        labels = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(_mapped(self._labels)))).read_all()
        return SpooledRows(ArrayRows(matrix, range(len(matrix)), None), labels)


@dataclass(frozen=True)
class SpooledRows:
    """Rows in mapped files; see ``rows.Rows``."""

    numbered: ArrayRows  #: The vectors, and row numbers as ids.
    labels: Any  #: Table of ``text`` and, where the rows have ids of their own, ``id``.
    has_texts = True

    @property
    def shape(self) -> tuple[int, int]:
        """Their number and width, (n, d)."""
        return self.numbered.shape

    def blocks(self) -> Iterator[Block]:
        """Yield them in order."""
        named = "id" in self.labels.column_names
        for start, block in zip(range(0, len(self.labels), BLOCK), self.numbered.blocks(), strict=True):
            part = self.labels.slice(start, BLOCK)
            ids = part.column("id").to_pylist() if named else block.ids
            yield Block(block.vectors, ids, part.column("text").to_pylist())

    def sample(self, count: int) -> tuple[RowNumbers, Floats]:
        """Return up to ``count`` rows from all over."""
        return self.numbered.sample(count)


def _mapped(file: BinaryIO) -> mmap.mmap:
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
