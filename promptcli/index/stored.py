"""An index as a folder: its segments, the rows that are deleted, and a manifest.

It needs no encoder.

Every change writes a new folder, to which the segments that do not change are linked, and renames
it into place.
"""

import contextlib
import functools
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import promptcli
from promptcli.data.given import is_unicode
from promptcli.data.vectors import holds_vectors
from promptcli.embedding.passages import AUTO
from promptcli.errors import CheckFailedError, NotFoundError, UsageError, one_line, shorten
from promptcli.evaluation.lexical import WORD_RULE, Lexical
from promptcli.evaluation.rarity import UNKNOWN
from promptcli.index.array_rows import RowMask
from promptcli.index.basics import INDEX_MANIFEST, Way
from promptcli.index.column_types import cell_columns, odd_columns
from promptcli.index.factory import Effort, Recall, faiss, make_index
from promptcli.index.kept_rarity import RARITY, read_rarity, write_rarity
from promptcli.index.segment import SUFFIXES, Segment, write_faiss
from promptcli.index.vector_index import VectorIndex
from promptcli.index.where import Condition
from promptcli.notes import keyword, note
from promptcli.recipe import LeadingTexts
from promptcli.storage.files import check_name, real_path, write_text
from promptcli.storage.folders import (
    StoredFile,
    check_files,
    link_file,
    list_files,
    read_folder,
    write_folder,
)
from promptcli.storage.locks import hold
from promptcli.storage.typed_documents import read_document, to_json

#: What changes when another index takes the place of one.
Stamp = tuple[int, int, int]
#: Beside the manifest: the rows that are deleted, and FAISS's index as trained, without rows.
DELETED = "deleted.npy"
TRAINED = "trained.faiss"
_LOCK = ".lock"
_OURS = re.compile(
    rf"{INDEX_MANIFEST}|{DELETED}|{TRAINED}|{RARITY}|segment-\d+\.(faiss|arrow)|lexical[\w-]*\.(json|npy)|\..*"
)
_HINT = "build it again: `promptcli index build FILE -o DIR --force`"


def _real_path(folder: Path) -> Path:
    """Return the folder of an index without links.

    Refuse one that FAISS and Arrow cannot open by its name.
    """
    real = real_path(folder)
    if not is_unicode(str(real)):
        raise UsageError(
            f"index {shorten(str(real))}: FAISS and Arrow need a name in UTF-8; give another folder"
        )
    return real


@dataclass(frozen=True)
class Origin:
    """The encoder whose vectors an index holds."""

    fingerprint: str  #: Two encoders are the same if and only if their fingerprints are equal.
    recipe: dict[str, Any]
    #: The registry's model that holds its fitted tensors; None if the recipe is enough.
    model: str | None
    provenance: dict[str, Any]  #: Where the backbone came from, and the precision it ran in.
    prompts: LeadingTexts = field(default_factory=LeadingTexts)  #: The model's.
    #: Name of the prompt that its rows begin with; None: the model's default.
    prompt: str | None = None
    name: str = ""  #: The name by which the model was opened.

    @property
    def text(self) -> str:
        """The prompt that its rows begin with, for messages."""
        return f"{self.prompt!r}: {self.prompts.texts.get(self.prompt or '', '')!r}"


@dataclass(frozen=True)
class Reading:
    """How files become rows; the same for all files of an index."""

    rows: str  #: How texts are read, one of ``passages.WAYS``.
    text_field: str | None = None  #: Column of the sentence in tables.
    #: Column of the id; ``-`` for row numbers; None: ``id``, if there is one.
    id_field: str | None = None


@dataclass
class StoredIndex:
    """An index, the encoder of its vectors, and when it was built."""

    index: VectorIndex
    origin: Origin
    created: str
    synced: bool = False  #: Whether its rows are those of files, see ``sync``.
    odd: Sequence[str] = ()  #: Columns that a note has named as texts for few of their cells.
    reading: Reading = Reading(AUTO)
    folder: Path | None = None  #: Where it was read; None if it was made in memory.
    stamp: Stamp | None = None  #: State of that folder when it was read.
    #: Whether words of another version were left out, and a note has said it.
    other_words: bool = False


