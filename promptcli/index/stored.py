"""An index as a folder: FAISS's file, ids, texts, and a manifest with their checksums. Knows nothing of encoders.

A name holds the old index or the new one, whenever a process dies.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import promptcli
from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from promptcli.index.recall import Recall
from promptcli.index.rows import IDS, TEXTS
from promptcli.storage.files import sha256, write_text
from promptcli.storage.folders import atomic_folder, hold, settle, unsettled

if TYPE_CHECKING:
    from promptcli.index.vector_index import VectorIndex

#: FAISS's own file, and the manifest, which is written last.
INDEX, MANIFEST = "index.faiss", "index.json"

#: Version of the manifest's layout; raised when a reader of the old one would go wrong.
SCHEMA_VERSION = 1

_METRIC = "inner product of unit vectors"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Origin:
    """The encoder whose vectors an index holds, and enough to make it again.

    Attributes:
        fingerprint: Two encoders are the same if and only if theirs are equal.
        recipe: The recipe's fields.
        model: The registry entry that holds its fitted numbers; None where the recipe is enough.
        provenance: Where the backbone came from, and the precision it ran in.
    """

    fingerprint: str
    recipe: dict[str, Any]
    model: str | None
    provenance: dict[str, Any]


@dataclass(frozen=True)
class StoredIndex:
    """An index of a folder, with where its vectors came from and when it was first built."""

    index: "VectorIndex"
    origin: Origin
    created: str


def check(folder: Path, *, force: bool) -> None:
    """Refuse a folder that ``save`` would refuse, before any work is done.

    Raises:
        UsageError: an index is there, unless ``force``; or something else is, with or without it.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder with -o")
    others = sorted(path.name for path in folder.iterdir() if path.name not in (INDEX, MANIFEST, IDS, TEXTS))
    if others:  # the folder is replaced whole: nobody's files may go with it
        raise UsageError(f"{folder} holds other files ({others[0]}); give a folder for the index alone")
    if any(folder.iterdir()) and not force:
        raise UsageError(f"{folder} holds an index; replace it with --force, or `promptcli index add` to it")


def save(folder: Path, stored: StoredIndex, *, force: bool = False) -> dict[str, Any]:
    """Write an index, whole or not at all, and return its manifest.

    Args:
        folder: Made if need be, with the folders above it.
        stored: What to write.
        force: Replace an index that is there.

    Raises:
        UsageError: see ``check``.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _held(folder):
        check(folder, force=force)
        return _write(folder, stored)


@contextlib.contextmanager
def change(folder: Path) -> Iterator[StoredIndex]:
    """Yield an index and write it back when the block ends well; no other process changes it meanwhile.

    Raises:
        NotFoundError, CheckFailedError: see ``load``.
    """
    folder = folder.resolve()
    if not folder.parent.is_dir():
        raise _missing(folder)
    with _held(folder):
        stored = _load(folder)
        yield stored
        _write(folder, stored)


def load(folder: Path) -> StoredIndex:
    """Read an index, every file checked.

    Raises:
        NotFoundError: there is no index.
        CheckFailedError: a file is missing, or not the one that was saved.
    """
    return _settled(folder.resolve(), _load)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return an index's manifest, every file checked.

    Raises:
        NotFoundError, CheckFailedError: see ``load``.
    """
    return _settled(folder.resolve(), _checked_manifest)


def read_origin(folder: Path) -> Origin:
    """Return the encoder of an index, every file checked.

    Raises:
        NotFoundError, CheckFailedError: see ``load``.
    """
    return _origin(read_manifest(folder))


def _write(folder: Path, stored: StoredIndex) -> dict[str, Any]:
    with atomic_folder(folder) as temporary:
        stored.index.write(temporary, INDEX)
        manifest = _manifest(stored, {path.name: sha256(path) for path in sorted(temporary.iterdir())})
        write_text(temporary / MANIFEST, json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")
    return manifest


def _manifest(stored: StoredIndex, sums: dict[str, str]) -> dict[str, Any]:
    index = stored.index
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": index.rows,
        "dim": index.width,
        "factory": index.factory,
        "metric": _METRIC,
        "texts": index.has_texts,
        "recall": None if index.recall is None else asdict(index.recall),
        **asdict(stored.origin),
        "created": stored.created,
        "promptcli": promptcli.__version__,
        "sha256": sums,
    }


def _load(folder: Path) -> StoredIndex:
    from promptcli.index.vector_index import VectorIndex

    manifest = _checked_manifest(folder)
    recall = None if manifest["recall"] is None else Recall(**manifest["recall"])
    index = VectorIndex.read(folder, INDEX, manifest["factory"], recall)
    return StoredIndex(index, _origin(manifest), manifest["created"])


def _origin(manifest: dict[str, Any]) -> Origin:
    return Origin(*(manifest[name] for name in ("fingerprint", "recipe", "model", "provenance")))


def _checked_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.exists():
        raise _missing(folder)
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version, sums = manifest["schema_version"], {name: manifest["sha256"][name] for name in (INDEX, IDS)}
        if manifest["texts"]:
            sums[TEXTS] = manifest["sha256"][TEXTS]
        for name in ("rows", "dim", "factory", "recall", "fingerprint", "recipe", "model", "provenance", "created"):
            manifest[name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, MANIFEST, repr(error)) from None
    if version != SCHEMA_VERSION:
        raise CheckFailedError(f"{path} has version {version}; this promptcli reads {SCHEMA_VERSION}: build it again")
    for name, digest in sums.items():
        if not (folder / name).is_file():
            raise _damaged(folder, name, "it is missing")
        if sha256(folder / name) != digest:
            raise _damaged(folder, name, f"its sha256 is not the one in {MANIFEST}")
    return manifest


def _settled(folder: Path, read: Callable[[Path], Result]) -> Result:
    """Read; if that fails, once more with the lock held: another process may be replacing the folder."""
    try:
        return read(folder)
    except (NotFoundError, CheckFailedError, OSError):
        if not folder.exists() and not unsettled(folder):
            raise
        with _held(folder, reading=True):
            return read(folder)


@contextlib.contextmanager
def _held(folder: Path, *, reading: bool = False) -> Iterator[None]:
    with hold(folder.with_name(f".{folder.name}.lock"), reading=reading):
        if unsettled(folder):
            settle(folder)
        yield


def _missing(folder: Path) -> NotFoundError:
    return NotFoundError(f"no index in {folder}; make one: promptcli index build FILE -o {folder}")


def _damaged(folder: Path, name: str, reason: str) -> CheckFailedError:
    return CheckFailedError(f"{folder / name} is damaged: {reason}; build it again: promptcli index build FILE --force")
