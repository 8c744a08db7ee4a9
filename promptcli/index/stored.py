"""An index as a folder: segments of FAISS's file, ids and texts, what is deleted, and a manifest that names all that.

See ``promptcli.storage.parts``: readers and kills meet the old index or the new one. Small parts are
hashed and read when they are opened; of large ones, which are memory-mapped, only the size is looked at, and
``load(whole=True)`` hashes everything.
Knows nothing of encoders.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import promptcli
from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from promptcli.index.rows import Recall
from promptcli.recipe import Recipe
from promptcli.storage.documents import read_document, to_json
from promptcli.storage.files import hold, is_temporary, real_path
from promptcli.storage.parts import SMALL, PartsWriter, check_part, is_part, part_named, read_parts, replace_parts

if TYPE_CHECKING:
    from promptcli.index.segment import Segment
    from promptcli.index.vector_index import VectorIndex

#: The manifest, which is written last.
MANIFEST = "index.json"
#: The parts of a segment: FAISS's own file, ids, texts; and those of the whole index.
INDEX, IDS, TEXTS, DELETED, TRAINED = "index.faiss", "ids.arrow", "texts.arrow", "deleted.npy", "trained.faiss"
_NAMES = (INDEX, IDS, TEXTS, DELETED, TRAINED)

#: Bytes of a folder's name: that of its lock must fit, too.
_LONGEST_NAME = 240


@dataclass(frozen=True)
class Origin:
    """The encoder whose vectors an index holds, and enough to make it again."""

    fingerprint: str  #: Two encoders are the same if and only if theirs are equal.
    recipe: dict[str, Any]  #: The recipe's fields.
    model: str | None  #: The registry entry that holds its fitted numbers; None where the recipe is enough.
    provenance: dict[str, Any]  #: Where the backbone came from, and the precision it ran in.


@dataclass(frozen=True)
class StoredSegment:
    """The file names of a segment's parts."""

    rows: int
    index: str
    ids: str
    texts: str | None


@dataclass(frozen=True)
class IndexManifest:
    """The content of ``index.json``."""

    rows: int
    dim: int
    factory: str
    texts: bool
    recall: Recall | None
    fingerprint: str
    recipe: dict[str, Any]
    model: str | None
    provenance: dict[str, Any]
    created: str
    sha256: dict[str, str]  #: Of each part, by file name.
    sizes: dict[str, int] = field(default_factory=dict)  #: Bytes of each part.
    segments: list[StoredSegment] = field(default_factory=list)
    deleted: int = 0  #: Rows that are there but masked; ``rows`` does not count them.
    numbered: int | None = None  #: The number of the next row without an id; None: ``rows``.
    nprobe: int | None = None  #: Lists, candidates of a graph, candidates compared again for each answer: of a search.
    ef: int | None = None
    factor: float | None = None
    source: dict[str, Any] | None = None  #: What ``build`` made it from and how; None once it was changed.
    promptcli: str = field(default_factory=lambda: promptcli.__version__)
    metric: str = "inner product of unit vectors"
    schema_version: int = 3

    @property
    def origin(self) -> Origin:
        """The encoder of the vectors."""
        return Origin(self.fingerprint, self.recipe, self.model, self.provenance)


@dataclass(frozen=True)
class StoredIndex:
    """An index of a folder, with where its vectors came from and when it was first built."""

    index: "VectorIndex"
    origin: Origin
    created: str
    source: dict[str, Any] | None = None  #: See ``IndexManifest``.


