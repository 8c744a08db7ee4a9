"""An index that mirrors files: only new and changed rows are encoded, and rows that the files lack
are removed.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from promptcli.data.bad_lines import BadRows, bad_rows
from promptcli.data.cells import Cells, cells_array
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.file_arguments import split_columns
from promptcli.data.given import is_unicode
from promptcli.data.input_files import state_of
from promptcli.data.layouts import CELLS, ID, NONE, TEXT
from promptcli.data.parquet_files import RecordBatch
from promptcli.data.row_batches import BATCH
from promptcli.data.vectors import escape_name
from promptcli.embedding.passages import AUTO
from promptcli.embedding.splitting import PART, Splitter
from promptcli.errors import UsageError, counted
from promptcli.evaluation.lexical import WORD_RULE
from promptcli.index import stored
from promptcli.index.array_rows import ArrayRows
from promptcli.index.basics import (
    INDEX_MANIFEST,
    bad_lines_option,
    memory_option,
    size_of,
)
from promptcli.index.changes import (
    PLACE,
    RowContent,
    Synced,
    changes_line,
    file_changes,
    row_changes,
)
from promptcli.index.file_rows import FileRows, Reader, place_ids
from promptcli.index.found_files import find_files, list_of_names
from promptcli.index.stored import IndexManifest, Reading, StoredIndex
from promptcli.index.vector_index import VectorIndex
from promptcli.jobs import Job, argument, function_of, function_with, option
from promptcli.models.entries import utc_now
from promptcli.notes import keyword, note
from promptcli.recipe import Choice, is_named
from promptcli.storage.files import real_path

if TYPE_CHECKING:  # these load torch
    from promptcli.encoder.sentence_encoder import Encoder
    from promptcli.models.loading import Model


class MostRowsError(UsageError):
    """More than half of the rows of an index would be removed, and the user has not agreed."""

    def __init__(self, question: str) -> None:
        super().__init__(f"{question} Agree with {keyword('yes')}")
        self.question = question


@dataclass(frozen=True)
class SyncChanges:
    """What a sync changes: ids and texts of rows."""

    added: list[tuple[str, str]]  #: rows whose text is new, in order
    removed: list[tuple[str, str]]  #: rows whose text is in no file any more
    kept: int  #: rows of the files whose text the index has, under the same id or another


@dataclass(frozen=True)
class SyncIndexJob(Job[Synced]):
    """Make an index equal to files: passages of texts and rows of tables, and no others, under the
    ids FILE:LINES.

    Only new and changed texts are encoded. If nothing has changed, the index stays unchanged; with
    another model all is encoded again.

    Raises:
        NotFoundError: No such file.
        UsageError: A file that is being written to, no line to index, an index of other rows, or
            more than half of the index going without ``yes``.
    """

    folder: str | Path = argument(
        "Folder of the index, which is made if it is missing.",
        metavar="DIR",
        typed=str,
    )
    files: Sequence[str | Path] = argument(
        "Texts, tables (FILE:COLUMN names that of the text), globs, and folders; hidden files in"
        " a folder, and those that are not text, are left out.",
        metavar="FILE...",
        typed=list[str],
    )
    model: "Model | None" = option(
        None,
        "An encoder, or what `load` takes. Default: that of the index; `mini` for a new one.",
        kind="model",
    )
    _: KW_ONLY
    rows: Literal["auto", "passages", "lines"] | None = option(
        None,
        "What a row of a text is, see `promptcli index build`. Default: as in the index; auto for a"
        " new one.",
    )
    text_field: str | None = option(
        None,
        "Column of the sentence in tables. Default: that of the index; `text` or `sentence` in a"
        " new one.",
    )
    id_field: str | None = option(
        None,
        "Column of the id in tables, or - for FILE:ROW. Default: that of the index; FILE:ROW in a"
        " new one.",
    )
    split: bool = option(
        False,
        "Split lines, and rows of tables, that are longer than the model's window, see"
        " `promptcli index build`; an index of parts stays one.",
    )
    lexical: bool | None = option(
        None,
        "Also count words (BM25), see `promptcli index build`. Default: as in the index; a new one"
        " has them.",
    )
    memory: str | int = memory_option()
    yes: bool = option(False, "Remove rows even if they are more than half of the index.")
    bad_lines: str | Path | None = bad_lines_option()
    verbose: bool = option(False, "Name every file that is left out, with the reason.")

    def run(self) -> Synced:
        from promptcli.index import inputs

        folder = Path(self.folder)
        room = size_of(self.memory)
        work = _difference(self)
        manifest = work.manifest
        if manifest is not None and not work.read_otherwise and not self.yes:
            _check_going(work.before, work.rows, folder)
        if manifest is None or work.begins_again:
            documents = work.encoder().in_role("document", report=True)
            encoded = inputs.spool(documents, _batches(list(work.rows)), folder, len(work.rows))
            stored.check_index_unchanged(folder, manifest)
            with stored.create(folder, instead=manifest) as writer:
                index = VectorIndex.build(
                    encoded,
                    memory=room,
                    store=writer.segment,
                    split=work.split,
                    lexical=work.lexical,
                )
                origin = inputs.origin_of(work.encoder(), documents, work.model)
                note(f"{counted(len(work.rows), 'row')} added")
                manifest = writer.finish(
                    StoredIndex(index, origin, utc_now(), synced=True, reading=work.reading)
                )
            return work.result(manifest)
        reads_alike = manifest.reading == work.reading
        same = reads_alike and (manifest.split, manifest.lexical) == (work.split, work.lexical)
        same = same and (manifest.word_rule == WORD_RULE or not work.lexical)
        if same and work.before.keys() == work.rows.keys():
            note(f"{counted(len(work.rows), 'row')}, unchanged")
            return work.result(manifest)
        with stored.change(folder, memory=room, expected=manifest) as stored_index:
            stored_index.index.split = work.split
            stored_index.index.lexical = work.lexical
            stored_index.reading = work.reading
            _apply(stored_index, work.rows, folder, work.encoder)
        return work.result(stored.read_manifest(folder))


sync_index = function_of(SyncIndexJob, "sync_index")


def changes_of(job: SyncIndexJob) -> SyncChanges:
    """Return what ``sync_index`` would change, and change nothing."""
    work = _difference(job)
    old = _texts(work.before)
    new = _texts(work.rows)
    added = [(name, text) for name, text, _ in work.rows if text not in old]
    removed = [(name, text) for name, text, _ in work.before if text not in new]
    return SyncChanges(added, removed, len(work.rows) - len(added))


sync_changes = function_with(SyncIndexJob, "sync_changes", changes_of)


def _difference(job: SyncIndexJob) -> "_Difference":
    """Return the rows of a job's files beside those of its index."""
    with bad_rows(job.bad_lines) as bad:
        work = _Difference(
            Path(job.folder),
            job.files,
            job.model,
            job.rows,
            job.text_field,
            job.id_field,
            bad,
            split=job.split,
            lexical=job.lexical,
        )
    work.note_left_out(verbose=job.verbose)
    return work


