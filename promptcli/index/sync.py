"""An index that mirrors files: only new and changed rows are encoded, and rows that the files lack are removed."""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from promptcli.data.dialect import CELLS, ID, TEXT, split_columns
from promptcli.data.files import skipped_files, state_of
from promptcli.data.rows import BATCH, Batch, Cells, cells_array
from promptcli.embedding.splitting import PART, Splitter
from promptcli.errors import UsageError, counted
from promptcli.evaluation.lexical import load_library
from promptcli.index import file_search, stored
from promptcli.index.indexing import size_of
from promptcli.index.rows import ArrayRows
from promptcli.index.stored import IndexManifest, StoredIndex
from promptcli.index.vector_index import VectorIndex
from promptcli.models.entries import utc_now
from promptcli.notes import note
from promptcli.recipe import Choice
from promptcli.storage.files import real_path

if TYPE_CHECKING:  # these load torch
    from promptcli.encoder.encoder import Encoder
    from promptcli.models.loading import Model

#: The id of a row, ``file:line``, its text, and its other columns.
Row = tuple[str, str, Cells]


def sync_index(
    folder: str | Path,
    files: Sequence[str | Path],
    model: "Model | None" = None,
    *,
    split: bool = False,
    lexical: bool = False,
    memory: str | int = "4GB",
) -> IndexManifest:
    """Make an index equal to files: their lines and rows, and no others, under the ids FILE:LINE.

    Only new and changed texts are encoded. If nothing has changed, the index stays unchanged; with another model all is
    encoded again.

    Args:
        folder: Folder of the index, which is made if it is missing.
        files: Texts, tables (FILE:COLUMN names that of the text), globs, and folders; hidden files in a folder, and
            those that are not text, are left out.
        model: An encoder, or what ``load`` takes. Default: that of the index; ``mini`` for a new one.
        split: Split texts longer than the model's window, see ``build_index``; an index of parts stays one.
        lexical: Also count words (BM25), see ``build_index``; an index that has them keeps them.
        memory: Memory that the process may take, e.g. 4GB or 800MB.

    Raises:
        NotFoundError: No such file.
        UsageError: A file that is being written to, no line to index, or an index of other rows.
    """
    from promptcli.index import inputs
    from promptcli.models import loading

    folder, room, model = Path(folder), size_of(memory), Choice() if model is None else model
    rows = dict.fromkeys(_read(files, folder))
    if not rows:
        raise UsageError(f"no line to index in {', '.join(map(str, files))}; give texts, tables, or folders of them")
    manifest = stored.read_manifest(folder) if (folder / stored.MANIFEST).is_file() else None
    if manifest is None:
        stored.check_target(folder, force=False)
    elif not manifest.synced:
        raise UsageError(f"{folder} holds rows that `index sync` did not put there; give another folder")
    else:
        split, lexical = split or manifest.split, lexical or manifest.lexical
    if lexical:
        load_library()

    @functools.cache
    def encoder() -> "Encoder":
        if manifest is None or inputs.is_named(model):
            return loading.open_model(model, dtype="auto")
        return inputs.encoder_of(manifest, model)

    if split:
        ids, given, cells = zip(*rows, strict=True)
        names, texts, numbers = Splitter(encoder().in_role("document")).rows(ids, given)
        rows = dict.fromkeys(zip(names, texts, map(cells.__getitem__, numbers), strict=True))
    if manifest is None or (
        inputs.is_named(model) and inputs.documents_of(manifest, encoder()).fingerprint != manifest.fingerprint
    ):
        documents = encoder().in_role("document", report=True)
        encoded = inputs.spooled(documents, _batches(list(rows)), folder, len(rows))
        with stored.create(folder, instead=manifest) as writer:
            index = VectorIndex.build(encoded, memory=room, store=writer.segment, split=split, lexical=lexical)
            origin = inputs.origin_of(encoder(), documents, model)
            note(f"{counted(len(rows), 'row')} added")
            return writer.finish(StoredIndex(index, origin, utc_now(), synced=True))
    same = (manifest.split, manifest.lexical) == (split, lexical)
    if same and _live(stored.load(folder).index).keys() == rows.keys():
        note(f"{counted(len(rows), 'row')}, unchanged")
        return manifest
    with stored.change(folder, memory=room, begun=manifest) as held:
        held.index.split, held.index.lexical = split, lexical
        _apply(held, rows, folder, encoder)
    return stored.read_manifest(folder)


def _read(files: Sequence[str | Path], folder: Path) -> Iterator[Row]:
    unreadable, target = list[str](), real_path(folder)
    for file, in_folder in file_search.find_files(files).items():
        path = split_columns(file)[0]
        if target in real_path(Path(path)).parents:
            continue
        before = state_of(path)
        if (lines := file_search.read_lines(file, unreadable if in_folder else None, cells=True)) is None:
            continue
        if state_of(path) != before:
            raise UsageError(f"{file} is being written to; try again when it is complete")
        cells = map(tuple, lines[CELLS].to_pylist()) if CELLS in lines else repeat(())
        for number, (line, others) in enumerate(zip(lines[TEXT], cells, strict=False), 1):
            if text := line.strip():
                yield f"{file}:{number}", text, others
    if unreadable:
        note(skipped_files(unreadable))


def _batches(rows: Sequence[Row]) -> Iterator[Batch]:
    for start in range(0, len(rows), BATCH):
        ids, texts, cells = zip(*rows[start : start + BATCH], strict=True)
        columns = {ID: pa.array(ids, pa.string()), TEXT: pa.array(texts, pa.string()), CELLS: cells_array(cells)}
        yield pa.record_batch(columns)


def _live(index: VectorIndex) -> dict[Row, int]:
    ids, texts = (index.labels.column(name).to_pylist() for name in ("id", "text"))
    cells = index.labels.column(CELLS).to_pylist() if CELLS in index.labels.column_names else repeat((), len(ids))
    rows = zip(ids, texts, (tuple(row or ()) for row in cells), strict=True)
    return {row: number for number, row in enumerate(rows) if not index.masked[number]}


def _apply(held: StoredIndex, rows: dict[Row, None], folder: Path, opener: "Callable[[], Encoder]") -> None:
    """Change an index to these rows; a text that it has under another id is not encoded again."""
    from promptcli.index import inputs

    def line(name: str) -> str:
        return re.sub(PART, "", name)

    index, before = held.index, _live(held.index)
    changed = {line(name) for name, *_ in before.keys() ^ rows.keys()}  # of a line in parts all are replaced
    added = [row for row in rows if line(row[0]) in changed]
    removed = [name for name, *_ in before if line(name) in changed]
    numbers = {text: number for (_, text, _), number in before.items()} if index.keeps_vectors else {}
    moved = [row for row in added if row[1] in numbers]
    vectors = index.vectors(np.array([numbers[text] for _, text, _ in moved], np.int64)) if moved else None
    if removed:
        index.delete(removed)
    if vectors is not None:
        names, texts, cells = zip(*moved, strict=True)
        index.add(ArrayRows(vectors, names, texts, cells_array(cells)))
    if new := [row for row in added if row[1] not in numbers]:
        documents = inputs.documents_of(held.origin, opener())
        index.add(inputs.spooled(documents, _batches(new), folder, len(new)))
    if index.masked.sum() > index.rows:
        index.compact()
    counts = f"{counted(len(added), 'row')} added, {len(removed):,} removed, {len(rows) - len(added):,} unchanged"
    note(counts + (f"; {counted(len(moved), 'row')} of those added had a stored vector" if moved else ""))
