"""Vector files, read and checked against their manifests, and written; see ``formats`` for the table of formats.

Files of other programs, without a manifest, are read as well. Knows nothing of encoders.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from promptcli.data.files import STANDARD, check_file
from promptcli.data.vectors.formats import COLUMN, FORMATS, Floats, Sink, VectorFormat, as_floats, opened
from promptcli.data.vectors.precision import PRECISIONS, Quantized
from promptcli.errors import CheckFailedError, UsageError
from promptcli.storage.documents import read_document, to_json
from promptcli.storage.files import sha256
from promptcli.storage.parts import read_parts, read_sidecar, replace_with_sidecar


@dataclass(frozen=True)
class Vectors:
    """The rows of a vector file."""

    ids: Sequence[int | str]  # row numbers, or text where the file has a column of them
    texts: list[str] | None
    matrix: Floats  # (n, d), restored where the file holds less; memory-mapped where it is .npy in float32
    manifest: dict[str, Any] | None

    @property
    def precision(self) -> str:
        """A key of ``PRECISIONS``: what the manifest says that the file holds."""
        return str((self.manifest or {}).get("precision", "float32"))


@dataclass(frozen=True)
class HashedFile:
    """A file that a manifest names."""

    path: str
    sha256: str


@dataclass(frozen=True)
class VectorManifest:
    """What is read of ``FILE.manifest.json``."""

    rows: int
    dim: int
    output: HashedFile
    input: HashedFile | None = None
    recipe: dict[str, Any] | None = None
    fingerprint: str | None = None
    model: dict[str, Any] | None = None
    precision: str = "float32"
    ranges: list[list[float]] | None = None
    schema_version: int = 1  #: Raised when a reader of the old layout would go wrong.


def manifest_path(path: Path) -> Path:
    """Return where the manifest of a vector file stands."""
    return path.with_name(path.name + ".manifest.json")


def holds_vectors(path: Path) -> bool:
    """Return whether a file holds vectors rather than sentences, by its extension and, if need be, its columns.

    A pipe is not looked into, since what is read of it is gone: it holds sentences.
    """
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        return False
    check_file(path)
    return form.columns is None or (path.is_file() and COLUMN in form.columns(path))


def read_vectors(path: Path | str) -> Vectors:
    """Read a vector file; float16, int8 and packed signs come back as float32 by its manifest.

    Raises:
        NotFoundError: there is no such file.
        UsageError: no vector file, or one of another shape than (n, d).
        CheckFailedError: it is damaged, or not the file that its manifest describes.
    """
    path = Path(path)
    check_file(path, regular=True)
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise UsageError(f"{path}: no vector file; its name ends with one of: {', '.join(FORMATS)}")
    # another process may replace the file between its checksum and its rows: then both are read again
    return read_parts(path, lambda: _read_with_manifest(path, form))


def read_manifest(path: Path, digest: str) -> dict[str, Any] | None:
    """Return the manifest of the vector file ``path`` of this SHA-256, or None where it has none.

    Raises:
        CheckFailedError: the manifest is damaged.
    """
    file, hint = manifest_path(path), "embed again with `force`"
    try:
        content = read_sidecar(file, digest)
        if content is None:
            return None
        manifest = read_document(file, dict[str, Any], hint=hint, content=content)
        read_document(file, VectorManifest, hint=hint, content=content)
    except (CheckFailedError, OSError) as error:
        raise CheckFailedError(f"damaged manifest: {error}") from None
    return manifest


def written_before(path: Path, file: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the manifest of a vector file that ``embed`` wrote from the same bytes in the same way, else None.

    ``settings`` are what a manifest keeps of how they were read and stored.
    """
    if not (path.is_file() and manifest_path(path).is_file() and file.is_file()):
        return None
    digest = sha256(path)
    with contextlib.suppress(CheckFailedError):  # what is damaged is no such file
        manifest = read_manifest(path, digest) or {}
        if manifest.get("settings") == settings and manifest["output"]["sha256"] == digest:
            return manifest if manifest["input"]["sha256"] == sha256(file) else None
    return None


