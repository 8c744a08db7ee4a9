"""Vector files: their formats and their manifests.

``.npy`` holds only the matrix. ``.parquet`` (see ``parquet``) and ``.jsonl`` (write-only) also hold
ids and texts. Nothing here depends on encoders.
"""

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from promptcli.data.input_files import STANDARD, check_file, read_lines
from promptcli.data.rows import RowBatch
from promptcli.data.vectors.parquet import (
    COLUMN,
    Content,
    ParquetSink,
    parquet_columns,
    read_parquet,
)
from promptcli.data.vectors.precision import PRECISIONS, Floats, Loss, as_floats
from promptcli.errors import CheckFailedError, UsageError, look_up
from promptcli.extensions import Table
from promptcli.recipe import LeadingTexts
from promptcli.storage.files import sha256
from promptcli.storage.typed_documents import read_document

#: The end of the name of a vector file's manifest.
MANIFEST_ENDING = ".manifest.json"
#: Rows that are formatted as JSON at once.
_JSON_ROWS = 512
#: Characters of column names that file names should not have.
_NOT_IN_FILE_NAMES = re.compile(r"[^\w-]+")


# Manifests


@dataclass(frozen=True)
class EmbedSettings:
    """The options of ``embed`` that determine its output, apart from the encoder."""

    text_field: str | None = None
    id_field: str | None = None
    normalize: bool = False
    precision: str = "float32"  #: a key of ``PRECISIONS``
    split: bool = False
    csv: dict[str, str] | None = None  #: how a table is written
    skip_bad: bool = False


@dataclass(frozen=True)
class EmbedReport:
    """Counts of the encoded sentences, and the loss of a precision below float32."""

    rows: int
    blank: int
    zero: int  #: rows with text whose vector is zero: all their tokens are unknown
    truncated: int  #: rows cut to the maximum length
    loss: Loss | None = None
    #: (2, d): minimum and maximum of each dimension; int8 is read by them
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
    model: dict[str, Any]  #: the origin of the backbone, and the dtype in which it computed
    name: str = ""  #: the name by which the model was opened
    #: the prompts of the model, for the queries of an index
    prompts: LeadingTexts = field(default_factory=LeadingTexts)
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
                f"precision {self.settings.precision!r} is not one of {', '.join(PRECISIONS)}"
            )
        ranges = self.report.ranges or ()
        is_ranged = PRECISIONS[self.settings.precision].needs_ranges
        if is_ranged and list(map(len, ranges)) != [self.dim] * 2:
            raise ValueError(f"its ranges are not those of {self.dim} dimensions")


def manifest_path(path: Path) -> Path:
    """Return the path of a vector file's manifest."""
    return path.with_name(path.name + MANIFEST_ENDING)


def read_manifest(path: Path) -> VectorManifest | None:
    """Return the manifest of a vector file, or None if the file has none."""
    file = manifest_path(path)
    if file.is_file():
        return read_document(file, VectorManifest, hint="delete it, or embed again")
    return None


def reusable_manifest(path: Path, file: Path, settings: EmbedSettings) -> VectorManifest | None:
    """Return the manifest of the vector file ``path`` if ``embed`` made it with these settings from
    the present bytes of ``file``; else None.
    """
    if not (path.is_file() and file.is_file()):
        return None
    with contextlib.suppress(CheckFailedError):
        manifest = read_manifest(path)
        if manifest is not None and manifest.settings == settings:
            hashes = manifest.output.sha256, manifest.input.sha256
            return manifest if hashes == (sha256(path), sha256(file)) else None
    return None


def tell_apart(one: tuple[str, str], other: tuple[str, str]) -> tuple[str, str]:
    """Return the names of two models in a message, given name and fingerprint of each."""
    (name, fingerprint), (other_name, other_fingerprint) = one, other
    if name and other_name and name != other_name:
        return name, other_name
    return (
        f"{name or 'an encoder'} ({fingerprint[:12]})",
        f"{other_name or 'an encoder'} ({other_fingerprint[:12]})",
    )


