"""Vector files: read, checked against their manifests if they have any, and named.

See ``formats`` for the formats.

Does not depend on encoders.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from promptcli.data.input_files import STANDARD, check_file
from promptcli.data.layouts import ColumnChoice
from promptcli.data.vectors.formats import (
    COLUMN,
    VECTOR_FORMATS,
    Floats,
    VectorFormat,
    as_floats,
)
from promptcli.data.vectors.precision import PRECISIONS, Loss
from promptcli.errors import CheckFailedError, UsageError, look_up
from promptcli.recipe import LeadingTexts
from promptcli.storage.files import sha256
from promptcli.storage.typed_documents import read_document

#: The end of the name of a vector file's manifest.
MANIFEST_ENDING = ".manifest.json"


@dataclass(frozen=True)
class EmbedSettings:
    """The options of ``embed``, besides the encoder, that determine its output."""

    text_field: str | None = None
    id_field: str | None = None
    normalize: bool = False
    precision: str = "float32"  #: a key of ``PRECISIONS``
    split: bool = False
    csv: dict[str, str] | None = None  #: how a table is written
    skip_bad: bool = False

    @property
    def fields(self) -> ColumnChoice:
        """The columns that are read."""
        return ColumnChoice(self.text_field, self.id_field)


@dataclass(frozen=True)
class EmbedReport:
    """Counts of the encoded sentences, and the cost of a precision below float32."""

    rows: int
    blank: int
    zero: int  #: not empty, but with a vector of zeros: all tokens are unknown
    truncated: int  #: cut to the maximum length
    loss: Loss | None = None
    #: (2, d): minimum and maximum of each dimension, by which int8 is read
    ranges: list[list[float]] | None = None
    #: runs (start, stop) of blank rows; None: unknown
    blank_rows: list[list[int]] | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The encoder and the settings that made some vectors."""

    dim: int
    settings: EmbedSettings
    recipe: dict[str, Any]
    fingerprint: str
    model: dict[str, Any]  #: the backbone's origin, and the precision it computed in
    name: str = ""  #: the name by which the model was opened
    prompts: LeadingTexts = field(
        default_factory=LeadingTexts
    )  #: of the model, for the queries of an index
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HashedFile:
    """A file that a manifest names."""

    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class VectorManifest(Manifest):
    """The content of ``FILE.manifest.json``."""

    report: EmbedReport
    input: HashedFile
    output: HashedFile

    def __post_init__(self) -> None:
        if self.settings.precision not in PRECISIONS:
            raise ValueError(
                f"precision {self.settings.precision!r} is none of {', '.join(PRECISIONS)}"
            )
        if (
            PRECISIONS[self.settings.precision].ranged
            and list(map(len, self.report.ranges or ())) != [self.dim] * 2
        ):
            raise ValueError(f"its ranges are not those of {self.dim} dimensions")


@dataclass(frozen=True)
class Vectors:
    """The rows of a vector file."""

    ids: Sequence[int | str]  #: row numbers, or text if the file has a column of ids
    texts: list[str] | None
    matrix: Floats  #: (n, d); memory-mapped if the file is .npy in float32
    manifest: VectorManifest | None

    @property
    def precision(self) -> str:
        """The precision that the file stores, a key of ``PRECISIONS``."""
        return "float32" if self.manifest is None else self.manifest.settings.precision


def tell_apart(one: tuple[str, str], other: tuple[str, str]) -> tuple[str, str]:
    """Return what a message calls two models, given the name, if any, and fingerprint of each."""
    (name, fingerprint), (other_name, other_fingerprint) = one, other
    if name and other_name and name != other_name:
        return name, other_name
    return (
        f"{name or 'an encoder'} ({fingerprint[:12]})",
        f"{other_name or 'an encoder'} ({other_fingerprint[:12]})",
    )


def manifest_path(path: Path) -> Path:
    """Return the path of a vector file's manifest."""
    return path.with_name(path.name + MANIFEST_ENDING)


def holds_vectors(path: Path) -> bool:
    """Return whether a file holds vectors rather than sentences: its extension decides, and its
    columns.

    A pipe is taken for sentences and not opened, since it can be read only once.
    """
    form = VECTOR_FORMATS.get(path.suffix.lower())
    if form is None:
        return False
    check_file(path)
    return form.columns is None or (path.is_file() and COLUMN in form.columns(path))


