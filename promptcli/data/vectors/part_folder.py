"""A folder of vectors in parts.

    _manifest.json                  inputs, number of shards, encoder, settings: written first
    part-00000-of-00064.parquet     the rows of one shard, in the order of the input; complete or
    absent

Programs that read Parquet data sets skip names that begin with an underscore. Nothing here depends
on encoders.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from promptcli.data.arguments import is_unicode
from promptcli.data.input_files import open_text, state_of
from promptcli.data.layouts import ID, TEXT, ColumnChoice
from promptcli.data.parquet_files import open_parquet
from promptcli.data.rows import ROW, RowBatch, open_rows
from promptcli.data.vectors.formats import EmbedReport, EmbedSettings, Manifest, tell_apart
from promptcli.data.vectors.parquet import METADATA_KEY, ParquetRows
from promptcli.errors import CheckFailedError, NotFoundError, UsageError, short_repr, with_count
from promptcli.storage.files import check_output_name, delete_folder, write_text
from promptcli.storage.locks import hold, is_in_use
from promptcli.storage.typed_documents import convert, parse_json, read_document, to_json

PARTS_MANIFEST = "_manifest.json"

#: The precisions of parts. int8 needs the ranges of all rows, which no shard knows.
PART_PRECISIONS = ("float32", "float16")


# Inputs


@dataclass(frozen=True)
class InputFile:
    """A counted file of sentences."""

    path: str  #: as the user wrote it
    size: int
    sha256: str
    rows: int  #: readable rows
    stamp: str  #: time of the last change, or the version of a remote store
    text: str | None = None  #: column of the sentence; None in plain text
    id: str | None = None  #: column of the id
    has_gaps: bool = False  #: whether there are unreadable rows between the readable ones


def count_input(name: str, settings: EmbedSettings) -> InputFile:
    """Read a file once, check every row, and count the rows; an empty file has none."""
    size, stamp = state_of(name)
    count = end = 0
    fields = ColumnChoice(settings.text_field, settings.id_field)
    with open_rows(
        name, fields, csv=settings.csv, skip_bad=settings.skip_bad, may_be_empty=True
    ) as rows:
        for batch in rows:
            count += len(batch[ROW])
            end = batch[ROW][-1] + 1
        digest = rows.sha256()
    if state_of(name) != (size, stamp):
        raise UsageError(f"{name} is being written to; try again when it is complete")
    text, ids = rows.columns.get(TEXT) or None, rows.columns.get(ID)
    return InputFile(name, size, digest, count, stamp, text, ids, has_gaps=end > count)


def check_ids_agree(files: Sequence[InputFile]) -> None:
    """Refuse a mix of files with and without ids."""
    with_ids = [file for file in files if file.rows and file.id is not None]
    without_ids = [file for file in files if file.rows and file.id is None]
    if with_ids and without_ids:
        raise UsageError(
            f"{with_ids[0].path} has ids (column {with_ids[0].id!r}) and {without_ids[0].path} has"
            " none; give both ids"
        )


def check_same_files(
    files: Sequence[InputFile], names: Sequence[str], began: str
) -> list[InputFile]:
    """Return counted files under their present names.

    ``began`` names the folder that was begun with these files, in messages.
    """
    if len(names) != len(files):
        raise UsageError(
            f"{began} was started with {with_count(len(files), 'input file')}, not {len(names):,};"
            " give the same files"
        )
    renamed = [
        dataclasses.replace(file, path=name) for file, name in zip(files, names, strict=True)
    ]
    for file in renamed:
        check_unchanged(file, began)
    return renamed


def check_unchanged(file: InputFile, began: str) -> None:
    """Refuse a file that has changed since it was counted.

    The file is read only if its size or stamp has changed.
    """
    size, stamp = state_of(file.path)
    if (size, stamp) == (file.size, file.stamp):
        return
    with open_text(file.path, stored=True) as text:
        if size != file.size or text.sha256() != file.sha256:
            hint = "put that one back, or give another folder with -o"
            raise UsageError(f"{file.path} is not the file that {began} was started with; {hint}")


def read_range(
    files: Sequence[InputFile],
    start: int,
    stop: int,
    began: str,
    csv: Mapping[str, Any] | None = None,
) -> Iterator[RowBatch]:
    """Yield the readable rows [start, stop) of all files, one file after another.

    Numbers in place of ids count the readable rows of all files. Unreadable rows were reported when
    their file was counted.
    """
    first = 0
    for file in files:
        lower = max(start - first, 0)
        upper = min(stop - first, file.rows)
        if lower < upper:
            check_unchanged(file, began)
            fields = ColumnChoice(file.text, file.id)
            row = 0 if file.has_gaps else lower  # readable rows before the batch
            with open_rows(file.path, fields, csv=csv, start=row, again=True) as rows:
                for batch in rows:
                    selected = slice(max(lower - row, 0), upper - row)
                    rows_in_range = {name: values[selected] for name, values in batch.items()}
                    end = row + len(batch[ROW])
                    if file.id is None:
                        rows_in_range[ID] = range(first + row, first + end)[selected]
                    if rows_in_range[TEXT]:
                        yield rows_in_range
                    row = end
                    if row >= upper:
                        break
        first += file.rows


# The folder


@dataclass(frozen=True, kw_only=True)
class PartsManifest(Manifest):
    """The content of ``_manifest.json``; shard i holds the rows ``bounds(i)`` of the inputs."""

    shards: int
    rows: int
    inputs: list[InputFile]

    def bounds(self, shard: int) -> tuple[int, int]:
        """Return the rows [start, stop) of a shard."""
        return shard * self.rows // self.shards, (shard + 1) * self.rows // self.shards

    @functools.cached_property
    def digest(self) -> str:
        """The hash that every part carries; it does not depend on the paths of the inputs."""
        inputs = [[file.size, file.sha256, file.text, file.id] for file in self.inputs]
        dtype = self.model.get("dtype")
        values = [self.shards, asdict(self.settings), self.fingerprint, dtype, inputs]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()

    def check_same(self, other: "PartsManifest", folder: Path) -> None:
        """Refuse to continue a folder with another encoder, other settings or other inputs."""
        models = tell_apart((self.name, self.fingerprint), (other.name, other.fingerprint))
        if self.fingerprint == other.fingerprint:
            models = self.name, self.name
        options: dict[str, tuple[Any, Any]] = {
            "model": models,
            "shards": (self.shards, other.shards),
            "dtype": (self.model.get("dtype"), other.model.get("dtype")),
            "backend": (self.model.get("backend"), other.model.get("backend")),
        }
        other_settings = asdict(other.settings)
        for name, value in asdict(self.settings).items():
            options[name] = value, other_settings[name]
        for name, (value, other_value) in options.items():
            if value != other_value:
                problem = f"{name} {short_repr(value)}, not {short_repr(other_value)}"
                raise UsageError(
                    f"{folder} was started with {problem}; use the same, or another folder"
                )


class PartFolder(ParquetRows):
    """The rows of a folder in which every part exists.

    Example: ``for block in PartFolder(path).blocks(): index.add(block.vectors, block.ids)``
    """

    def __init__(self, folder: Path) -> None:
        self.manifest = read_parts_manifest(folder)
        shards = self.manifest.shards
        if (parts := len(parts_in(folder, shards))) < shards:
            raise CheckFailedError(
                f"{folder} is unfinished: {parts:,} of {shards:,} parts exist; run `embed` again"
            )
        super().__init__([folder / part_name(shard, shards) for shard in range(shards)])


def check_part_folder(folder: Path, precision: str) -> None:
    """Refuse, before the work, a folder name or a precision that parts cannot have."""
    if precision not in PART_PRECISIONS:
        raise UsageError(
            f"precision {precision} of parts is not allowed; give {' or '.join(PART_PRECISIONS)}"
        )
    check_output_name(folder, parameter="folder")
    if not is_unicode(str(folder)):
        raise UsageError(
            f"folder {str(folder)!r}: Arrow needs a name in UTF-8; give another folder"
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"folder {folder} is a file; give the name of a folder")
    if not folder.parent.is_dir():
        raise NotFoundError(f"{folder}: no folder {str(folder.parent)!r}; make it first")


def is_part_folder(path: Path) -> bool:
    """Return whether a path is a folder of parts, finished or not."""
    return (path / PARTS_MANIFEST).is_file()


def read_parts_manifest(folder: Path) -> PartsManifest:
    """Return the manifest of a folder of parts; refuse one whose numbers contradict each other."""
    hint = "delete the folder and embed again"
    manifest = read_document(folder / PARTS_MANIFEST, PartsManifest, hint=hint)
    rows = [file.rows for file in manifest.inputs]
    if (
        min(rows, default=-1) < 0
        or sum(rows) != manifest.rows
        or not 0 < manifest.shards <= max(manifest.rows, 1)
    ):
        problem = (
            f"{manifest.shards:,} shards of {manifest.rows:,} rows, and inputs of {sum(rows):,}"
        )
        raise CheckFailedError(f"{folder / PARTS_MANIFEST}: {problem}; {hint}")
    return manifest


def counted_inputs(
    folder: Path,
    names: Sequence[str],
    settings: EmbedSettings,
    shards: int,
) -> list[InputFile]:
    """Return the input files with their rows: from the folder's manifest if it was begun, else
    counted now.
    """
    if is_part_folder(folder):
        return check_same_files(read_parts_manifest(folder).inputs, names, str(folder))
    file_names = {path.name for path in folder.glob("[!.]*")}
    # if the manifest is there now, another process has just begun the folder
    if file_names and PARTS_MANIFEST not in file_names:
        raise UsageError(f"{folder} holds other files (no {PARTS_MANIFEST}); give a new folder")
    inputs = [count_input(name, settings) for name in names]
    check_ids_agree(inputs)
    rows = sum(file.rows for file in inputs)
    if rows < shards:
        raise UsageError(
            f"shards {shards} of {rows:,} rows; give at most {max(rows, 1):,}, and inputs with rows"
        )
    return inputs


def begin_folder(folder: Path, manifest: PartsManifest) -> PartsManifest:
    """Write the manifest unless the folder has one; return the manifest of the folder, with the
    present names of the inputs.
    """
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        with hold(folder):
            if not is_part_folder(folder):
                write_text(folder / PARTS_MANIFEST, to_json(manifest, indent=1))
    except BaseException:  # such as a full disk
        with contextlib.suppress(OSError):  # another process has begun the folder
            if is_new:
                folder.rmdir()
        raise
    stored = read_parts_manifest(folder)
    stored.check_same(manifest, folder)
    return dataclasses.replace(stored, inputs=manifest.inputs)


def remove_parts(folder: Path) -> None:
    """Delete a folder of parts to begin it again; refuse if another process is making its parts."""
    if is_in_use(folder / PARTS_MANIFEST):
        raise UsageError(
            f"{folder}: another process is making its parts; wait until it ends, or give a new"
            " folder"
        )
    delete_folder(folder)


def part_name(shard: int, shards: int) -> str:
    """Return the file name of a part, e.g. ``part-00000-of-00064.parquet``."""
    return f"part-{shard:05}-of-{shards:05}.parquet"


def parts_in(folder: Path, shards: int) -> list[int]:
    """Return the shards whose parts exist."""
    names = {path.name for path in folder.iterdir()}
    return [shard for shard in range(shards) if part_name(shard, shards) in names]


def read_report(folder: Path, manifest: PartsManifest, shard: int) -> EmbedReport | None:
    """Return the report in the footer of a part; None if the part is missing or damaged.

    A part of another folder is refused.
    """
    path = folder / part_name(shard, manifest.shards)
    try:
        with open_parquet(path, path, hint="") as file:
            content = parse_json(file.metadata.metadata[METADATA_KEY])
            report = convert(content["report"], EmbedReport)
    except (CheckFailedError, KeyError, TypeError, ValueError):
        return None
    if content.get("manifest") != manifest.digest:
        raise CheckFailedError(
            f"{path} was made with another encoder, settings or inputs; delete it"
        )
    return report


def total_report(folder: Path, manifest: PartsManifest) -> EmbedReport:
    """Return the counts of all parts that exist."""
    total = EmbedReport(0, 0, 0, 0)
    for shard in parts_in(folder, manifest.shards):
        report = read_report(folder, manifest, shard)
        if report is not None:
            total = EmbedReport(
                total.rows + report.rows,
                total.blank + report.blank,
                total.zero + report.zero,
                total.truncated + report.truncated,
            )
    return total


def part_metadata(manifest: PartsManifest, report: EmbedReport) -> str:
    """Return the metadata of a part, as JSON."""
    return json.dumps({"manifest": manifest.digest, "report": asdict(report)})
