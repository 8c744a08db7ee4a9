"""A folder of vectors in parts.

    _manifest.json                  inputs, number of shards, encoder, settings: written first
    part-00000-of-00064.parquet     the rows of one shard, in the order of the input; complete or
    absent

Programs that read Parquet data sets skip names that begin with an underscore. Does not depend on
encoders.
"""

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from promptcli.data.column_choice import ColumnChoice
from promptcli.data.counted_files import InputFile, check_same, count_input, has_text_ids
from promptcli.data.given import is_unicode
from promptcli.data.parquet_files import open_parquet
from promptcli.data.vectors import EmbedReport, EmbedSettings, Manifest, names_apart
from promptcli.data.vectors.formats import ABOUT, ParquetRows
from promptcli.errors import CheckFailedError, NotFoundError, UsageError, shorten
from promptcli.storage.files import check_name, remove_folder, write_text
from promptcli.storage.locks import hold, is_in_use
from promptcli.storage.typed_documents import convert, parse_json, read_document, to_json

PARTS_MANIFEST = "_manifest.json"

_PART = re.compile(r"part-(\d{5,18})-of-\d{5,18}\.parquet", re.ASCII)
#: The precisions of parts; int8 is read by the ranges of all rows, which no shard knows.
PART_PRECISIONS = ("float32", "float16")


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
        """The hash that every part carries: the same wherever the inputs are and whatever their
        names.
        """
        inputs = [[file.size, file.sha256, file.text, file.id] for file in self.inputs]
        values = [
            self.shards,
            asdict(self.settings),
            self.fingerprint,
            self.model.get("dtype"),
            inputs,
        ]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()

    def check_same(self, other: "PartsManifest", folder: Path) -> None:
        """Refuse to continue a folder with another encoder, other settings or other inputs."""
        if other.fingerprint != self.fingerprint:
            begun, given = names_apart(
                (self.name, self.fingerprint), (other.name, other.fingerprint)
            )
            raise UsageError(
                f"{folder} was started with the model {begun}, not {given}; use model"
                f" {self.name or begun}, or another folder"
            )
        begun_options, given_options = (
            {"shards": each.shards, "dtype": each.model.get("dtype")}
            | {"backend": each.model.get("backend")}
            | vars(each.settings)
            for each in (self, other)
        )
        for name, value in begun_options.items():
            if value != given_options[name]:
                problem = f"{name} {shorten(value)}, not {shorten(given_options[name])}"
                raise UsageError(
                    f"{folder} was started with {problem}; give that, or another folder"
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
    """Refuse, before the work, a name or a precision with which parts cannot be written."""
    if precision not in PART_PRECISIONS:
        raise UsageError(
            f"precision {precision} of parts is not allowed; give {' or '.join(PART_PRECISIONS)}"
        )
    check_name(folder, parameter="folder")
    if not is_unicode(str(folder)):
        raise UsageError(
            f"folder {str(folder)!r}: Arrow needs a name in UTF-8; give another folder"
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"folder {folder}: a file, not a folder; give the name of a folder")
    if not folder.parent.is_dir():
        raise NotFoundError(f"{folder}: no folder {str(folder.parent)!r}; make it first")


def is_part_folder(path: Path) -> bool:
    """Return whether a path is a folder of parts, finished or not."""
    return (path / PARTS_MANIFEST).is_file()


def read_parts_manifest(folder: Path) -> PartsManifest:
    """Return the manifest of a folder of parts.

    Its numbers are compared before anything is counted by them.
    """
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
    skip_bad: bool | None = None,
) -> list[InputFile]:
    """Return the input files with their rows: from the folder's manifest if it was begun, else
    counted now; ``skip_bad`` leaves out the rows that cannot be read.
    """
    if is_part_folder(folder):
        return check_same(read_parts_manifest(folder).inputs, names, str(folder))
    file_names = {path.name for path in folder.glob("[!.]*")}
    if file_names and PARTS_MANIFEST not in file_names:  # else another process has just begun it
        raise UsageError(f"{folder} holds other files (no {PARTS_MANIFEST}); give a new folder")
    fields = ColumnChoice(settings.text_field, settings.id_field)
    inputs = [count_input(name, fields, settings.csv, skip_bad) for name in names]
    has_text_ids(inputs)
    rows = sum(file.rows for file in inputs)
    if rows < shards:
        raise UsageError(
            f"shards {shards} of {rows:,} rows; give at most {max(rows, 1):,}, and inputs with rows"
        )
    return inputs


def begin_folder(folder: Path, manifest: PartsManifest) -> PartsManifest:
    """Write the manifest, unless the folder has one; return the folder's."""
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        with hold(folder):
            if not is_part_folder(folder):
                write_text(folder / PARTS_MANIFEST, to_json(manifest, indent=1))
    except BaseException:  # a full disk: nothing was begun
        with contextlib.suppress(OSError):  # not empty: another process has begun it
            if is_new:
                folder.rmdir()
        raise
    stored = read_parts_manifest(folder)
    stored.check_same(manifest, folder)
    return stored


def remove_parts(folder: Path) -> None:
    """Delete a folder of parts, so that it is begun again.

    Refuse one that another process is at work on.
    """
    if is_in_use(folder / PARTS_MANIFEST):
        raise UsageError(
            f"{folder}: another process is making its parts; wait until it ends, or give a new"
            " folder"
        )
    remove_folder(folder)


def part_name(shard: int, shards: int) -> str:
    """Return the file name of a part, e.g. ``part-00000-of-00064.parquet``."""
    return f"part-{shard:05}-of-{shards:05}.parquet"


def parts_in(folder: Path, shards: int) -> list[int]:
    """Return the shards whose parts exist."""
    numbers = (_PART.fullmatch(path.name) for path in folder.iterdir())
    found = sorted({int(number[1]) for number in numbers if number})
    return [
        shard for shard in found if shard < shards and (folder / part_name(shard, shards)).exists()
    ]


def read_report(folder: Path, manifest: PartsManifest, shard: int) -> EmbedReport | None:
    """Return the report in the footer of a part.

    None if it is missing or damaged; refuse one of another folder.
    """
    path = folder / part_name(shard, manifest.shards)
    try:
        with open_parquet(path, path, hint="") as file:
            about = parse_json(file.metadata.metadata[ABOUT])
            report = convert(about["report"], EmbedReport)
    except (CheckFailedError, KeyError, TypeError, ValueError):
        return None
    if about.get("manifest") != manifest.digest:
        raise CheckFailedError(
            f"{path} was made with another encoder, settings or inputs; delete it"
        )
    return report


def total_report(folder: Path, manifest: PartsManifest) -> EmbedReport:
    """Return the counts of all parts that exist."""
    reports = [read_report(folder, manifest, shard) for shard in parts_in(folder, manifest.shards)]
    counts = (
        (report.rows, report.blank, report.zero, report.truncated) for report in reports if report
    )
    rows, blank, zero, truncated = map(sum, zip(*counts, strict=True))
    return EmbedReport(rows, blank, zero, truncated)


def about_part(manifest: PartsManifest, report: EmbedReport) -> str:
    """Return the metadata of a part, as JSON."""
    return json.dumps({"manifest": manifest.digest, "report": asdict(report)})
