"""Reading vector files (.npy, .safetensors, .parquet, .jsonl) and checking them against their manifests.

Knows nothing of encoders; files of other programs, without a manifest, are read as well.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.streams import check_file, open_hashed, read_lines
from promptcli.data.tables import id_text
from promptcli.errors import CheckFailedError, UsageError
from promptcli.storage import files

Floats = NDArray[np.float32]

#: The key of the matrix in .safetensors, and the column in .parquet and .jsonl.
TENSOR, COLUMN = "embeddings", "embedding"

#: Rows of a Parquet file held at once beside the matrix.
_PARQUET_ROWS = 4096


@dataclass(frozen=True)
class Vectors:
    """The rows of a vector file.

    ``matrix`` is (n, d) float32, memory-mapped where the file is .npy in float32; ``ids`` are row numbers, or text
    where the file has a column of them; ``texts`` is None where the file has none, ``manifest`` where there is none.
    """

    ids: Sequence[int] | Sequence[str]
    texts: list[str] | None
    matrix: Floats
    manifest: dict[str, Any] | None


_Content = tuple[Sequence[int] | Sequence[str], list[str] | None, NDArray[Any]]


def manifest_path(path: Path) -> Path:
    """Return where the manifest of a vector file stands."""
    return path.with_name(path.name + ".manifest.json")


def holds_vectors(path: Path) -> bool:
    """Return whether a file holds vectors rather than sentences, by its extension and, if need be, its columns."""
    kind = path.suffix.lower()
    if kind not in _READERS:
        return False
    check_file(path)
    return kind in (".npy", ".safetensors") or COLUMN in _columns(path, kind)


def read_vectors(path: Path) -> Vectors:
    """Read a vector file.

    Raises:
        NotFoundError: there is no such file.
        UsageError: no vector file, or one of another shape than (n, d).
        CheckFailedError: it is damaged, or not the file that its manifest describes.
    """
    check_file(path)
    kind = path.suffix.lower()
    if kind not in _READERS:
        raise UsageError(f"{path}: no vector file; its name ends with one of: {', '.join(_READERS)}")
    manifest = read_manifest(path)
    if manifest is not None and manifest["output"]["sha256"] != files.sha256(path):
        raise _not_as_described(path, "its sha256 differs")
    ids, texts, matrix = _READERS[kind](path)
    if matrix.ndim != 2 or matrix.dtype.kind != "f" or 0 in matrix.shape:
        raise UsageError(
            f"{path}: holds {matrix.dtype} of shape {matrix.shape}; give floating-point numbers of shape (n, d)"
        )
    if manifest is not None and matrix.shape != (manifest["rows"], manifest["dim"]):
        raise _not_as_described(path, f"its shape is {matrix.shape}")
    return Vectors(ids, texts, matrix.astype(np.float32, copy=False), manifest)


def read_manifest(path: Path) -> dict[str, Any] | None:
    """Return the manifest of the vector file ``path``, or None where it has none.

    Raises:
        CheckFailedError: the manifest is damaged.
    """
    beside = manifest_path(path)
    if not beside.exists():
        return None
    try:
        manifest: dict[str, Any] = json.loads(beside.read_text(encoding="utf-8"))
        (manifest["rows"], manifest["dim"], manifest["output"]["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckFailedError(
            f"{beside}: damaged manifest ({error!r}); run `promptcli embed` again with --force"
        ) from None
    return manifest


def _not_as_described(path: Path, found: str) -> CheckFailedError:
    beside = manifest_path(path).name
    return CheckFailedError(
        f"{path}: not the file that {beside} describes: {found}; embed again, or delete the manifest"
    )


def _read_npy(path: Path) -> _Content:
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise CheckFailedError(f"{path}: not a whole .npy file of numbers: {error}") from None
    return range(len(matrix) if matrix.ndim else 0), None, matrix


def _read_safetensors(path: Path) -> _Content:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            keys = list(file.keys())
            if TENSOR not in keys:
                raise UsageError(f"{path}: no tensor {TENSOR!r}; it holds: {', '.join(keys)}")
            matrix = file.get_tensor(TENSOR)
    except SafetensorError as error:
        raise CheckFailedError(f"{path}: not a whole .safetensors file: {error}") from None
    return range(len(matrix) if matrix.ndim else 0), None, matrix


def _read_parquet(path: Path) -> _Content:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, buffer_size=1 << 20) as file:
            names = file.schema_arrow.names
            _need_column(path, names)
            columns = [name for name in ("id", "text", COLUMN) if name in names]
            parts: dict[str, list[Any]] = {name: [] for name in columns}
            matrix, row = np.empty((0, 0), np.float32), 0
            for batch in file.iter_batches(_PARQUET_ROWS, columns=columns):
                block = _rows_of(batch.column(COLUMN), f"{path}: rows {row + 1} to {row + len(batch)}")
                if row == 0:
                    matrix = np.empty((file.metadata.num_rows, block.shape[1]), np.float32)
                if block.shape[1] != matrix.shape[1]:
                    raise UsageError(f"{path}: vectors of {matrix.shape[1]} and of {block.shape[1]} numbers")
                matrix[row : row + len(block)] = block
                for name in columns[:-1]:
                    parts[name] += batch.column(name).to_pylist()
                row += len(block)
    except (pa.ArrowException, OSError) as error:
        raise CheckFailedError(f"{path}: not a whole Parquet file: {error}") from None
    return _named(path, parts.get("id"), row), _texts(path, parts.get("text")), matrix


def _rows_of(column: Any, where: str) -> Floats:
    """Return a column of lists as a matrix (n, d)."""
    import pyarrow.compute as pc

    lengths = set(pc.list_value_length(column).to_pylist())
    values = column.flatten()
    if len(lengths) != 1 or None in lengths or values.null_count:
        raise UsageError(f"{where}: {COLUMN!r} is not a list of equally many numbers in every row")
    block: Floats = values.to_numpy(zero_copy_only=False).astype(np.float32, copy=False).reshape(len(column), -1)
    return block


def _read_jsonl(path: Path) -> _Content:
    rows: list[Floats] = []
    ids: list[Any] = []
    texts: list[Any] = []
    with open_hashed(path) as raw:
        for number, line in read_lines(raw, str(path)):
            try:
                values = json.loads(line)
                rows.append(np.asarray(values[COLUMN], dtype=np.float32))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise CheckFailedError(f"{path}: line {number}: no object with {COLUMN!r}: {error!r}") from None
            if rows[-1].shape != rows[0].shape or rows[-1].ndim != 1:
                raise UsageError(f"{path}: line {number}: {COLUMN!r} is not a list of as many numbers as in line 1")
            ids.append(values.get("id", number - 1))
            texts.append(values.get("text"))
    known = None if all(text is None for text in texts) else texts
    return _named(path, ids, len(rows)), _texts(path, known), np.stack(rows) if rows else np.empty((0, 0), np.float32)


def _named(path: Path, ids: list[Any] | None, rows: int) -> Sequence[int] | Sequence[str]:
    """Return the ids of a column: row numbers where they are just those, else text."""
    if ids is None or ids == list(range(rows)):
        return range(rows)
    return [id_text(value, "id", f"{path}: row {row + 1}") for row, value in enumerate(ids)]


def _texts(path: Path, texts: list[Any] | None) -> list[str] | None:
    if texts is not None and not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{path}: 'text' is not text in every row")
    return texts


def _columns(path: Path, kind: str) -> Sequence[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if kind == ".parquet":
            names: list[str] = pq.read_schema(path).names
            return names
        with open_hashed(path) as raw:
            _, line = next(read_lines(raw, str(path)), (0, "{}"))
        return list(json.loads(line))
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return []  # no vector file; whoever reads it as sentences says what is wrong


def _need_column(path: Path, names: Sequence[str]) -> None:
    if COLUMN not in names:
        raise UsageError(f"{path}: no column {COLUMN!r}; columns: {', '.join(names)}")


_READERS: dict[str, Callable[[Path], _Content]] = {
    ".npy": _read_npy,
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
    ".jsonl": _read_jsonl,
}
