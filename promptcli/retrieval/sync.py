"""An index that mirrors files: only new and changed texts are encoded, and rows that no longer
occur are removed.
"""

import contextlib
import itertools
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from promptcli.data.arguments import is_unicode
from promptcli.data.csv_options import stored_options
from promptcli.data.input_files import split_columns
from promptcli.data.layouts import NONE
from promptcli.data.vectors.formats import escape_name
from promptcli.errors import NotFoundError, PromptcliError, UsageError, with_count
from promptcli.models import loading
from promptcli.notes import note
from promptcli.recipe import is_named
from promptcli.retrieval.encoding import encode_rows, prepare_rows, split_rows
from promptcli.retrieval.files import LINES, Reading, read_file
from promptcli.retrieval.found_files import FoundFiles, LeftOut, find_files
from promptcli.retrieval.sentence_index import SentenceIndex
from promptcli.retrieval.store import DATABASE, NewRows, creating, row_name
from promptcli.settings import list_of_names
from promptcli.storage.files import sha256

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder
    from promptcli.models.loading import Model

#: A file changed within this time may change again without a new timestamp.
_SETTLED_NS = 2_000_000_000


class TooManyRemovalsError(UsageError):
    """More than half of an index would be removed, and the user has not agreed."""

    def __init__(self, question: str) -> None:
        super().__init__(f"{question}; agree with `promptcli index sync DIR --yes`")
        self.question = question


@dataclass
class Counts:
    """Numbers of rows or files that were added, removed, changed or renamed."""

    added: int = 0
    changed: int = 0  #: rows with another text under the same id
    renamed: int = 0  #: rows with the same text under another id, or with other columns
    removed: int = 0
    unchanged: int = 0


@dataclass
class SyncResult:
    """The changes of a sync."""

    index: SentenceIndex
    rows: Counts = field(default_factory=Counts)
    files: Counts = field(default_factory=Counts)  #: a renamed file has the bytes of a removed one
    left_out: list[LeftOut] = field(default_factory=list)  #: files that were not read
    added: list[tuple[str, str]] = field(default_factory=list)  #: ids and texts of new rows
    removed: list[tuple[str, str]] = field(default_factory=list)

    @property
    def has_rows(self) -> bool:
        """Whether the index has rows after the sync."""
        counts = self.rows
        return bool(counts.added + counts.changed + counts.renamed + counts.unchanged)

    def report(self) -> dict[str, object]:
        """Return the counts, JSON-ready."""
        return {
            "rows": len(self.index),
            **asdict(self.rows),
            "files": asdict(self.files),
            "left_out": [asdict(each) for each in self.left_out],
        }