class _Difference:
    """The rows of the files, and the present rows of the index."""

    def __init__(
        self,
        folder: Path,
        files: Sequence[str | Path],
        model: "Model | None",
        rows: str | None,
        text_field: str | None,
        id_field: str | None,
        bad: BadRows,
        *,
        split: bool,
        lexical: bool | None,
    ) -> None:
        self.model: Model
        if model is None:
            self.model = Choice()
        else:
            self.model = model
        self.manifest = None
        if (folder / INDEX_MANIFEST).is_file():
            self.manifest = stored.read_manifest(folder)
        if self.manifest is None:
            stored.check_target(folder, force=False)
            before = Reading(AUTO)
        elif not self.manifest.synced:
            raise UsageError(
                f"{folder} holds rows that `index sync` did not put there; give another folder"
            )
        else:
            before = self.manifest.reading
            split = split or self.manifest.split
            if lexical is None:
                lexical = self.manifest.lexical
        self.split = split
        self.lexical = lexical is not False
        self.reading = Reading(
            rows or before.rows,
            text_field or before.text_field,
            None if id_field == NONE else id_field or before.id_field,
        )
        self.read_otherwise = self.manifest is not None and self.reading != before
        if self.manifest is None:
            self.before = {}
        else:
            self.before = _live(stored.load(folder, words=False).index)
        self._names = list_of_names(files)
        self._found = find_files(self._names)
        self._read_files = list[str]()
        self._file_of = dict[str, str]()
        self.rows = dict.fromkeys(self._read(folder, bad))
        if not self.rows:
            self.note_left_out(verbose=False)
            raise UsageError(
                f"no line to index in {', '.join(map(str, files))}; give texts, tables, or folders"
                " of them"
            )
        if split:
            self.rows = self._in_parts()

    @functools.cached_property
    def _encoder(self) -> "Encoder":
        from promptcli.index import inputs
        from promptcli.models import loading
        from promptcli.models.language_choice import model_for

        if self.manifest is None:
            self.model = model_for(self.model, self._found.heads())
        if self.manifest is None or is_named(self.model):
            return loading.open_encoder(self.model, dtype="auto")
        return inputs.encoder_of(self.manifest, self.model)

    def encoder(self) -> "Encoder":
        """Return the model, which is opened when it is needed."""
        return self._encoder

    @property
    def begins_again(self) -> bool:
        """Whether all rows are encoded again because the model differs."""
        from promptcli.index import inputs

        if self.manifest is None or not is_named(self.model):
            return False
        return (
            inputs.documents_of(self.manifest, self.encoder()).fingerprint
            != self.manifest.fingerprint
        )

    def note_left_out(self, *, verbose: bool) -> None:
        """Say which files are not read."""
        if line := self._found.note(verbose=verbose):
            note(line)

    def result(self, manifest: IndexManifest) -> Synced:
        """Return the present index, and the changes."""
        names = dict[str, str]()
        for name, *_ in self.rows:
            whole = name if name in self._file_of else re.sub(PART, "", name)
            names[name] = self._file_of[whole]
        return Synced(
            **vars(manifest),
            row_changes=row_changes(self.before, self.rows),
            file_changes=file_changes(self.before, self.rows, self._read_files, names),
            left_out=self._found.left_out,
        )

    def _read(self, folder: Path, bad: BadRows) -> Iterator[RowContent]:
        target = real_path(folder)
        fields = ColumnChoice(self.reading.text_field, self.reading.id_field, remedy="", cells=True)
        reader = Reader(self.reading.rows, lambda: self.encoder().in_role("document"), fields, bad)
        for file, in_folder in self._found.files.items():
            path = split_columns(file)[0]
            if target in real_path(Path(path)).parents:
                continue
            if not is_unicode(file):  # an id is text
                refused = UsageError(f"{escape_name(file)}: its name is not UTF-8; rename it")
                if not in_folder:
                    raise refused
                self._found.unreadable[file] = refused
                continue
            before = state_of(path)
            read = reader.read(file, self._found if in_folder else None)
            if read is None:
                continue
            if state_of(path) != before:
                raise UsageError(f"{file} is being written to; try again when it is complete")
            for doubt in read.doubts.values():
                note(f"{file}: {doubt}")
            self._read_files.append(file)
            for row in _rows_of(file, read):
                self._file_of[row[0]] = file
                yield row

    def _in_parts(self) -> dict[RowContent, None]:
        """Return the rows with those in parts that are longer than the window; passages fit it."""
        whole = [row for row in self.rows if "end_line" in dict(row[2])]
        others = [row for row in self.rows if "end_line" not in dict(row[2])]
        if not others:
            return dict.fromkeys(whole)
        ids, given, cells = zip(*others, strict=True)
        names, texts, numbers = Splitter(self.encoder().in_role("document")).rows(ids, given)
        parts = zip(names, texts, map(cells.__getitem__, numbers), strict=True)
        return dict.fromkeys([*whole, *parts])


