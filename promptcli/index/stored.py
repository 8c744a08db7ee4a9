"""An index as a folder: FAISS's file, ids, texts, and a manifest that names them. Knows nothing of encoders.

See ``promptcli.storage.parts``: readers and kills meet the old index or the new one.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promptcli
from promptcli.encoder.recipe import Recipe
from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from promptcli.index.recall import Recall
from promptcli.index.rows import IDS, TEXTS
from promptcli.storage.documents import read_document, to_json
from promptcli.storage.files import is_temporary
from promptcli.storage.locks import hold
from promptcli.storage.parts import check_part, is_part, part_named, read_parts, replace_parts

if TYPE_CHECKING:
    from promptcli.index.vector_index import VectorIndex

#: FAISS's own file, and the manifest, which is written last.
INDEX, MANIFEST = "index.faiss", "index.json"

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
    promptcli: str = field(default_factory=lambda: promptcli.__version__)
    metric: str = "inner product of unit vectors"
    schema_version: int = 2  #: 1: the parts have fixed names.

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


def check(folder: Path, *, force: bool) -> None:
    """Refuse a folder that ``save`` would refuse, before any work is done.

    Raises:
        UsageError: an index is there, unless ``force``; or something else is, with or without it; or it is no name.
    """
    name = folder.resolve().name
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
        raise UsageError(f"{folder} holds an index; replace it with --force, or `promptcli index add` to it")


def save(folder: Path, stored: StoredIndex, *, force: bool = False) -> IndexManifest:
    """Write an index, whole or not at all, and return its manifest.

    Args:
        folder: Made if need be, with the folders above it.
        stored: What to write.
        force: Replace an index that is there.

    Raises:
        UsageError: see ``check``.
    """
    check(folder, force=force)
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold(_lock(folder)):
        check(folder, force=force)
        return _write(folder, stored)


@contextlib.contextmanager
def change(folder: Path) -> Iterator[StoredIndex]:
    """Yield an index and write it back when the block ends well; no other process changes it meanwhile.

    Raises:
        NotFoundError, CheckFailedError: see ``load``.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise _missing(folder)
    with hold(_lock(folder)):
        stored = _load(folder)
        yield stored
        _write(folder, stored)


def load(folder: Path) -> StoredIndex:
    """Read an index, every file checked.

    Raises:
        NotFoundError: there is no index.
        CheckFailedError: a file is missing, or not the one that was saved.
    """
    folder = folder.resolve()
    return read_parts(folder / MANIFEST, lambda: _load(folder))


def read_manifest(folder: Path) -> IndexManifest:
    """Return an index's manifest, every file checked.

    Raises:
        NotFoundError, CheckFailedError: see ``load``.
    """
    folder = folder.resolve()
    return read_parts(folder / MANIFEST, lambda: _checked(folder)[0])


def _write(folder: Path, stored: StoredIndex) -> IndexManifest:
    index, origin = stored.index, stored.origin
    with replace_parts(folder, MANIFEST, owns=_is_ours) as writer:
        with writer.part(INDEX) as path:
            index.write(path)
        with writer.part(IDS) as path:
            index.labels.write_ids(path)
        if index.has_texts:
            with writer.part(TEXTS) as path:
                index.labels.write_texts(path)
        manifest = IndexManifest(
            rows=index.rows,
            dim=index.width,
            factory=index.factory,
            texts=index.has_texts,
            recall=index.recall,
            **vars(origin),
            created=stored.created,
            sha256=dict(writer.sums),
        )
        writer.commit(to_json(manifest))
    return manifest


def _load(folder: Path) -> StoredIndex:
    from promptcli.index.vector_index import VectorIndex

    manifest, paths = _checked(folder)
    try:
        index = VectorIndex.read(paths[INDEX], paths[IDS], paths.get(TEXTS), manifest.factory, manifest.recall)
    except ValueError as error:
        raise _damaged(folder, INDEX, str(error)) from None
    if (index.rows, index.width) != (manifest.rows, manifest.dim):
        raise _damaged(folder, INDEX, f"it holds {index.rows} x {index.width} numbers, {MANIFEST} says otherwise")
    return StoredIndex(index, manifest.origin, manifest.created)


def _checked(folder: Path) -> tuple[IndexManifest, dict[str, Path]]:
    """Return the manifest, and the path of each part, its bytes checked."""
    if not (folder / MANIFEST).exists():
        raise _missing(folder)
    manifest = read_document(folder / MANIFEST, IndexManifest, mend=_MEND)
    try:
        Recipe.from_dict(manifest.recipe)
    except UsageError as error:
        raise _damaged(folder, MANIFEST, str(error)) from None
    paths = {}
    for name in (INDEX, IDS, TEXTS) if manifest.texts else (INDEX, IDS):
        file = part_named(manifest.sha256, name)
        if file is None:
            raise _damaged(folder, MANIFEST, f"it names no {name}")
        paths[name] = check_part(folder, file, manifest.sha256[file], lambda *found: _damaged(folder, *found))
    return manifest, paths


_MEND = "build it again: promptcli index build FILE --force"


def _lock(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _is_ours(name: str) -> bool:
    return name in (INDEX, MANIFEST, IDS, TEXTS) or is_part(name, (INDEX, IDS, TEXTS)) or is_temporary(name)


def _missing(folder: Path) -> NotFoundError:
    return NotFoundError(f"no index in {folder}; make one: promptcli index build FILE -o {folder}")


def _damaged(folder: Path, name: str, reason: str) -> CheckFailedError:
    return CheckFailedError(f"{folder / name} is damaged: {reason}; {_MEND}")