def sync(
    folder: str | Path,
    files: str | Path | Sequence[str | Path] | None = None,
    *,
    model: "Model | None" = None,
    rows: str | None = None,
    text_field: str | None = None,
    id_field: str | None = None,
    split: bool = False,
    lexical: bool | None = None,
    ignore: bool = True,
    exclude: Sequence[str] = (),
    yes: bool = False,
    dry_run: bool = False,
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    verbose: bool = False,
) -> SyncResult:
    """Make an index equal to files: passages of texts and rows of tables, and no others, under the
    ids FILE:LINES.

    Only new and changed texts are encoded; another model re-encodes all.

    Args:
        folder: Folder of the index; created if missing.
        files: Texts, tables (``FILE:COLUMN``), globs and folders; None: those of the last sync.
        model: An encoder, or an argument of ``load``; None: the index's.
        rows: Unit of a text, see ``SentenceIndex.build``; None: as in the index.
        text_field: Column of the sentence in tables; None: the index's.
        id_field: Column of the id in tables, or ``-`` for FILE:ROW; None: the index's.
        split: Whether to split longer rows; an index with split rows keeps splitting.
        lexical: Whether to count words; None: as in the index.
        ignore: Whether folders obey ``.gitignore`` and ``.ignore``.
        exclude: Further patterns of files to leave out.
        yes: Whether more than half of the index may be removed.
        dry_run: Whether to return the changes without making them.
        csv: How tables are written, see ``embed``.
        skip_bad: Leave out unreadable rows, and say how many and why.
        verbose: Whether to name every file that is left out.

    Raises:
        NotFoundError: No such file.
        TooManyRemovalsError: More than half of the index would be removed.
        PromptcliError: A file that is being written to, or an index that changes while it runs.
        UsageError: The index was not made by ``sync``.
    """
    folder = Path(folder)
    is_new = not (folder / DATABASE).exists()
    if is_new and files is None:
        raise NotFoundError(f"no index in {folder}; name the files")
    with contextlib.ExitStack() as created:
        if is_new:
            index = SentenceIndex(created.enter_context(creating(None if dry_run else folder)))
            before = Reading()
        else:
            index = SentenceIndex.open(folder, None if is_named(model) else model)
            before = index.reading
            if index.synced is None:
                raise UsageError(
                    "the index has rows that do not come from `index sync`; give another folder"
                )
        sources = _sources(index, files, ignore, exclude)
        reading = Reading(
            rows or before.rows,
            text_field or before.text_field,
            None if id_field == NONE else id_field or before.id_field,
            split or before.split,
            stored_options(csv) or before.csv,
        )
        found = find_files(sources.names, ignore=sources.ignore, exclude=sources.exclude)
        if is_new:
            index.begin_with(model, reading, lexical=lexical is not False)
        elif model is not None and is_named(model):
            index = _with_model(index, model, dry_run=dry_run)
        changes = _Changes(index, reading, read_all=reading != before, skip_bad=skip_bad)
        changes.read(found)
        if line := found.note(verbose=verbose):
            note(line)
        changes.compare()
        result = changes.result
        if not result.has_rows:
            raise UsageError(
                f"no line to index in {', '.join(sources.names)}; give texts, tables, or folders of"
                " them"
            )
        if not yes and not dry_run:
            changes.check_removals(folder)
        changes.note_counts()
        if dry_run:
            return result
        settings: dict[str, Any] = {"synced": asdict(sources), "reading": asdict(reading)}
        if lexical is not None:
            settings["lexical"] = lexical
        if is_new:
            changes.write(settings)
        elif not changes.is_empty(settings):
            with index.store.changing():
                changes.check_generation(folder)
                changes.write(settings)
    if is_new:
        result.index = index.reopen(folder)
    result.index.derived.update()
    return result


def _with_model(index: SentenceIndex, model: "Model", *, dry_run: bool) -> SentenceIndex:
    """Return the index with a model; if it has another one, say so and encode all rows again."""
    encoder = loading.open_encoder(model, dtype="auto")
    if index.origin.is_made_by(encoder):
        return SentenceIndex(index.store, model)
    rows = with_count(len(index), "row")
    note(f"the index has another model: all {rows} are encoded again")
    if not dry_run:
        index.migrate(encoder)
    return index


def _sources(index: SentenceIndex, files: Any, ignore: bool, exclude: Sequence[str]) -> "_Sources":
    """Return which files to read; by default those of the last sync."""
    before = index.synced
    if files is not None or before is None:
        return _Sources(os.getcwd(), list_of_names(files), ignore, list(exclude))
    sources = _Sources(**before)
    if sources.root != os.getcwd():
        raise UsageError(f"the index was made in {sources.root}; run sync there")
    return sources


@dataclass(frozen=True)
class _Sources:
    """The files that an index mirrors, and how they are found."""

    root: str  #: the working folder
    names: list[str]
    ignore: bool
    exclude: list[str]


class _FileState(NamedTuple):
    """The state of a file when it was read."""

    size: int
    changed: int  #: time in ns; 0: it may change again within the same time
    sha256: str