def check(folder: Path, *, force: bool) -> None:
    """Refuse a folder that ``save`` would refuse, before any work is done.

    Raises:
        UsageError: an index is there, unless ``force``; or something else is, with or without it; or it is no name.
    """
    name = real_path(folder).name
    if len(os.fsencode(name)) > _LONGEST_NAME or not name.isprintable():
        raise UsageError(
            f"{name[:40]!r} is no name for an index; use at most {_LONGEST_NAME} bytes without control characters"
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder with -o")
    others = sorted(path.name for path in folder.iterdir() if not _is_ours(path.name))
    if others:  # nobody's files may go with the old index
        raise UsageError(f"{folder} holds other files ({others[0]}); give a folder for the index alone")
    if (folder / MANIFEST).exists() and not force:
        raise UsageError(f"{folder} holds an index; replace it with `force`, or `promptcli index add` to it")


def built_before(folder: Path, source: dict[str, Any]) -> IndexManifest | None:
    """Return the manifest of a whole index that was built from the same source and not changed since, else None."""
    if not (folder / MANIFEST).is_file():
        return None
    with contextlib.suppress(CheckFailedError):  # what is damaged is no such index
        manifest = read_manifest(folder)
        return manifest if manifest.source == source else None
    return None


def save(folder: Path, stored: StoredIndex, *, force: bool = False) -> IndexManifest:
    """Write an index, whole or not at all, and return its manifest; folders are made if need be.

    Raises:
        UsageError: see ``check``.
    """
    with create(folder, force=force) as store:
        return store.commit(stored)


@contextlib.contextmanager
def create(folder: Path, *, force: bool = False) -> "Iterator[Store]":
    """Yield what takes the segments of a new index as they are made, and then the index; see ``save``."""
    check(folder, force=force)
    folder = real_path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold(_lock(folder)):
        check(folder, force=force)
        with replace_parts(folder, MANIFEST, owns=_is_ours) as writer:
            yield Store(folder, writer)


@contextlib.contextmanager
def change(folder: Path, *, memory: int | None = None) -> Iterator[StoredIndex]:
    """Yield an index and write it back when the block ends well; no other process changes it meanwhile.

    Segments that stay as they are are not written again; new ones go to the disk as they are made.
    ``memory`` is the number of bytes that the process may take for them; None: as many as it takes.

    Raises:
        NotFoundError, CheckFailedError: see ``load``.
    """
    folder = real_path(folder)
    if not (folder / MANIFEST).exists():  # else a lock would be left next to it
        raise _missing(folder)
    with hold(_lock(folder)):
        stored = _load(folder, _checked(folder))
        with replace_parts(folder, MANIFEST, owns=_is_ours) as writer:
            store = Store(folder, writer)
            stored.index.store, stored.index.memory = store.segment, memory
            yield stored
            store.commit(stored)


def load(folder: Path, *, whole: bool = False) -> StoredIndex:
    """Open an index: its manifest is read, its parts are mapped; with ``whole`` every byte is hashed.

    Raises:
        NotFoundError: there is no index.
        CheckFailedError: a file is missing, or not the one that was saved.
    """
    folder = real_path(folder)
    return read_parts(folder / MANIFEST, lambda: _load(folder, _checked(folder, whole=whole)))


def read_manifest(folder: Path) -> IndexManifest:
    """Return an index's manifest, every file looked at as when it is opened.

    Raises:
        NotFoundError, CheckFailedError: see ``load``.
    """
    folder = real_path(folder)
    return read_parts(folder / MANIFEST, lambda: _checked(folder))


@dataclass(frozen=True)
class Store:
    """Writes an index into its folder; see ``create`` and ``change``."""

    folder: Path
    writer: PartsWriter

    def segment(self, segment: "Segment") -> "Segment":
        """Write a segment and return it as it is in the folder, mapped."""
        from promptcli.index.labels import RowLabels
        from promptcli.index.segment import Segment, read_index

        labels = segment.labels
        parts: list[tuple[str, str, Callable[[Path], None]]] = [
            ("index", INDEX, segment.write_index),
            ("ids", IDS, lambda path: labels.write(path, "id")),
            *([("texts", TEXTS, lambda path: labels.write(path, "text"))] if labels.has_texts else []),
        ]
        files = {}
        for role, name, write in parts:
            with self.writer.part(name) as path:
                write(path)
            files[role] = next(reversed(self.writer.sums))
        paths = {role: self.folder / file for role, file in files.items()}
        return Segment(read_index(paths["index"]), RowLabels.read(paths["ids"], paths.get("texts")), files)

    def commit(self, stored: StoredIndex) -> IndexManifest:
        """Write what is not in the folder yet, then the manifest, which is returned."""
        from promptcli.index.factory import faiss

        index, origin, segments = stored.index, stored.origin, stored.index.segments
        for number, segment in enumerate(segments):
            if not (segment.files and self.writer.keeps(segment.files.values())):
                segments[number] = self.segment(segment)
        deleted = index.deleted
        if len(deleted):
            with self.writer.part(DELETED) as path, path.open("wb") as content:
                np.save(content, deleted)
        if index.trains:
            with self.writer.part(TRAINED) as path:
                faiss.write_index(index.empty, str(path))
        manifest = IndexManifest(
            rows=index.rows,
            dim=index.width,
            factory=index.factory,
            texts=index.has_texts,
            recall=index.recall,
            **vars(origin),
            created=stored.created,
            sha256=dict(self.writer.sums),
            sizes={name: (self.folder / name).stat().st_size for name in self.writer.sums},
            segments=[
                StoredSegment(len(one), one.files["index"], one.files["ids"], one.files.get("texts"))
                for one in segments
            ],
            deleted=len(deleted),
            numbered=index.numbered,
            source=stored.source,
            **vars(index.effort),
        )
        self.writer.commit(to_json(manifest))
        return manifest


def _load(folder: Path, manifest: IndexManifest) -> StoredIndex:
    from promptcli.index.factory import Effort, make
    from promptcli.index.labels import RowLabels
    from promptcli.index.segment import Segment, read_index
    from promptcli.index.vector_index import VectorIndex

    paths = {name: folder / Path(name).name for name in manifest.sha256}
    segments, name = [], MANIFEST
    try:
        for one in manifest.segments:
            name = one.index
            labels = RowLabels.read(paths[one.ids], None if one.texts is None else paths[one.texts])
            files = {"index": one.index, "ids": one.ids, **({"texts": one.texts} if one.texts else {})}
            segment = Segment(read_index(paths[one.index]), labels, files)
            if segment.index.d != manifest.dim:
                raise ValueError(f"it holds vectors of {segment.index.d} numbers; {MANIFEST} says {manifest.dim}")
            if len(labels) != len(segment) or one.rows != len(segment):
                raise ValueError(f"it holds {len(segment)} vectors for {len(labels)} ids; {MANIFEST} says {one.rows}")
            segments.append(segment)
        name = part_named(manifest.sha256, TRAINED) or MANIFEST
        trained = name != MANIFEST
        empty = read_index(paths[name], mapped=False) if trained else make(manifest.factory, manifest.dim)
        name = part_named(manifest.sha256, DELETED) or MANIFEST
        deleted = np.load(paths[name], allow_pickle=False) if name != MANIFEST else None
        effort = Effort(manifest.nprobe, manifest.ef, manifest.factor)
        index = VectorIndex(segments, empty, manifest.factory, manifest.recall, effort, deleted, manifest.numbered)
    except (ValueError, IndexError, TypeError, EOFError, OSError, UsageError) as error:
        raise _damaged(folder, name, str(error)) from None
    if (index.rows, index.width) != (manifest.rows, manifest.dim):
        raise _damaged(folder, name, f"it holds {index.rows} x {index.width} numbers, {MANIFEST} says otherwise")
    return StoredIndex(index, manifest.origin, manifest.created)


def _checked(folder: Path, *, whole: bool = False) -> IndexManifest:
    """Return the manifest, each part looked at: its size, and its bytes where they are few or ``whole``."""
    if not (folder / MANIFEST).exists():
        raise _missing(folder)
    manifest = read_document(folder / MANIFEST, IndexManifest, hint=_HINT)
    try:
        Recipe.from_dict(manifest.recipe)
    except UsageError as error:
        raise _damaged(folder, MANIFEST, str(error)) from None
    if "backbone" not in manifest.recipe:
        raise _damaged(folder, MANIFEST, "its recipe names no backbone")
    named = {name for one in manifest.segments for name in (one.index, one.ids, one.texts) if name is not None}
    if missing := sorted(named - manifest.sha256.keys()):
        raise _damaged(folder, MANIFEST, f"it has no sha256 of {missing[0]}")
    for file, digest in manifest.sha256.items():
        path = folder / Path(file).name
        size = path.stat().st_size if path.is_file() else 0
        if whole or size <= SMALL or file not in manifest.sizes:
            check_part(folder, file, digest, lambda *found: _damaged(folder, *found))
        elif size != manifest.sizes[file]:
            raise _damaged(folder, file, f"it has {size:,} bytes, {manifest.sizes[file]:,} were written")
    return manifest


_HINT = "build it again: `promptcli index build FILE -o DIR --force`"


def _lock(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _is_ours(name: str) -> bool:
    return name == MANIFEST or is_part(name, _NAMES) or is_temporary(name)


def _missing(folder: Path) -> NotFoundError:
    return NotFoundError(f"no index in {folder}; make one: `promptcli index build FILE -o {folder}`")


def _damaged(folder: Path, name: str, reason: str) -> CheckFailedError:
    return CheckFailedError(f"{folder / name} is damaged: {reason}; {_HINT}")
