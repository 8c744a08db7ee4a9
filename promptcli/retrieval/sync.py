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
from typing import TYPE_CHECKING, Any

from promptcli.data.arguments import is_unicode
from promptcli.data.csv_options import stored_options
from promptcli.data.input_files import split_columns
from promptcli.data.layouts import NONE
from promptcli.data.vectors import escape_name
from promptcli.errors import NotFoundError, PromptcliError, UsageError, counted
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


class MostRowsError(UsageError):
    """More than half of an index would be removed, and the user has not agreed."""

    def __init__(self, question: str) -> None:
        super().__init__(f"{question}; agree with `promptcli index sync DIR --yes`")
        self.question = question


@dataclass
class Counts:
    """Numbers of rows or files that were added, removed, changed or renamed."""

    added: int = 0
    changed: int = 0  #: rows with another text or other columns under the same id
    renamed: int = 0  #: rows with the same text under another id, or with other columns
    removed: int = 0
    unchanged: int = 0


@dataclass
class Synced:
    """The changes of a sync."""

    index: SentenceIndex
    rows: Counts = field(default_factory=Counts)
    files: Counts = field(default_factory=Counts)  #: a renamed file has the bytes of a removed one
    left_out: list[LeftOut] = field(default_factory=list)  #: files that were not read
    added: list[tuple[str, str]] = field(default_factory=list)  #: ids and texts of new rows
    removed: list[tuple[str, str]] = field(default_factory=list)

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
) -> Synced:
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
        MostRowsError: More than half of the index would be removed.
        PromptcliError: A file that is being written to, or an index that changes while it runs.
        UsageError: The index was not made by ``sync``.
    """
    folder = Path(folder)
    is_new = not (folder / DATABASE).exists()
    if is_new and files is None:
        raise NotFoundError(f"no index in {folder}; name the files")
    with contextlib.ExitStack() as ended:
        if is_new:
            index = SentenceIndex(ended.enter_context(creating(None if dry_run else folder)))
            before = Reading()
        else:
            index = SentenceIndex.open(folder, model if not is_named(model) else None)
            before = index.reading
            if index.synced is None:
                raise UsageError(
                    "the index has rows that do not come from `index sync`; give another folder"
                )
        about = _sources(index.synced, files, ignore, exclude)
        reading = Reading(
            rows or before.rows,
            text_field or before.text_field,
            None if id_field == NONE else id_field or before.id_field,
            split or before.split,
            stored_options(csv) or before.csv,
        )
        found = find_files(about["names"], ignore=about["ignore"], exclude=about["exclude"])
        if is_new:
            index.begin_with(model, reading, lexical=lexical is not False)
        elif model is not None and is_named(model):
            _migrate(index, model, dry_run=dry_run)
        settings: dict[str, Any] = {"synced": about, "reading": asdict(reading)}
        if lexical is not None:
            settings["lexical"] = lexical
        work = _Sync(index, reading, settings, read_all=reading != before, skip_bad=skip_bad)
        work.read(found)
        if line := found.note(verbose=verbose):
            note(line)
        work.compare()
        if not yes and not dry_run:
            work.check_going(folder)
        work.note_changes()
        if dry_run:
            return work.result
        if is_new:
            work.apply()
        elif work.is_changed:
            with index.store.changing():
                if index.store.generation != work.generation + 1:  # this change adds 1
                    raise PromptcliError(
                        f"{folder}: another process changed it while it ran; sync it again"
                    )
                work.apply()
    if is_new:
        work.result.index = SentenceIndex.open(folder, index._model)
    work.result.index._derived.update()
    return work.result


def _migrate(index: SentenceIndex, model: "Model", *, dry_run: bool) -> None:
    """Encode an index again if it has another model, and say so before."""
    encoder = loading.open_encoder(model, dtype="auto")
    if not index.origin.is_made_by(encoder):
        rows = counted(len(index), "row")
        note(f"the index has another model: all {rows} are encoded again")
        if not dry_run:
            index.migrate(encoder)


def _sources(
    before: dict[str, Any] | None, files: Any, ignore: bool, exclude: Sequence[str]
) -> dict[str, Any]:
    """Return the names of the files to read, and how they are found; by default as at the last
    sync.
    """
    if files is None and before is not None:
        if before["root"] != os.getcwd():
            raise UsageError(f"the index was made in {before['root']}; run sync there")
        return before
    names = list_of_names(files)
    return {"root": os.getcwd(), "names": names, "ignore": ignore, "exclude": list(exclude)}


class _Sync:
    """The rows of the files, compared with those of the index."""

    def __init__(
        self,
        index: SentenceIndex,
        reading: Reading,
        settings: dict[str, Any],
        *,
        read_all: bool,
        skip_bad: bool,
    ) -> None:
        self.index, self.store = index, index.store
        self.result = Synced(index)
        self._settings = settings  # present settings of the index
        self._reading, self._read_all, self._skip_bad = reading, read_all, skip_bad
        with self.store.reading():
            self.generation = self.store.generation  #: generation that the files are compared with
            records = self.store.sql.execute("SELECT * FROM files").fetchall()
        self._known = {name: tuple(state) for name, *state in records}
        self._files: dict[str, tuple[int, int, str]] = {}  # the states of the files now
        self._new: dict[str, list[NewRows]] = {}  # the rows of new and changed files
        self._fresh: list[NewRows] = []  # rows to encode
        self._moved: list[tuple[int, NewRows]] = []  # old keys, each with its new row
        self._left: dict[int, tuple[str, str]] = {}  # keys to remove, their ids and texts

    @property
    def is_changed(self) -> bool:
        """Whether any change must be written."""
        lexical = self.store.settings["lexical"]
        other_words = self._settings.get("lexical", lexical) != lexical
        return self._files != self._known or self._read_all or other_words

    def _documents(self) -> "Encoder":
        return self.index.origin.documents(self.index.encoder)

    def read(self, found: FoundFiles) -> None:
        """Read the changed files."""
        for file in found.files:
            with found.reading(file):
                self._read_one(file)
        self.result.left_out = found.left_out
        hashes = Counter(self._known[name][2] for name in self._known.keys() - self._files)
        come = Counter(self._files[name][2] for name in self._files.keys() - self._known)
        counts = self.result.files
        counts.renamed = (hashes & come).total()
        counts.removed = hashes.total() - counts.renamed
        counts.added = come.total() - counts.renamed
        counts.unchanged = len(self._files) - come.total() - counts.changed

    def _read_one(self, file: str) -> None:
        if not is_unicode(file):  # ids must be text
            raise UsageError(f"{escape_name(file)}: its name is not UTF-8; rename it")
        path = Path(split_columns(file)[0])
        state = path.stat()
        size, changed = state.st_size, state.st_mtime_ns
        known = None if self._read_all else self._known.get(file)
        if known is not None and (size, changed) == known[:2]:
            self._files[file] = known
            return
        if time.time_ns() - changed < _SETTLED_NS:
            changed = 0
        now = (size, changed, sha256(path))
        if known is None or known[2] != now[2]:
            documents = self._documents()
            blocks = read_file(file, self._reading, documents, self._skip_bad)
            after = path.stat()
            if (after.st_size, after.st_mtime_ns) != (size, state.st_mtime_ns):
                raise PromptcliError(f"{file} is being written to; try again when it is complete")
            if self._reading.split:
                blocks = [split_rows(rows, documents) for rows in blocks]
            self._new[file] = blocks
            self.result.files.changed += file in self._known
        self._files[file] = now

    def _old_rows(self) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
        """Yield key, id, text and columns of the rows of new, changed or removed files."""
        query = "SELECT key, id, part, text FROM rows WHERE source=? ORDER BY key"
        for file in self._known:
            if file in self._files and file not in self._new:
                continue
            rows = self.store.sql.execute(query, (file,)).fetchall()
            columns = self.store.columns([key for key, *_ in rows])
            for (key, name, part, text), cells in zip(rows, columns, strict=True):
                yield key, str(row_name(name, part)), text, cells

    def compare(self) -> None:
        """Sort the rows of changed files into unchanged, moved, new and removed."""
        with self.store.reading():
            old = list(self._old_rows())
            kept = len(self.store) - len(old)
        by_id = {(name, text): (key, cells) for key, name, text, cells in old}
        left = {key: (name, text) for key, name, text, _ in old}
        counts = self.result.rows
        counts.unchanged = kept
        unknown: list[NewRows] = []  # rows that the index does not have under their ids
        for rows in itertools.chain(*self._new.values()):
            places = []
            for place, name_and_text in enumerate(zip(rows.names, rows.texts, strict=True)):
                key, cells = by_id.pop(name_and_text, (None, {}))
                if key is None:
                    places.append(place)
                    continue
                del left[key]
                if rows.cells(place) == cells:
                    counts.unchanged += 1
                else:
                    self._moved.append((key, rows.take([place])))
            unknown.append(rows.take(places))
        by_text: dict[str, list[int]] = defaultdict(list)
        for key in reversed(left):
            by_text[left[key][1]].append(key)
        come = self.result.added
        for rows in unknown:
            places = []
            for place, text in enumerate(rows.texts):
                if by_text[text]:
                    key = by_text[text].pop()
                    del left[key]
                    self._moved.append((key, rows.take([place])))
                else:
                    places.append(place)
            fresh = rows.take(places)
            self._fresh.append(fresh)
            come += zip(fresh.names, fresh.texts, strict=True)
        self._left = left
        old_names = {name for name, _ in left.values()}
        counts.renamed = len(self._moved)
        counts.changed = sum(name in old_names for name, _ in come)
        counts.added = len(come) - counts.changed
        counts.removed = len(left) - counts.changed
        self.result.removed = list(left.values())
        if not counts.added + counts.changed + counts.renamed + counts.unchanged:
            raise UsageError(
                f"no line to index in {', '.join(self._settings['synced']['names'])}; give texts,"
                " tables, or folders of them"
            )

    def note_changes(self) -> None:
        """Note the number of changed rows."""
        counts = self.result.rows
        parts = []
        if counts.renamed:
            parts.append(f"{counts.renamed:,} renamed (same text, new path or columns)")
        parts.append(f"{counts.added:,} added")
        if counts.changed:
            parts.append(f"{counts.changed:,} changed")
        parts += [f"{counts.removed:,} removed", f"{counts.unchanged:,} unchanged"]
        note(f"rows: {', '.join(parts)}")

    def check_going(self, folder: Path) -> None:
        """Refuse to remove more than half of an index.

        A text replaced by another in its file does not count as removed.
        """
        gone = Counter(LINES.sub("", name) for name, _ in self._left.values())
        come = Counter(LINES.sub("", name) for name, _ in self.result.added)
        going = gone - come
        rows = len(self.index)
        if 2 * going.total() > rows and not self._read_all:
            file, count = going.most_common(1)[0]
            raise MostRowsError(
                f"{going.total():,} of {counted(rows, 'row')} of {folder} would be removed,"
                f" {count:,} of them from {file}"
            )

    def apply(self) -> None:
        """Write the changes, inside a transaction."""
        store = self.store
        store.keep(**self._settings)
        store.remove(self._left)
        keys = [(key,) for key, _ in self._moved]
        store.sql.executemany("UPDATE rows SET id=NULL WHERE key=?", keys)
        for key, row in self._moved:
            values = (row.ids[0], row.all_parts[0], row.source, key)
            store.sql.execute("UPDATE rows SET id=?, part=?, source=? WHERE key=?", values)
            store.write_columns([key], row)
        if self.result.added:
            documents = self._documents()
            blocks = prepare_rows(documents, self._fresh, split=False)
            for rows in encode_rows(documents, blocks):
                store.append(rows)
        store.sql.execute("DELETE FROM files")
        records = [(name, *state) for name, state in self._files.items()]
        store.sql.executemany("INSERT INTO files VALUES(?, ?, ?, ?)", records)
