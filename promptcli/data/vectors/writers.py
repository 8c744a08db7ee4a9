"""Writers of vector files, window by window: .npy, .safetensors, .parquet, .jsonl. Knows nothing of encoders or names.

No writer keeps more than one window, and none needs the number of rows in advance.
"""

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from promptcli.data.tables import Record
from promptcli.errors import UsageError

Floats = NDArray[np.float32]

#: Rows formatted as JSON at once: the text of a row is about ten times as long as its numbers.
_JSON_ROWS = 512
#: Bytes kept for the header of a .safetensors file; it is padded with spaces, as the format allows.
_SAFETENSORS_HEADER = 256


class Sink(Protocol):
    """Takes the rows of a vector file in order."""

    def write(self, records: Sequence[Record], vectors: Floats) -> None:
        """Append one window: ``vectors`` (n, d) float32, row i of ``records[i]``."""

    def close(self) -> None:
        """Write what stands at the end; the file is whole after this."""

    def abandon(self) -> None:
        """Let go of the file, which will be thrown away."""


class _Headed:
    """Raw rows behind a header of constant length, which is filled in again at the end."""

    def __init__(self, file: BinaryIO, width: int, header: Callable[[int, int], bytes]) -> None:
        self._file, self._width, self._header, self._rows = file, width, header, 0
        file.write(header(0, width))

    def write(self, records: Sequence[Record], vectors: Floats) -> None:
        self._file.write(np.ascontiguousarray(vectors, dtype="<f4").data)
        self._rows += len(vectors)

    def close(self) -> None:
        self._file.seek(0)
        self._file.write(self._header(self._rows, self._width))

    def abandon(self) -> None:
        pass


class _Jsonl:
    """One object a line: id, text (unless left out), embedding; shortest digits that give the same float32."""

    def __init__(self, file: BinaryIO, with_text: bool) -> None:
        self._file, self._with_text = file, with_text

    def write(self, records: Sequence[Record], vectors: Floats) -> None:
        for start in range(0, len(records), _JSON_ROWS):
            part = slice(start, start + _JSON_ROWS)
            lines = zip(records[part], _numbers(vectors[part]), strict=True)
            self._file.write("".join(self._line(record, numbers) for record, numbers in lines).encode())
        self._file.flush()

    def _line(self, record: Record, numbers: str) -> str:
        known: dict[str, Any] = {"id": record.id, "text": record.text} if self._with_text else {"id": record.id}
        return f'{json.dumps(known, ensure_ascii=False)[:-1]}, "embedding": [{numbers}]}}\n'

    def close(self) -> None:
        self._file.flush()

    def abandon(self) -> None:
        pass


class _Parquet:
    """Columns id (int64 row numbers, or text), text (unless left out), embedding: fixed_size_list<float>[d]."""

    def __init__(self, file: BinaryIO, width: int, with_text: bool) -> None:
        self._file, self._width, self._with_text = file, width, with_text
        self._writer: Any = None

    def write(self, records: Sequence[Record], vectors: Floats) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {"id": pa.array([record.id for record in records])}
        if self._with_text:
            columns["text"] = pa.array([record.text for record in records], pa.string())
        columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self._width)
        table = pa.table(columns)
        if self._writer is None:  # the type of the ids shows in the first window
            self._writer = pq.ParquetWriter(self._file, table.schema, compression="zstd", use_dictionary=False)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def abandon(self) -> None:
        with contextlib.suppress(Exception):  # else the garbage collector closes it, and complains on stderr
            self.close()


#: The writer of each extension.
WRITERS: dict[str, Callable[[BinaryIO, int, bool], Sink]] = {
    ".npy": lambda file, width, with_text: _Headed(file, width, _npy_header),
    ".parquet": _Parquet,
    ".jsonl": lambda file, width, with_text: _Jsonl(file, with_text),
    ".safetensors": lambda file, width, with_text: _Headed(file, width, _safetensors_header),
}

#: The formats that have room for ids and texts.
WITH_IDS = (".parquet", ".jsonl")


def kind_of(path: Path) -> str:
    """Return the format of a vector file by its extension.

    Raises:
        UsageError: an extension that is no format.
    """
    kind = path.suffix.lower()
    if kind not in WRITERS:
        raise UsageError(f"cannot write vectors as {path.name!r}; end its name with one of: {', '.join(WRITERS)}")
    return kind


@contextlib.contextmanager
def open_sink(file: BinaryIO, kind: str, width: int, *, with_text: bool = True) -> Iterator[Sink]:
    """Open a writer on an open binary file; the file is whole when the block has ended well.

    Args:
        file: Where the bytes go; seekable for .npy and .safetensors.
        kind: A key of ``WRITERS``.
        width: Numbers in a vector.
        with_text: Store the sentences where the format has room for them.
    """
    sink = WRITERS[kind](file, width, with_text)
    try:
        yield sink
    except BaseException:
        sink.abandon()
        raise
    sink.close()


def _npy_header(rows: int, width: int) -> bytes:
    # numpy pads the header so that the first axis may grow in place: the length does not depend on ``rows``.
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)})
    return file.getvalue()


def _safetensors_header(rows: int, width: int) -> bytes:
    tensor = {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, 4 * rows * width]}
    text = json.dumps({"embeddings": tensor}).encode().ljust(_SAFETENSORS_HEADER)
    return len(text).to_bytes(8, "little") + text


def _numbers(vectors: Floats) -> list[str]:
    """Return each row's numbers as text; Arrow does it five times as fast as ``json``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, width = vectors.shape
    digits = pc.cast(pa.array(vectors.reshape(-1)), pa.string())
    offsets = pa.array(np.arange(0, rows * width + 1, width, dtype=np.int32))
    joined: list[str] = pc.binary_join(pa.ListArray.from_arrays(offsets, digits), ", ").to_pylist()
    return joined