@dataclass(frozen=True, kw_only=True)
class IndexManifest(Origin):
    """The content of ``index.json``."""

    rows: int
    dim: int
    factory: str
    texts: bool
    recall: Recall | None
    created: str
    numbered: int  #: The number of the next row without an id.
    deleted: int = 0  #: Rows that are deleted but not freed; ``rows`` does not count them.
    nprobe: int | None = None  #: The effort of a search, see ``Effort``.
    ef: int | None = None
    factor: float | None = None
    split: bool = False  #: Whether long rows are in parts with the ids ROW#PART.
    lexical: bool = False  #: Whether BM25 is in the folder.
    word_rule: int  #: The version of the rule for words that it was counted by.
    word_language: str = ""  #: In which words have their stems.
    #: Names of the further columns, for conditions.
    columns: list[str] = field(default_factory=list)
    #: Their types.
    kinds: dict[str, str] | None = None
    #: Those that a note has named, see ``odd_columns``.
    odd: list[str] = field(default_factory=list)
    synced: bool = False
    reading: Reading
    segments: list[str] = field(default_factory=list)
    files: dict[str, StoredFile] = field(default_factory=dict)
    promptcli: str = field(default_factory=lambda: promptcli.__version__)
    metric: str = "inner product of unit vectors"


class Writer:
    """Writes an index into the folder ``new``; unchanged segments are linked from ``old``."""

    def __init__(self, new: Path, old: Path | None = None) -> None:
        self._new = new
        self._old = old
        self._paths = (new / f"segment-{number}" for number in itertools.count(1))

    def segment(self, segment: Segment) -> Segment:
        """Write a segment and return it as read from the new folder."""
        return segment.write(next(self._paths))

    def _place(self, segment: Segment) -> str:
        """Return the name of a segment in the new folder, after it was linked or written if need
        be.
        """
        path = segment.path
        if path is not None and path.parent == self._new:
            return path.name
        placed = next(self._paths)
        if path is None or path.parent != self._old:
            segment.write(placed)
        else:
            for suffix in SUFFIXES:
                link_file(path.with_suffix(suffix), placed.with_suffix(suffix))
        return placed.name

    def finish(self, stored: StoredIndex) -> IndexManifest:
        """Write the rest of an index, and its manifest, which is returned."""
        index = stored.index
        deleted = np.flatnonzero(stored.index.masked)
        segments = [self._place(segment) for segment in index.segments]
        if len(deleted):
            np.save(self._new / DELETED, deleted)
        word_language = ""
        if index.lexical and index.rows:
            index.words.write(self._new)
            word_language = index.words.language
        write_rarity(index.rarity, self._new)
        if not make_index(index.factory, index.width).is_trained:
            write_faiss(index.empty, self._new / TRAINED)
        manifest = IndexManifest(
            **vars(stored.origin),
            **{
                name: getattr(index, name)
                for name in ("rows", "factory", "recall", "numbered", "split", "lexical")
            },
            **vars(index.effort),
            dim=index.width,
            texts=index.has_texts,
            columns=cell_columns(index.labels),
            kinds=index.kinds,
            odd=_note_odd(stored),
            word_rule=WORD_RULE,
            word_language=word_language,
            created=stored.created,
            synced=stored.synced,
            reading=stored.reading,
            deleted=len(deleted),
            segments=segments,
            files=list_files(self._new),
        )
        write_text(self._new / INDEX_MANIFEST, to_json(manifest))
        return manifest


def _note_odd(stored: StoredIndex) -> list[str]:
    """Say which columns are texts for few of their cells, each once, and return their names."""
    index = stored.index
    texts = [name for name, kind in index.kinds.items() if kind == "texts"]
    lines = odd_columns(index.live_labels, texts)
    for name, line in lines.items():
        if name not in stored.odd:
            note(line)
    return list(lines)


def allowed_rows(stored: StoredIndex, where: str | None) -> RowMask | None:
    """Return which rows fulfil a condition; say which columns of it are texts for few of their
    cells.
    """
    if where is None:
        return None
    condition = Condition(where)
    allowed = stored.index.allowed_rows(condition)
    asked = [name for name in stored.odd if name in condition.asked]
    if asked:
        for line in odd_columns(stored.index.live_labels, asked).values():
            note(line)
    return allowed