def _rows_of(file: str, read: FileRows) -> Iterator[RowContent]:
    """Yield the rows of a file with their ids."""
    ids = read.ids
    if ids is None:
        ids = place_ids(file, read.rows)
    all_cells: Iterable[Cells] = repeat(())
    if read.cells is not None:
        all_cells = map(tuple, read.cells.to_pylist())
    seen = set[str]()
    for name, row, cells in zip(ids, read.rows, all_cells, strict=False):
        if name in seen:
            raise UsageError(
                f"{file}: the id {name!r} is given twice; name another column as"
                f" {keyword('id_field')}, or -"
            )
        seen.add(name)
        yield name, row.text, cells


def _texts(rows: Iterable[RowContent]) -> set[str]:
    return {text for _, text, _ in rows}


def _check_going(before: dict[RowContent, int], rows: dict[RowContent, None], folder: Path) -> None:
    """Refuse to remove more than half of an index.

    A text that is replaced by another of its file does not go.
    """
    old = _texts(before)
    new = _texts(rows)
    gone = Counter(PLACE.sub("", name) for name, text, _ in before if text not in new)
    come = Counter(PLACE.sub("", name) for name, text, _ in rows if text not in old)
    going = (gone - come).total()
    if 2 * going > len(before):
        file, count = (gone - come).most_common(1)[0]
        raise MostRowsError(
            f"{going:,} of {counted(len(before), 'row')} of {folder} would be removed, {count:,} of"
            f" them from {file}."
        )


