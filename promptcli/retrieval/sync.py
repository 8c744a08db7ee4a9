"""An index that mirrors files: only new and changed texts are encoded, and rows that no longer
occur are removed.
"""

import contextlib
import itertools
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from promptcli.data.arguments import is_unicode
from promptcli.data.csv_options import stored_options
from promptcli.data.input_files import split_columns
from promptcli.data.layouts import ROW_NUMBERS
from promptcli.data.vectors.formats import escape_name
from promptcli.errors import NotFoundError, PromptcliError, UsageError, with_count
from promptcli.models import loading
from promptcli.notes import note
from promptcli.recipe import is_chosen
from promptcli.retrieval.files import LINES_IN_ID, Reading, read_file
from promptcli.retrieval.found_files import FoundFiles, LeftOut, find_files
from promptcli.retrieval.new_rows import NewRows, encode_rows, prepare_rows, split_rows
from promptcli.retrieval.sentence_index import SentenceIndex, begin_index
from promptcli.retrieval.store import DATABASE, FileState, creating
from promptcli.settings import list_of_names
from promptcli.storage.files import sha256

if TYPE_CHECKING:
    from promptcli.models.loading import Model

#: A file that was changed within this time may change again without a new timestamp.
_TIMESTAMP_RESOLUTION_NS = 2_000_000_000


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
    files: Counts = field(default_factory=Counts)  #: a renamed file has a removed file's bytes
    left_out: list[LeftOut] = field(default_factory=list)  #: files that were not read
    added: list[tuple[str, str]] = field(default_factory=list)  #: ids and texts of new rows
    removed: list[tuple[str, str]] = field(default_factory=list)

    def report(self) -> dict[str, object]:
        """Return the counts, JSON-ready."""
        return {
            "rows": len(self.index),
            **asdict(self.rows),
            "files": asdict(self.files),
            "left_out": [asdict(file) for file in self.left_out],
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
    """Make an index equal to files: its rows become the passages of texts and the rows of tables,
    with the ids FILE:LINES.

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
        raise NotFoundError(f"no index in {folder}; name the files to index")
    with contextlib.ExitStack() as new_index:
        synced = None
        stored = Reading()
        if not is_new:
            index = SentenceIndex.open(folder, None if is_chosen(model) else model)
            stored = index.load_reading()
            synced = index.store.settings.synced
            if synced is None:
                raise UsageError(
                    "the index has rows that do not come from `index sync`; use another folder"
                )
        sources = _choose_sources(synced, files, ignore, exclude)
        reading = Reading(
            rows or stored.rows,
            text_field or stored.text_field,
            None if id_field == ROW_NUMBERS else id_field or stored.id_field,
            split or stored.split,
            stored_options(csv) or stored.csv,
        )
        found = find_files(sources.names, ignore=sources.ignore, exclude=sources.exclude)
        if is_new:
            store = new_index.enter_context(creating(None if dry_run else folder))
            index = begin_index(store, model, reading, lexical=lexical is not False)
        elif model is not None and is_chosen(model):
            index = _with_model(index, model, dry_run=dry_run)
        changes = _Changes(index, reading, read_all=reading != stored, skip_bad=skip_bad)
        changes.read(found)
        if left_out := found.summarize_left_out(verbose=verbose):
            note(left_out)
        changes.compare()
        changes.check(folder, sources, may_remove=yes or dry_run)
        changes.note_counts()
        result = changes.result
        if dry_run:
            return result
        changes.write(folder, sources, lexical, is_new=is_new)
    result.index.derived_files.update()
    return result


def _choose_sources(
    synced: dict[str, Any] | None, files: Any, ignore: bool, exclude: Sequence[str]
) -> "_Sources":
    """Return which files to read: the user's, or those of the last sync."""
    if files is not None or synced is None:
        return _Sources(os.getcwd(), list_of_names(files), ignore, list(exclude))
    sources = _Sources(**synced)
    if sources.root != os.getcwd():
        raise UsageError(f"the index was made in {sources.root}; run sync there")
    return sources


def _with_model(index: SentenceIndex, model: "Model", *, dry_run: bool) -> SentenceIndex:
    """Return the index with a model; if the index has another model, encode all rows again."""
    encoder = loading.open_encoder(model, dtype="auto")
    if index.load_origin().is_made_by(encoder):
        return SentenceIndex(index.store, model)
    rows = with_count(len(index), "row")
    note(f"the index has another model: all {rows} are encoded again")
    if not dry_run:
        index.migrate(encoder)
    return index


@dataclass(frozen=True)
class _Sources:
    """The files that an index mirrors, and how they are found."""

    root: str  #: the working folder
    names: list[str]
    ignore: bool
    exclude: list[str]


class _StoredRow(NamedTuple):
    """A row of the index."""

    id: str  #: as a hit shows it
    text: str
    cells: dict[str, Any]


class _Changes:
    """The rows of the files, compared with those of the index."""

    def __init__(
        self, index: SentenceIndex, reading: Reading, *, read_all: bool, skip_bad: bool
    ) -> None:
        self.index, self.store = index, index.store
        self.result = SyncResult(index)
        self._reading, self._read_all, self._skip_bad = reading, read_all, skip_bad
        with self.store.reading():
            self._generation = self.store.settings.generation
            self._old_files = self.store.file_states()
        self._new_files: dict[str, FileState] = {}
        self._blocks: dict[str, list[NewRows]] = {}  # the rows of new and changed files
        self._new_rows: list[NewRows] = []  # rows to encode
        self._updates: list[tuple[int, NewRows]] = []  # for ``Store.update``
        self._removed: dict[int, _StoredRow] = {}  # by key; at first all rows of changed files

    def read(self, found: FoundFiles) -> None:
        """Read the changed files."""
        for file in found.files:
            with found.reading(file):
                self._read_file(file)
        self.result.left_out = found.left_out
        old, new = self._old_files, self._new_files
        removed = Counter(old[name].sha256 for name in old.keys() - new)
        added = Counter(new[name].sha256 for name in new.keys() - old)
        counts = self.result.files
        counts.renamed = (removed & added).total()
        counts.removed = removed.total() - counts.renamed
        counts.added = added.total() - counts.renamed
        counts.unchanged = len(new) - added.total() - counts.changed

    def _read_file(self, file: str) -> None:
        if not is_unicode(file):  # ids must be text
            raise UsageError(f"{escape_name(file)}: its name is not UTF-8; rename it")
        path = Path(split_columns(file)[0])
        stat = path.stat()
        size, modified_ns = stat.st_size, stat.st_mtime_ns
        old = None if self._read_all else self._old_files.get(file)
        if old is not None and (size, modified_ns) == (old.size, old.modified_ns):
            self._new_files[file] = old
            return
        is_settled = time.time_ns() - modified_ns >= _TIMESTAMP_RESOLUTION_NS
        new = FileState(size, modified_ns if is_settled else 0, sha256(path))
        if old is None or old.sha256 != new.sha256:
            documents = self.index.open_document_encoder()
            blocks = read_file(file, self._reading, documents, self._skip_bad)
            stat = path.stat()
            if (stat.st_size, stat.st_mtime_ns) != (size, modified_ns):
                raise PromptcliError(f"{file} is being written to; try again when it is complete")
            if self._reading.split:
                blocks = [split_rows(rows, documents) for rows in blocks]
            self._blocks[file] = blocks
            self.result.files.changed += file in self._old_files
        self._new_files[file] = new

    def compare(self) -> None:
        """Sort the rows of changed files into unchanged, updated, new and removed rows."""
        removed = self._removed
        counts = self.result.rows
        with self.store.reading():
            for file in self._old_files:
                if file in self._new_files and file not in self._blocks:
                    continue
                rows = self.store.rows_of_file(file)
                columns = self.store.columns([row.key for row in rows])
                for row, cells in zip(rows, columns, strict=True):
                    removed[row.key] = _StoredRow(str(row.displayed_id), row.text or "", cells)
            counts.unchanged = len(self.store) - len(removed)
        keys = {(row.id, row.text): key for key, row in removed.items()}
        blocks = list(itertools.chain(*self._blocks.values()))
        blocks = self._match(blocks, lambda row_id, text: keys.pop((row_id, text), None))
        keys_of_text: dict[str, list[int]] = defaultdict(list)
        for key in reversed(removed):
            keys_of_text[removed[key].text].append(key)

        def next_key(row_id: str, text: str) -> int | None:
            return keys_of_text[text].pop() if keys_of_text[text] else None

        self._new_rows = self._match(blocks, next_key)
        added = self.result.added
        for new_rows in self._new_rows:
            added += zip(new_rows.displayed_ids, new_rows.texts, strict=True)
        self.result.removed = [(row.id, row.text) for row in removed.values()]
        removed_ids = {row.id for row in removed.values()}
        counts.renamed = len(self._updates)
        counts.changed = sum(row_id in removed_ids for row_id, _ in added)
        counts.added = len(added) - counts.changed
        counts.removed = len(removed) - counts.changed

    def _match(
        self, blocks: Sequence[NewRows], find_key: Callable[[str, str], int | None]
    ) -> list[NewRows]:
        """Match rows with stored rows, whose keys are found by id and text; return the others."""
        others = []
        for rows in blocks:
            indices = []
            for index, (row_id, text) in enumerate(
                zip(rows.displayed_ids, rows.texts, strict=True)
            ):
                key = find_key(row_id, text)
                if key is None:
                    indices.append(index)
                    continue
                cells = {name: values[index] for name, values in rows.columns.items()}
                filled = {name: cell for name, cell in cells.items() if cell is not None}
                if self._removed.pop(key) == (row_id, text, filled):
                    self.result.rows.unchanged += 1
                else:
                    self._updates.append((key, rows.take([index])))
            others.append(rows.take(indices))
        return others

    def note_counts(self) -> None:
        """Note the numbers of changed and unchanged rows."""
        counts = self.result.rows
        line = f"{counts.added:,} added"
        if counts.renamed:
            line = f"{counts.renamed:,} updated in place (same text, new id or columns), {line}"
        if counts.changed:
            line += f", {counts.changed:,} changed"
        note(f"rows: {line}, {counts.removed:,} removed, {counts.unchanged:,} unchanged")

    def check(self, folder: Path, sources: _Sources, *, may_remove: bool) -> None:
        """Refuse an index without rows; unless ``may_remove``, also refuse to remove more than half
        of the rows.

        A text does not count as removed if another text of its file replaces it.
        """
        counts = self.result.rows
        if not counts.added + counts.changed + counts.renamed + counts.unchanged:
            raise UsageError(
                f"no line to index in {', '.join(sources.names)}; name texts, tables, or folders"
                " that hold some"
            )
        if may_remove:
            return
        removed = Counter(LINES_IN_ID.sub("", row_id) for row_id, _ in self.result.removed)
        removed -= Counter(LINES_IN_ID.sub("", row_id) for row_id, _ in self.result.added)
        rows = len(self.index)
        if 2 * removed.total() > rows and not self._read_all:
            file, count = removed.most_common(1)[0]
            raise TooManyRemovalsError(
                f"{removed.total():,} of {with_count(rows, 'row')} of {folder} would be removed,"
                f" {count:,} of them from {file}"
            )

    def write(self, folder: Path, sources: _Sources, lexical: bool | None, *, is_new: bool) -> None:
        """Write the changes; a new index (``is_new``) already has a transaction."""
        store = self.store
        if lexical is None:
            lexical = store.settings.lexical
        has_changed_files = self._read_all or self._new_files != self._old_files
        if not (is_new or has_changed_files or lexical != store.settings.lexical):
            return
        with contextlib.nullcontext() if is_new else store.changing():
            # the transaction of a change adds 1
            if not is_new and store.settings.generation != self._generation + 1:
                raise PromptcliError(
                    f"{folder}: another process changed it while it ran; sync it again"
                )
            store.write_settings(
                synced=asdict(sources), reading=asdict(self._reading), lexical=lexical
            )
            store.remove(self._removed)
            store.update(self._updates)
            if self.result.added:
                documents = self.index.open_document_encoder()
                blocks = prepare_rows(documents, self._new_rows, split=False)
                for rows in encode_rows(documents, blocks):
                    store.append(rows)
            store.write_file_states(self._new_files)