def best_way(stored: StoredIndex, folder: str | Path) -> Way:
    """Return the default ranking of an index: by both, if its words were counted."""
    if stored.index.lexical:
        return "both"
    if stored.index.has_texts and not stored.other_words:
        note(
            f"{folder} has no words, so it is searched by meaning alone: `promptcli index compact"
            f" {folder} --lexical` counts them"
        )
    return "meaning"


def check_target(folder: Path, *, force: bool) -> None:
    """Refuse a folder in which no index may be built, before any work is done."""
    check_name(_real_path(folder))
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder")
    _check_ours(folder)
    if (folder / INDEX_MANIFEST).exists() and not force:
        raise UsageError(
            f"{folder} holds an index; replace it with {keyword('force')}, or `promptcli index add`"
            " to it"
        )


def save(folder: Path, stored: StoredIndex, *, force: bool = False) -> IndexManifest:
    """Write an index, complete or not at all, and return its manifest.

    Folders are made if need be.
    """
    with create(folder, force=force) as writer:
        return writer.finish(stored)


@contextlib.contextmanager
def create(
    folder: Path, *, force: bool = False, instead: IndexManifest | None = None
) -> Iterator[Writer]:
    """Yield the writer of a new index, which takes the folder's place when the block ends well.

    With ``force`` it replaces any index, with ``instead`` that one, else none: not one that appears
    meanwhile either.
    """

    def check() -> None:
        if instead is not None or not (force or there):
            check_index_unchanged(folder, instead)
        check_target(folder, force=force or instead is not None)

    check_target(folder, force=force or instead is not None)
    there = (folder / INDEX_MANIFEST).exists()
    check()
    folder = _real_path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as locks:
        if there:
            locks.enter_context(_held(folder))
        with write_folder(folder, check=check) as new:
            yield Writer(new)
            check()
            # no one may change it while it is replaced
            if not there and (folder / INDEX_MANIFEST).exists():
                locks.enter_context(_held(folder))
            _keep_lock(folder, new)


def _held(folder: Path) -> contextlib.AbstractContextManager[None]:
    (folder / _LOCK).touch()
    return hold(folder / _LOCK)


@contextlib.contextmanager
def change(
    folder: Path, *, memory: int | None = None, expected: IndexManifest | None = None
) -> Iterator[StoredIndex]:
    """Yield an index and write it back when the block ends well; other processes wait to change it.

    ``memory`` is the number of bytes that the process may take for new segments; None: no limit.
    ``expected`` is the index that the work was begun on: one of another encoder, or of other rows
    than those of files, is refused.
    """
    folder = _real_path(folder)
    read_manifest(folder)
    _check_ours(folder)
    with _held(folder):
        stored = load(folder, words=False)
        if expected and (stored.synced, stored.origin.fingerprint) != (
            expected.synced,
            expected.fingerprint,
        ):
            raise _changed_error(folder)
        with write_folder(folder) as new:
            writer = Writer(new, folder)
            stored.index.store = writer.segment
            stored.index.memory = memory
            yield stored
            writer.finish(stored)
            _keep_lock(folder, new)


def load(folder: Path, *, words: bool = True) -> StoredIndex:
    """Open an index; its segments are memory-mapped.

    Without ``words``, those that are stored are not opened: they are counted again if need be.
    """
    stored = read_folder(_real_path(folder), functools.partial(_load, words=words))
    return replace(stored, folder=Path(folder).absolute())  # a link may lead to another index later