class _Changes:
    """The rows of the files, compared with those of the index."""

    def __init__(
        self, index: SentenceIndex, reading: Reading, *, read_all: bool, skip_bad: bool
    ) -> None:
        self.index, self.store = index, index.store
        self.result = SyncResult(index)
        self._reading, self._read_all, self._skip_bad = reading, read_all, skip_bad
        with self.store.reading():
            self._generation = self.store.settings.generation  # that the files are compared with
            records = self.store.sql.execute("SELECT * FROM files").fetchall()
        self._old_files = {name: _FileState(*state) for name, *state in records}
        self._new_files: dict[str, _FileState] = {}
        self._blocks: dict[str, list[NewRows]] = {}  # the rows of new and changed files
        self._new_rows: list[NewRows] = []  # rows to encode
        # keys of rows to update in place, each with its new values
        self._updates: list[tuple[int, NewRows]] = []
        self._removed: dict[int, tuple[str, str]] = {}  # keys, with their ids and texts

    def is_empty(self, settings: Mapping[str, Any]) -> bool:
        """Return whether there is nothing to write: rows, files and settings stay the same."""
        lexical = self.store.settings.lexical
        has_same_words = settings.get("lexical", lexical) == lexical
        return self._new_files == self._old_files and not self._read_all and has_same_words

    def check_generation(self, folder: Path) -> None:
        """Refuse to write if another process has changed the index; call inside ``changing``."""
        if self.store.settings.generation != self._generation + 1:  # this change adds 1
            raise PromptcliError(
                f"{folder}: another process changed it while it ran; sync it again"
            )

    def _documents(self) -> "Encoder":
        return self.index.origin.documents(self.index.encoder)

    def read(self, found: FoundFiles) -> None:
        """Read the changed files."""
        for file in found.files:
            with found.reading(file):
                self._read_file(file)
        self.result.left_out = found.left_out
        before, now = self._old_files, self._new_files
        removed = Counter(before[name].sha256 for name in before.keys() - now)
        added = Counter(now[name].sha256 for name in now.keys() - before)
        counts = self.result.files
        counts.renamed = (removed & added).total()
        counts.removed = removed.total() - counts.renamed
        counts.added = added.total() - counts.renamed
        counts.unchanged = len(now) - added.total() - counts.changed

    def _read_file(self, file: str) -> None:
        if not is_unicode(file):  # ids must be text
            raise UsageError(f"{escape_name(file)}: its name is not UTF-8; rename it")
        path = Path(split_columns(file)[0])
        state = path.stat()
        size, changed = state.st_size, state.st_mtime_ns
        before = None if self._read_all else self._old_files.get(file)
        if before is not None and (size, changed) == (before.size, before.changed):
            self._new_files[file] = before
            return
        if time.time_ns() - changed < _SETTLED_NS:
            changed = 0
        now = _FileState(size, changed, sha256(path))
        if before is None or before.sha256 != now.sha256:
            documents = self._documents()
            blocks = read_file(file, self._reading, documents, self._skip_bad)
            after = path.stat()
            if (after.st_size, after.st_mtime_ns) != (size, state.st_mtime_ns):
                raise PromptcliError(f"{file} is being written to; try again when it is complete")
            if self._reading.split:
                blocks = [split_rows(rows, documents) for rows in blocks]
            self._blocks[file] = blocks
            self.result.files.changed += file in self._old_files
        self._new_files[file] = now

    def _old_rows(self) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
        """Yield key, id, text and columns of the rows of new, changed or removed files."""
        query = "SELECT key, id, part, text FROM rows WHERE source=? ORDER BY key"
        for file in self._old_files:
            if file in self._new_files and file not in self._blocks:
                continue
            rows = self.store.sql.execute(query, (file,)).fetchall()
            columns = self.store.columns([key for key, *_ in rows])
            for (key, name, part, text), cells in zip(rows, columns, strict=True):
                yield key, str(row_name(name, part)), text, cells

    def compare(self) -> None:
        """Sort the rows of changed files into unchanged, updated, new and removed ones."""
        with self.store.reading():
            old = list(self._old_rows())
            kept = len(self.store) - len(old)
        by_id = {(name, text): (key, cells) for key, name, text, cells in old}
        removed = self._removed = {key: (name, text) for key, name, text, _ in old}
        counts = self.result.rows
        counts.unchanged = kept
        unknown: list[NewRows] = []  # rows that the index does not have under their ids
        for rows in itertools.chain(*self._blocks.values()):
            places = []
            for place, name_and_text in enumerate(zip(rows.names, rows.texts, strict=True)):
                key, cells = by_id.pop(name_and_text, (None, {}))
                if key is None:
                    places.append(place)
                    continue
                del removed[key]
                if rows.cells(place) == cells:
                    counts.unchanged += 1
                else:
                    self._updates.append((key, rows.take([place])))
            unknown.append(rows.take(places))
        by_text: dict[str, list[int]] = defaultdict(list)
        for key in reversed(removed):
            by_text[removed[key][1]].append(key)
        added = self.result.added
        for rows in unknown:
            places = []
            for place, text in enumerate(rows.texts):
                if by_text[text]:
                    key = by_text[text].pop()
                    del removed[key]
                    self._updates.append((key, rows.take([place])))
                else:
                    places.append(place)
            new = rows.take(places)
            self._new_rows.append(new)
            added += zip(new.names, new.texts, strict=True)
        old_names = {name for name, _ in removed.values()}
        counts.renamed = len(self._updates)
        counts.changed = sum(name in old_names for name, _ in added)
        counts.added = len(added) - counts.changed
        counts.removed = len(removed) - counts.changed
        self.result.removed = list(removed.values())

    def note_counts(self) -> None:
        """Note the number of changed rows."""
        counts = self.result.rows
        parts = []
        if counts.renamed:
            parts.append(f"{counts.renamed:,} updated in place (same text, new id or columns)")
        parts.append(f"{counts.added:,} added")
        if counts.changed:
            parts.append(f"{counts.changed:,} changed")
        parts += [f"{counts.removed:,} removed", f"{counts.unchanged:,} unchanged"]
        note(f"rows: {', '.join(parts)}")

    def check_removals(self, folder: Path) -> None:
        """Refuse to remove more than half of an index.

        A text replaced by another in its file does not count as removed.
        """
        removed = Counter(LINES.sub("", name) for name, _ in self.result.removed)
        removed -= Counter(LINES.sub("", name) for name, _ in self.result.added)
        rows = len(self.index)
        if 2 * removed.total() > rows and not self._read_all:
            file, count = removed.most_common(1)[0]
            raise TooManyRemovalsError(
                f"{removed.total():,} of {with_count(rows, 'row')} of {folder} would be removed,"
                f" {count:,} of them from {file}"
            )

    def write(self, settings: Mapping[str, Any]) -> None:
        """Write the changes and settings, inside a transaction."""
        store = self.store
        store.write_settings(**settings)
        store.remove(self._removed)
        keys = [(key,) for key, _ in self._updates]
        store.sql.executemany("UPDATE rows SET id=NULL WHERE key=?", keys)
        for key, row in self._updates:
            values = (row.ids[0], row.parts[0], row.source, key)
            store.sql.execute("UPDATE rows SET id=?, part=?, source=? WHERE key=?", values)
            store.write_columns([key], row)
        if self.result.added:
            documents = self._documents()
            blocks = prepare_rows(documents, self._new_rows, split=False)
            for rows in encode_rows(documents, blocks):
                store.append(rows)
        store.sql.execute("DELETE FROM files")
        records = [(name, *state) for name, state in self._new_files.items()]
        store.sql.executemany("INSERT INTO files VALUES(?, ?, ?, ?)", records)