def _batches(rows: Sequence[RowContent]) -> Iterator[RecordBatch]:
    for start in range(0, len(rows), BATCH):
        ids, texts, cells = zip(*rows[start : start + BATCH], strict=True)
        columns = {
            ID: pa.array(ids, pa.string()),
            TEXT: pa.array(texts, pa.string()),
            CELLS: cells_array(cells),
        }
        yield pa.record_batch(columns)


def _live(index: VectorIndex) -> dict[RowContent, int]:
    ids, texts = (index.labels.column(name).to_pylist() for name in ("id", "text"))
    if CELLS in index.labels.column_names:
        cells = index.labels.column(CELLS).to_pylist()
    else:
        cells = repeat((), len(ids))
    rows = zip(ids, texts, (tuple(row or ()) for row in cells), strict=True)
    return {row: number for number, row in enumerate(rows) if not index.masked[number]}


def _apply(
    stored_index: StoredIndex,
    rows: dict[RowContent, None],
    folder: Path,
    opener: "Callable[[], Encoder]",
) -> None:
    """Change an index to these rows; a text that it has under another id is not encoded again."""
    from promptcli.index import inputs

    def line(name: str) -> str:
        return re.sub(PART, "", name)

    index = stored_index.index
    before = _live(stored_index.index)
    # of a line in parts all are replaced
    changed = {line(name) for name, *_ in before.keys() ^ rows.keys()}
    added = [row for row in rows if line(row[0]) in changed]
    removed = [name for name, *_ in before if line(name) in changed]
    if index.keeps_vectors:
        numbers = {text: number for (_, text, _), number in before.items()}
    else:
        numbers = {}
    moved = [row for row in added if row[1] in numbers]
    vectors = None
    if moved:
        vectors = index.vectors(np.array([numbers[text] for _, text, _ in moved], np.int64))
    if removed:
        index.delete(removed)
    if vectors is not None:
        names, texts, cells = zip(*moved, strict=True)
        index.add(ArrayRows(vectors, names, texts, cells_array(cells)))
    if new := [row for row in added if row[1] not in numbers]:
        documents = inputs.documents_of(stored_index.origin, opener())
        index.add(inputs.spool(documents, _batches(new), folder, len(new)))
    if index.masked.sum() > index.rows:
        index.compact()
    note(changes_line(row_changes(before, rows)))