def _load(folder: Path, *, words: bool) -> StoredIndex:
    stamp = stamp_of(folder)
    manifest = read_manifest(folder)
    try:
        trained = TRAINED in manifest.files
        index = VectorIndex(
            [Segment.read(folder / name) for name in manifest.segments],
            (
                faiss.read_index(str(folder / TRAINED))
                if trained
                else make_index(manifest.factory, manifest.dim)
            ),
            manifest.factory,
            manifest.recall,
            Effort(manifest.nprobe, manifest.ef, manifest.factor),
            np.load(folder / DELETED, allow_pickle=False) if DELETED in manifest.files else None,
            manifest.numbered,
            split=manifest.split,
            lexical=manifest.lexical,
        )
        rarity = read_rarity(folder) if RARITY in manifest.files else UNKNOWN
    except (RuntimeError, ValueError, OSError, LookupError, TypeError) as error:
        raise CheckFailedError(f"{folder} is damaged: {one_line(error)}; {_HINT}") from None
    index.known_rarity = rarity
    index.known_kinds = manifest.kinds
    if manifest.lexical and words and manifest.word_rule != WORD_RULE:
        index.lexical = False
        note(
            f"the words of {folder} are those of another version, so it is searched by meaning:"
            f" `promptcli index compact {folder} --lexical` counts them again"
        )
    elif manifest.lexical and words and index.rows:
        index.counted = Lexical.read(folder, index.live(), manifest.word_language, index.texts_of)
    origin = Origin(**{name: getattr(manifest, name) for name in Origin.__dataclass_fields__})
    return StoredIndex(
        index,
        origin,
        manifest.created,
        manifest.synced,
        manifest.odd,
        manifest.reading,
        stamp=stamp,
        other_words=manifest.lexical and not index.lexical,
    )


def stamp_of(folder: Path) -> Stamp | None:
    """Return the stamp of the index in a folder.

    None if it is missing, as in the middle of a replacement.
    """
    try:
        manifest = os.stat(folder / INDEX_MANIFEST)
    except OSError:
        return None
    return manifest.st_ino, manifest.st_mtime_ns, manifest.st_size


def read_manifest(folder: Path) -> IndexManifest:
    """Return the manifest of an index, after a look at the sizes of its files."""
    return read_folder(_real_path(folder), _read_manifest)


def _read_manifest(folder: Path) -> IndexManifest:
    if folder.is_file():
        raise _is_a_file(folder)
    if not (folder / INDEX_MANIFEST).exists():
        raise NotFoundError(
            f"no index in {folder}; build one: `promptcli index build FILE -o {folder}`"
        )
    manifest = read_document(folder / INDEX_MANIFEST, IndexManifest, hint=_HINT)
    check_files(folder, manifest.files, hint=_HINT)
    for name in (segment + suffix for segment in manifest.segments for suffix in SUFFIXES):
        if name not in manifest.files:
            raise CheckFailedError(
                f"{folder} is damaged: its files have no {shorten(name)}; {_HINT}"
            )
    return manifest


def check_searched(folder: Path, query: Any) -> None:
    """Refuse to search a file as an index, or a query that is the index."""
    if not isinstance(query, str):
        return
    if folder.is_file():
        raise _is_a_file(folder, query)
    # a sentence may be too long for a path: os.path.exists then says no
    if not folder.exists() and os.path.exists(os.path.join(query, INDEX_MANIFEST)):
        raise UsageError(
            f'the index comes first, then the query: `promptcli index search {query} "{folder}"`'
        )


def _is_a_file(file: Path, query: str | None = None) -> NotFoundError:
    """Return the error for a file in the place of an index; sentences can be searched as well."""
    holds = "vectors" if holds_vectors(file) else "sentences"
    problem = f"{file} is a file of {holds}, not an index"
    if query is not None and holds == "sentences":
        return NotFoundError(f'{problem}: `promptcli search "{query}" {file}`')
    return NotFoundError(f"{problem}; build one: `promptcli index build {file} -o FOLDER`")


def check_index_unchanged(folder: Path, expected: IndexManifest | None) -> None:
    """Refuse a folder if its index is not the one that the work was begun with, or None."""
    there = (folder / INDEX_MANIFEST).exists()
    if there != (expected is not None) or (there and read_manifest(folder) != expected):
        raise _changed_error(folder)


def _changed_error(folder: Path) -> UsageError:
    return UsageError(
        f"another process made or changed the index in {folder} meanwhile; run the same command"
        " again"
    )


def _keep_lock(folder: Path, new: Path) -> None:
    """Give the new folder the lock of the old one, for which other writers wait already."""
    if (folder / _LOCK).exists():
        link_file(folder / _LOCK, new / _LOCK)


def _check_ours(folder: Path) -> None:
    others = sorted(path.name for path in folder.iterdir() if not _OURS.fullmatch(path.name))
    if others:  # they would go with the old folder
        raise UsageError(
            f"{folder} holds other files ({others[0]}); an index needs a folder for itself"
        )
