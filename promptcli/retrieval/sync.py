"""An index that mirrors files: only new and changed texts are encoded, and rows that the files lack
are removed.
"""

import contextlib
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.data.csv_options import stored_options
from promptcli.data.file_arguments import split_columns
from promptcli.data.given import is_unicode
from promptcli.data.layouts import NONE
from promptcli.data.vectors import escape_name
from promptcli.errors import NotFoundError, PromptcliError, UsageError, counted, one_line
from promptcli.models.entries import utc_now
from promptcli.notes import note
from promptcli.recipe import is_named
from promptcli.retrieval.files import Reader, Reading
from promptcli.retrieval.found_files import LeftOut, find_files, list_of_names
from promptcli.retrieval.origin import Origin
from promptcli.retrieval.sentence_index import SentenceIndex, file_hash, split_rows
from promptcli.retrieval.store import DATABASE, NewRows, Store, creating

if TYPE_CHECKING:
    from promptcli.models.loading import Model

_PLACE = re.compile(r":\d+(-\d+)?(#\d+)?$")  # the end of an id: the lines of the file before it
#: A file that changed less than this long ago may change again without another time.
_SETTLED_NS = 2_000_000_000


class MostRowsError(UsageError):
    """More than half of the rows of an index would be removed, and the user has not agreed."""

    def __init__(self, question: str) -> None:
        super().__init__(question, parameter="yes")
        self.question = question


@dataclass
class Counts:
    """How many rows or files are in the index now that were not before, and so on."""

    added: int = 0
    changed: int = 0  #: rows: another text or other columns under the same id
    renamed: int = 0  #: rows: the same text under another id, or with other columns
    removed: int = 0
    unchanged: int = 0