def _read_with_manifest(path: Path, form: VectorFormat) -> Vectors:
    before = os.stat(path)
    digest = sha256(path)
    manifest = read_manifest(path, digest)
    if manifest is not None and manifest["output"]["sha256"] != digest:
        raise _not_as_described(path, "its sha256 differs")
    ids, texts, matrix = form.read(path)
    after = os.stat(path)
    if (before.st_ino, before.st_mtime_ns) != (after.st_ino, after.st_mtime_ns):
        raise _not_as_described(path, "it was replaced meanwhile")
    if manifest is not None and matrix.ndim == 2:
        matrix = _restored(path, matrix, manifest)
    if matrix.ndim != 2 or matrix.dtype.kind != "f" or 0 in matrix.shape:
        raise UsageError(
            f"{path}: holds {matrix.dtype} of shape {matrix.shape}; give floating-point numbers of shape (n, d)"
        )
    if manifest is not None and matrix.shape != (manifest["rows"], manifest["dim"]):
        raise _not_as_described(path, f"its shape is {matrix.shape}")
    return Vectors(ids, texts, as_floats(matrix), manifest)


def _restored(path: Path, stored: NDArray[Any], manifest: dict[str, Any]) -> NDArray[Any]:
    """Return stored numbers as vectors (n, d), those of float32 as they are."""
    name, width = manifest.get("precision", "float32"), manifest["dim"]
    form = PRECISIONS.get(name)
    if form is None:
        raise _not_as_described(path, f"its precision {name!r} is none of: {', '.join(PRECISIONS)}")
    if form.dtype is np.float32:
        return stored
    ranges = np.array(manifest.get("ranges") or np.zeros((2, width)), dtype=np.float32)
    if ranges.shape != (2, width) or stored.shape[1] != (-(-width // 8) if form.packed else width):
        raise _not_as_described(path, f"its shape is {stored.shape}, its precision {name}")
    return Quantized(stored.astype(form.dtype, copy=False), name, ranges).restore()


def _not_as_described(path: Path, found: str) -> CheckFailedError:
    manifest = manifest_path(path).name
    return CheckFailedError(
        f"{path}: not the file that {manifest} describes: {found}; embed again, or delete the manifest"
    )


def kind_of(path: Path) -> str:
    """Return the format of a vector file by its extension.

    Raises:
        UsageError: an extension that is no format.
    """
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise UsageError(f"cannot write vectors as {path.name!r}; end its name with one of: {', '.join(FORMATS)}")
    return kind


def output_of(file: Path, output: Path | None, *, id_field: str | None = None) -> Path | None:
    """Return the vector file to write, or None for standard output.

    Args:
        file: The sentences; ``-`` for standard input.
        output: As the user gave it, ``-`` for standard output; None: FILE.npy, for pipes standard output.
        id_field: The user's field of ids, for which not every format has room.

    Raises:
        UsageError: An extension that is no format, or the input itself.
    """
    if output == STANDARD or (output is None and (file == STANDARD or file.is_fifo())):
        return None
    target = output or Path(f"{file}.npy")
    with_ids = [kind for kind, form in FORMATS.items() if form.columns is not None]
    if kind_of(target) not in with_ids and id_field is not None:
        raise UsageError(f"`id_field`: {target.name} has no room for ids; give an `output` of: {', '.join(with_ids)}")
    if target.is_file() and file.exists() and target.samefile(file):
        raise UsageError(f"{target} is the input itself; give another `output`")
    return target


@contextlib.contextmanager
def open_sink(file: BinaryIO, kind: str, width: int, *, with_text: bool = True) -> Iterator[Sink]:
    """Open a writer on an open binary file; the file is whole when the block has ended well.

    The file is seekable for .npy and .safetensors; sentences are stored where the format has room for them.
    """
    with opened(FORMATS[kind].open(file, width, with_text)) as sink:
        yield sink


@contextlib.contextmanager
def new_vectors(target: Path, width: int, *, with_text: bool) -> Iterator[tuple[Sink, dict[str, Any]]]:
    """Yield what takes the rows of a vector file, and its manifest, to be filled in the block.

    Its format is that of its extension. Whenever the process dies, both are the old ones or the new.
    """
    manifest: dict[str, Any] = {}

    def document(digest: str) -> str:
        return to_json({**manifest, "output": {"path": readable(target.name), "sha256": digest}})

    with (
        replace_with_sidecar(target, manifest_path(target), document) as temporary,
        temporary.open("xb") as file,
        open_sink(file, kind_of(target), width, with_text=with_text) as sink,
    ):
        yield sink, manifest


def readable(name: str) -> str:
    """Return a file name as UTF-8 text, other bytes escaped."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