def read_vectors(path: Path | str) -> Vectors:
    """Read a vector file; float16, int8 and packed signs become float32 again by its manifest.

    Args:
        path: ``.npy`` or ``.parquet``, of ``embed`` or of another program.

    Raises:
        NotFoundError: The file is missing.
        UsageError: It is not a vector file, or of another shape than (n, d).
        CheckFailedError: It is damaged, or not the file that its manifest describes.
    """
    path = Path(path)
    check_file(path, regular=True)
    form = format_of(path)
    if form.read is None:
        raise UsageError(f"{path}: vectors are read from .npy and .parquet; write one of these")
    manifest = read_manifest(path)
    if manifest is not None and manifest.output.sha256 != sha256(path):
        described = f"not the file that {manifest_path(path).name} describes: its sha256 differs"
        raise CheckFailedError(f"{path}: {described}; embed again, or delete the manifest")
    ids, texts, matrix = form.read(path)
    if manifest is not None:
        precision = PRECISIONS[manifest.settings.precision]
        width = -(-manifest.dim // 8) if precision.packed else manifest.dim
        if matrix.shape[1:] != (width,):
            raise CheckFailedError(
                f"{path}: its manifest says {manifest.dim:,} dimensions, its shape is"
                f" {matrix.shape}"
            )
        ranges = np.array(manifest.report.ranges or np.zeros((2, manifest.dim)))
        stored = matrix.astype(precision.dtype, copy=False)
        matrix = precision.restore(stored, as_floats(ranges))
    if matrix.ndim != 2 or matrix.dtype.kind != "f" or 0 in matrix.shape:
        raise UsageError(
            f"{path}: holds {matrix.dtype} of shape {matrix.shape}; give floating-point numbers of"
            " shape (n, d)"
        )
    return Vectors(ids, texts, as_floats(matrix), manifest)


def read_manifest(path: Path) -> VectorManifest | None:
    """Return the manifest of a vector file, or None if it has none."""
    file = manifest_path(path)
    if file.is_file():
        return read_document(file, VectorManifest, hint="delete it, or embed again")
    return None


def reusable_manifest(path: Path, file: Path, settings: EmbedSettings) -> VectorManifest | None:
    """Return the manifest of a vector file that ``embed`` wrote from the same bytes with the same
    settings, or None.
    """
    if not (path.is_file() and file.is_file()):
        return None
    with contextlib.suppress(CheckFailedError):
        manifest = read_manifest(path)
        if manifest is not None and manifest.settings == settings:
            hashes = manifest.output.sha256, manifest.input.sha256
            return manifest if hashes == (sha256(path), sha256(file)) else None
    return None


def format_of(path: Path) -> VectorFormat:
    """Return the format of a vector file by its extension."""
    form = VECTOR_FORMATS.get(path.suffix.lower())
    if form is None:
        endings = ", ".join(VECTOR_FORMATS)
        raise UsageError(f"{path}: no format of vectors; end its name with one of: {endings}")
    return form


#: Characters of column names that file names should not have.
_NOT_IN_FILE_NAMES = re.compile(r"[^\w-]+")


def choose_output(
    file: Path, output: str | Path | BinaryIO | None, settings: EmbedSettings
) -> Path | None:
    """Return the vector file to write for a file of sentences, or None for a stream.

    Without ``output`` it is FILE.npy, or FILE.COLUMN.npy if the column is named. Refuse an output
    whose format cannot hold the ids or the precision.
    """
    ranged = look_up("precision", settings.precision, PRECISIONS).ranged
    if output is not None and not isinstance(output, str | Path):
        if ranged:
            problem = f"{settings.precision} needs a manifest; give a file as output"
            raise UsageError(problem, parameter="precision")
        return None
    if str(output) == str(STANDARD) or (output is None and (file == STANDARD or file.is_fifo())):
        raise UsageError("is missing: give a file, or a stream", parameter="output")
    named = (settings.text_field or "").rstrip(":")  # a sheet alone has a colon behind it
    column = "" if not named else f".{_NOT_IN_FILE_NAMES.sub('_', named)}"
    target = Path(output or f"{file}{column}.npy")
    written = format_of(target)
    for option, is_given in (("id_field", settings.id_field), ("split", settings.split)):
        if is_given and written.columns is None:
            with_ids = [kind for kind, form in VECTOR_FORMATS.items() if form.columns is not None]
            problem = f"needs ids, which {target.name} does not store"
            raise UsageError(
                f"{problem}; give an output of: {', '.join(with_ids)}", parameter=option
            )
    if target.is_file() and file.exists() and target.samefile(file):
        raise UsageError(f"{target} is the input itself; give another output")
    return target


def escape_name(name: str) -> str:
    """Return a file name as UTF-8 text, other bytes escaped."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