@dataclass
class Synced:
    """What a sync changed."""

    index: SentenceIndex
    rows: Counts = field(default_factory=Counts)
    files: Counts = field(default_factory=Counts)  #: a renamed one has the bytes of one gone
    left_out: list[LeftOut] = field(default_factory=list)  #: files that were not read
    added: list[tuple[str, str]] = field(default_factory=list)  #: ids and texts of new rows
    removed: list[tuple[str, str]] = field(default_factory=list)

    def report(self) -> dict[str, object]:
        """Return the counts as a document."""
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

    Only new and changed texts are encoded. With another model all is encoded again.

    Args:
        folder: Of the index, which is made if it is missing.
        files: Texts, tables (``FILE:COLUMN``), globs and folders; None: those of the last time.
        model: An encoder, or what ``load`` takes; None: that of the index.
        rows: What a row of a text is, see ``SentenceIndex.build``; None: as in the index.
        text_field: Column of the sentence in tables; None: that of the index.
        id_field: Column of the id in tables, or ``-`` for FILE:ROW; None: that of the index.
        split: Whether longer rows are split; an index of parts stays one.
        lexical: Whether words are counted; None: as in the index.
        ignore: Whether ``.gitignore`` and ``.ignore`` are heeded in folders.
        exclude: Further patterns of what is left out.
        yes: Whether more than half of the index may be removed.
        dry_run: Whether only the changes are returned.
        csv: How tables are written, see ``embed``.
        skip_bad: Leave out the rows that cannot be read, and say how many and why.
        verbose: Whether every file that is left out is named.

    Raises:
        NotFoundError: No such file.
        MostRowsError: More than half of the index would be removed.
        UsageError: A file that is being written to, or an index of other rows.
    """
    folder = Path(folder)
    with contextlib.ExitStack() as ended:
        if (folder / DATABASE).exists():
            index = SentenceIndex.open(folder, model if not is_named(model) else None)
            is_new = False
        else:
            is_new = True
            with contextlib.suppress(NotFoundError):
                Store.open(folder)  # an index of before is refused
            if files is None:
                raise NotFoundError(f"no index in {folder}; name the files")
            index = SentenceIndex(ended.enter_context(creating(folder, force=False)))
        work = _Sync(index, files, is_new, ignore, exclude, verbose, skip_bad)
        work.choose(model, rows, text_field, id_field, lexical, csv, split=split)
        if model is not None and is_named(model) and not is_new and not dry_run:
            work.change_model(model)
        work.read(folder)
        if dry_run:
            ended.pop_all()  # what was begun is left
            return work.result
        if not is_new and not yes:
            work.check_going(folder)
        work.note_changes()
        if not work.is_changed:
            return work.result
        with contextlib.nullcontext() if is_new else index.store.changing():
            work.apply()
    if is_new:
        work.result.index = SentenceIndex.open(folder, work.model)
    work.result.index._derived.update()
    return work.result


class _Sync:
    """The rows of the files beside those of the index."""

    def __init__(
        self,
        index: SentenceIndex,
        files: Any,
        is_new: bool,
        ignore: bool,
        exclude: Sequence[str],
        verbose: bool,
        skip_bad: bool,
    ) -> None:
        self.index, self.store = index, index.store
        self.model: Model | None = None
        self.result = Synced(index)
        self.is_changed = is_new
        self._is_new, self._verbose, self._skip_bad = is_new, verbose, skip_bad
        before = None if is_new else self._synced_before()
        if files is None and before is not None:
            if before["root"] != os.getcwd():
                raise UsageError(f"the index was made in {before['root']}; sync it there")
            files, ignore, exclude = before["names"], before["ignore"], before["exclude"]
        self._names = list_of_names(files)
        self._about = {
            "root": os.getcwd(),
            "names": self._names,
            "ignore": ignore,
            "exclude": list(exclude),
        }
        self._found = find_files(self._names, ignore=ignore, exclude=exclude)
        self._settings: dict[str, Any] = {}
        self._new: list[NewRows] = []
        self._old: list[tuple[int, str, str, Any]] = []  # key, id, text, columns of rows to replace
        self._files: dict[str, tuple[int, int, str]] = {}
        self._gone: list[str] = []
        self._fresh: list[tuple[NewRows, int]] = []  # rows and places to encode
        self._moved: list[tuple[int, NewRows, int]] = []  # keys, and rows that have their texts

    def _synced_before(self) -> dict[str, Any]:
        with self.store.reading():
            synced = self.store.settings["synced"]
        if synced is None:
            raise UsageError(
                "the index holds rows that `index sync` did not put there; give another folder"
            )
        return dict(synced)

    def choose(
        self,
        model: "Model | None",
        rows: str | None,
        text_field: str | None,
        id_field: str | None,
        lexical: bool | None,
        csv: Mapping[str, Any] | None,
        *,
        split: bool,
    ) -> None:
        """Choose how files are read and by what model, as before where nothing else is said."""
        before = Reading() if self._is_new else self.index.reading
        self.reading = Reading(
            rows or before.rows,
            text_field or before.text_field,
            None if id_field == NONE else id_field or before.id_field,
            split or before.split,
            stored_options(csv) or before.csv,
        )
        self._reads_otherwise = not self._is_new and self.reading != before
        if self._is_new:
            self.model = model
            self._settings = {
                "lexical": lexical is not False,
                "factory": None,
                "target_recall": 0.95,
                "created": utc_now(),
                "numbered": 0,
            }
        elif lexical is not None and lexical != self.store.settings["lexical"]:
            self._settings = {"lexical": lexical}
            self.is_changed = True

    def change_model(self, model: "Model") -> None:
        """Give the index another model, if it is another."""
        from promptcli.models import loading

        encoder = loading.open_encoder(model, dtype="auto")
        if not self.index.origin.is_made_by(encoder):
            self.index.migrate(encoder)

    def _documents(self) -> Any:
        if self._is_new:
            if self.index._encoder is None:
                self.index.open_model(self.model, self._found.heads())
            return self.index._encoder.in_role("document")  # type: ignore[union-attr]
        return self.index.origin.documents(self.index.encoder)

    def read(self, folder: Path) -> None:
        """Read the files that have changed, and compare their rows with those of the index."""
        known: dict[str, Any] = {}
        if not self._is_new:
            with self.store.reading():
                records = self.store.sql.execute("SELECT * FROM files")
                known = {name: of for name, *of in records}
        reader = Reader(self.reading, self._documents, self._skip_bad)
        for file, in_folder in self._found.files.items():
            path = Path(split_columns(file)[0])
            try:
                self._read_one(reader, file, path, known.get(file), in_folder=in_folder)
            except (UsageError, NotFoundError, OSError) as error:
                if not in_folder or isinstance(error, _BeingWritten):
                    raise
                refused = error if isinstance(error, UsageError) else UsageError(one_line(error))
                self._found.unreadable[file] = refused
        if line := self._found.note(verbose=self._verbose):
            note(line)
        self.result.left_out = self._found.left_out
        self._gone = [name for name in known if name not in self._files]
        for name in self._gone:
            self._old += self._rows_of(name)
        hashes = Counter(known[name][2] for name in self._gone)
        come = Counter(self._files[name][2] for name in self._files if name not in known)
        renamed = (hashes & come).total()
        counts = self.result.files
        counts.renamed = renamed
        counts.removed = len(self._gone) - renamed
        counts.added = come.total() - renamed
        self.is_changed |= bool(self._gone)
        self._compare()

    def _read_one(
        self, reader: Reader, file: str, path: Path, known: Any, *, in_folder: bool
    ) -> None:
        if not is_unicode(file):  # an id is text
            raise UsageError(f"{escape_name(file)}: its name is not UTF-8; rename it")
        state = path.stat()
        changed = state.st_mtime_ns
        if time.time_ns() - changed < _SETTLED_NS:
            changed = 0
        if known is not None and not self._reads_otherwise:
            if (state.st_size, state.st_mtime_ns) == tuple(known[:2]):
                self._files[file] = tuple(known)
                self._keep(file)
                return
        sha256 = file_hash(path) if path.is_file() else ""
        self._files[file] = (state.st_size, changed, sha256)
        if known is not None and known[2] == sha256 and not self._reads_otherwise:
            self.is_changed |= known[1] != changed
            self._keep(file)
            return
        try:
            read = reader.read(file, in_folder=in_folder).new_rows(file)
        except PromptcliError:
            del self._files[file]
            raise
        after = path.stat()
        if (after.st_size, after.st_mtime_ns) != (state.st_size, state.st_mtime_ns):
            raise _BeingWritten(f"{file} is being written to; try again when it is complete")
        if self.reading.split:
            read = split_rows(read, self._documents())
        self.is_changed = True
        self._new.append(read)
        if known is not None:
            self.result.files.changed += 1
            self._old += self._rows_of(file)

    def _keep(self, file: str) -> None:
        self.result.files.unchanged += 1
        count = self.store.one("SELECT count(*) FROM rows WHERE source=?", file)
        self.result.rows.unchanged += count

    def _rows_of(self, file: str) -> list[tuple[int, str, str, Any]]:
        with self.store.reading():
            query = "SELECT key, id, part, text FROM rows WHERE source=? ORDER BY key"
            found = self.store.sql.execute(query, (file,)).fetchall()
            columns = self.store.columns([key for key, *_ in found])
        return [
            (key, _part_name(name, part), text, cells)
            for (key, name, part, text), cells in zip(found, columns, strict=True)
        ]

    def _compare(self) -> None:
        """Sort the rows of changed files into those that stay, move, come and go."""
        by_id = {(name, text): (key, cells) for key, name, text, cells in self._old}
        left = {key: (name, text) for key, name, text, _ in self._old}
        waiting = []
        counts = self.result.rows
        for rows in self._new:
            for place, name in enumerate(_names(rows)):
                text = (rows.texts or ())[place]
                same = by_id.pop((name, text), None)
                if same is None:
                    waiting.append((rows, place, name, text))
                    continue
                del left[same[0]]
                if _cells(rows, place) == same[1]:
                    counts.unchanged += 1
                else:
                    self._moved.append((same[0], rows, place))
        by_text: dict[str, list[int]] = defaultdict(list)
        for key in reversed(left):
            by_text[left[key][1]].append(key)
        fresh: dict[int, tuple[NewRows, list[int]]] = {}
        come = []
        for rows, place, name, text in waiting:
            if by_text[text]:
                key = by_text[text].pop()
                del left[key]
                self._moved.append((key, rows, place))
            else:
                fresh.setdefault(id(rows), (rows, []))[1].append(place)
                come.append((name, text))
        self._fresh = [(rows.take(places), len(places)) for rows, places in fresh.values()]
        self._left = left
        old_names = {name for name, _ in left.values()}
        counts.renamed = len(self._moved)
        counts.changed = sum(name in old_names for name, _ in come)
        counts.added = len(come) - counts.changed
        counts.removed = len(left) - counts.changed
        self.result.added = come
        self.result.removed = list(left.values())
        if not counts.added + counts.changed + counts.renamed + counts.unchanged:
            raise UsageError(
                f"no line to index in {', '.join(self._names)}; give texts, tables, or folders of"
                " them"
            )

    def note_changes(self) -> None:
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

        A text that is replaced by another of its file does not go.
        """
        gone = Counter(_PLACE.sub("", name) for name, _ in self._left.values())
        come = Counter(_PLACE.sub("", name) for name, _ in self.result.added)
        going = gone - come
        rows = len(self.index)
        if 2 * going.total() > rows and not self._reads_otherwise:
            file, count = going.most_common(1)[0]
            raise MostRowsError(
                f"{going.total():,} of {counted(rows, 'row')} of {folder} would be removed,"
                f" {count:,} of them from {file}."
            )

    def apply(self) -> None:
        """Write the changes, inside a transaction."""
        store = self.store
        if self._is_new:
            documents = self._documents()
            origin = Origin.of(self.index._encoder, documents, self.index._model)  # type: ignore[arg-type]
            about = {**self._settings, "synced": self._about}
            self.index.begin(origin, self.reading, about, documents.width)
        else:
            store.keep(synced=self._about, reading=asdict(self.reading), **self._settings)
        store.remove(self._left)
        store.sql.executemany(
            "UPDATE rows SET id=NULL WHERE key=?", [(key,) for key, _, _ in self._moved]
        )
        for key, rows, place in self._moved:
            row = rows.take([place])
            values = (row.ids[0], (row.parts or (0,))[0], row.sources[0], key)
            store.sql.execute("UPDATE rows SET id=?, part=?, source=? WHERE key=?", values)
            store.write_columns([key], row)
        if self._fresh:
            blocks = (rows for rows, _ in self._fresh)
            for rows, _ in self.index._encode(self._documents(), blocks, split=False):
                known = {} if self._is_new else store.keys_of(rows.ids)
                for name in known:
                    raise UsageError(f"the id {name!r} is in two files", parameter="id_field")
                store.append(rows)
        store.sql.execute("DELETE FROM files")
        records = [(name, *state) for name, state in self._files.items()]
        store.sql.executemany("INSERT INTO files VALUES(?, ?, ?, ?)", records)


class _BeingWritten(UsageError):
    """A file changed while it was read."""


def _names(rows: NewRows) -> Iterator[str]:
    for place, name in enumerate(rows.ids):
        yield _part_name(name, rows.parts[place] if rows.parts else 0)


def _part_name(name: int | str, part: int) -> str:
    return f"{name}#{part}" if part else str(name)


def _cells(rows: NewRows, place: int) -> dict[str, Any]:
    values = ((name, column[place]) for name, column in rows.columns.items())
    return {name: value for name, value in values if value is not None}