# Formats


class Sink(Protocol):
    """Takes the rows of a vector file in order."""

    def write(self, batch: RowBatch, vectors: NDArray[Any]) -> object:
        """Append the rows of ``batch`` and their vectors (n, d), float32 unless quantized."""

    def close(self) -> object:
        """Complete the file."""


AnySink = TypeVar("AnySink", bound=Sink)


@dataclass(frozen=True)
class VectorFormat:
    """How a format of vector files is read and written."""

    read: Callable[[Path], Content] | None  #: None: the format is only written
    open: Callable[[BinaryIO, int], Sink]  #: takes the file and the width d
    #: The names of a file's columns, if the format stores ids and texts; such a file may also hold
    #: sentences.
    columns: Callable[[Path], Sequence[str]] | None = None


def read_array(path: Path) -> NDArray[Any]:
    """Return the array of an .npy file, memory-mapped."""
    try:
        with np.errstate(all="ignore"):  # the header may give any size
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception:  # a wrong header raises errors of many classes
        raise CheckFailedError(
            f"{path}: not a complete .npy file of numbers; write it again"
        ) from None
    return array


def _read_npy(path: Path) -> Content:
    matrix = read_array(path)
    return range(len(matrix) if matrix.ndim else 0), None, matrix


class _NpySink:
    """Writes rows after a header. ``close`` writes the header again, with the number of rows.

    numpy pads the header, so its length is the same for any number of rows.
    """

    def __init__(self, file: BinaryIO, width: int) -> None:
        self._file = file
        self._shape = (0, width)
        self._dtype = np.dtype("<f4")
        self._write_header()

    def _write_header(self) -> None:
        header = io.BytesIO()
        fields = {"descr": self._dtype.str, "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(header, fields)
        self._file.write(header.getvalue())

    def write(self, batch: RowBatch, vectors: NDArray[Any]) -> None:
        self._dtype = vectors.dtype.newbyteorder("<")
        self._shape = (self._shape[0] + len(vectors), vectors.shape[1])
        self._file.write(np.ascontiguousarray(vectors, dtype=self._dtype).data)

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()


def _jsonl_columns(path: Path) -> Sequence[str]:
    try:
        return list(json.loads(next(read_lines(path), "{}")))
    except (ValueError, TypeError, RecursionError):
        return []  # not a vector file; the reader of sentences says what is wrong


class _JsonlSink:
    def __init__(self, file: BinaryIO, width: int) -> None:
        self._file = file

    def write(self, batch: RowBatch, vectors: NDArray[Any]) -> None:
        rows = zip(batch["id"], batch["text"], strict=True)
        for start in range(0, len(vectors), _JSON_ROWS):
            lines = list[str]()
            for numbers in _format_rows(vectors[start : start + _JSON_ROWS]):
                name, text = next(rows)
                fields = json.dumps({"id": name, "text": text}, ensure_ascii=False)[:-1]
                lines.append(f'{fields}, "{COLUMN}": [{numbers}]}}\n')
            self._file.write("".join(lines).encode())
        self._file.flush()

    def close(self) -> None:
        """Do nothing: every line is complete."""


def _format_rows(vectors: NDArray[Any]) -> list[str]:
    """Return the numbers of each row as text; Arrow is five times as fast as ``json``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, width = vectors.shape
    offsets = pa.array(np.arange(0, rows * width + 1, width, dtype=np.int32))
    digits = pa.ListArray.from_arrays(offsets, pc.cast(pa.array(vectors.reshape(-1)), pa.string()))
    joined: list[str] = pc.binary_join(digits, ", ").to_pylist()
    return joined


#: Extension -> its format.
VECTOR_FORMATS: Table[VectorFormat] = Table(
    "formats",
    {
        ".npy": VectorFormat(_read_npy, _NpySink),
        ".parquet": VectorFormat(read_parquet, ParquetSink, parquet_columns),
        ".jsonl": VectorFormat(None, _JsonlSink, _jsonl_columns),
    },
)


def format_of(path: Path) -> VectorFormat:
    """Return the format of a vector file by its extension."""
    vector_format = VECTOR_FORMATS.get(path.suffix.lower())
    if vector_format is None:
        endings = ", ".join(VECTOR_FORMATS)
        raise UsageError(f"{path}: no format of vectors; end its name with one of: {endings}")
    return vector_format


@contextlib.contextmanager
def closing_sink(sink: AnySink) -> Iterator[AnySink]:
    """Yield a sink; its file is complete when the block has ended without an error."""
    try:
        yield sink
    except BaseException:
        # a Parquet writer that is not closed complains on stderr
        with contextlib.suppress(Exception):
            sink.close()
        raise
    sink.close()


def choose_output(
    file: Path, output: str | Path | BinaryIO | None, settings: EmbedSettings
) -> Path | None:
    """Return the vector file to write for a file of sentences, or None for a stream.

    Without ``output`` it is FILE.npy, or FILE.COLUMN.npy if the column is named. An output whose
    format cannot hold the ids or the precision is refused.
    """
    needs_ranges = look_up("precision", settings.precision, PRECISIONS).needs_ranges
    if output is not None and not isinstance(output, str | Path):
        if needs_ranges:
            problem = f"{settings.precision} needs a manifest; give a file as output"
            raise UsageError(problem, parameter="precision")
        return None
    if str(output) == str(STANDARD) or (output is None and (file == STANDARD or file.is_fifo())):
        raise UsageError("is missing: give a file, or a stream", parameter="output")
    column = (settings.text_field or "").rstrip(":")  # a sheet without columns ends with a colon
    ending = f".{_NOT_IN_FILE_NAMES.sub('_', column)}" if column else ""
    target = Path(output or f"{file}{ending}.npy")
    if format_of(target).columns is None:
        for option, value in (("id_field", settings.id_field), ("split", settings.split)):
            if value:
                with_ids = ", ".join(name for name, row in VECTOR_FORMATS.items() if row.columns)
                raise UsageError(
                    f"{target.name} stores no ids; give an output of: {with_ids}",
                    parameter=option,
                )
    if target.is_file() and file.exists() and target.samefile(file):
        raise UsageError(f"{target} is the input itself; give another output")
    return target


def escape_name(name: str) -> str:
    """Return a file name as UTF-8 text, other bytes escaped."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


# Reading


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


def holds_vectors(path: Path) -> bool:
    """Return whether a file holds vectors rather than sentences, by its extension and its columns.

    A pipe holds sentences; it is not opened, since it can be read only once.
    """
    vector_format = VECTOR_FORMATS.get(path.suffix.lower())
    if vector_format is None:
        return False
    check_file(path)
    columns_of = vector_format.columns
    return columns_of is None or (path.is_file() and COLUMN in columns_of(path))


def read_vectors(path: Path | str) -> Vectors:
    """Read a vector file; float16, int8 and packed signs become float32 again by its manifest.

    Args:
        path: ``.npy`` or ``.parquet``, of ``embed`` or of another program.

    Raises:
        NotFoundError: The file is missing.
        UsageError: The file holds no vectors, or an array of another shape than (n, d).
        CheckFailedError: The file is damaged, or its manifest describes another file.
    """
    path = Path(path)
    check_file(path, regular=True)
    read = format_of(path).read
    if read is None:
        raise UsageError(f"{path}: vectors are read from .npy and .parquet; write one of these")
    manifest = read_manifest(path)
    if manifest is not None and manifest.output.sha256 != sha256(path):
        described = f"not the file that {manifest_path(path).name} describes: its sha256 differs"
        raise CheckFailedError(f"{path}: {described}; embed again, or delete the manifest")
    ids, texts, matrix = read(path)
    if manifest is not None:
        precision = PRECISIONS[manifest.settings.precision]
        width = -(-manifest.dim // 8) if precision.is_packed else manifest.dim
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
