"""Vectors as JSON lines with ``id``, ``text`` and ``embedding``."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from promptcli.data.streams import open_hashed, read_lines
from promptcli.data.tables import Record
from promptcli.data.vectors.vector_format import COLUMN, Content, Floats, VectorFormat, row_ids, row_texts
from promptcli.errors import CheckFailedError, UsageError

#: Rows formatted as JSON at once: the text of a row is about ten times as long as its numbers.
_ROWS = 512


def _read_jsonl(path: Path) -> Content:
    rows: list[Floats] = []
    ids: list[Any] = []
    texts: list[Any] = []
    with open_hashed(path) as raw:
        for number, line in read_lines(raw, str(path)):
            try:
                values = json.loads(line)
                with np.errstate(over="ignore"):
                    rows.append(np.asarray(values[COLUMN], dtype=np.float32))
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                raise CheckFailedError(f"{path}: line {number}: no object with {COLUMN!r}: {error!r}") from None
            if rows[-1].shape != rows[0].shape or rows[-1].ndim != 1:
                raise UsageError(f"{path}: line {number}: {COLUMN!r} is not a list of as many numbers as in line 1")
            ids.append(values.get("id", number - 1))
            texts.append(values.get("text"))
    known = None if all(text is None for text in texts) else texts
    return (
        row_ids(path, ids, len(rows)),
        row_texts(path, known),
        np.stack(rows) if rows else np.empty((0, 0), np.float32),
    )


def _columns(path: Path) -> Sequence[str]:
    with open_hashed(path) as raw:
        _, line = next(read_lines(raw, str(path)), (0, "{}"))
    try:
        return list(json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return []  # no vector file; whoever reads it as sentences says what is wrong


class _Jsonl:
    """One object a line: id, text (unless left out), embedding; shortest digits that give the same number."""

    def __init__(self, file: BinaryIO, width: int, with_text: bool) -> None:
        self._file, self._with_text = file, with_text

    def write(self, records: Sequence[Record], vectors: NDArray[Any]) -> None:
        for start in range(0, len(records), _ROWS):
            part = slice(start, start + _ROWS)
            lines = zip(records[part], _numbers(vectors[part]), strict=True)
            self._file.write("".join(self._line(record, numbers) for record, numbers in lines).encode())
        self._file.flush()

    def _line(self, record: Record, numbers: str) -> str:
        known: dict[str, Any] = {"id": record.id, "text": record.text} if self._with_text else {"id": record.id}
        return f'{json.dumps(known, ensure_ascii=False)[:-1]}, "{COLUMN}": [{numbers}]}}\n'

    def close(self) -> None:
        self._file.flush()

    def abandon(self) -> None:
        pass


def _numbers(vectors: NDArray[Any]) -> list[str]:
    """Return each row's numbers as text; Arrow does it five times as fast as ``json``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, width = vectors.shape
    if vectors.dtype == np.float16:  # Arrow's digits are those of float32, three times as many
        digits = _halves().take(pa.array(vectors.reshape(-1).view(np.uint16)))
    else:
        digits = pc.cast(pa.array(vectors.reshape(-1)), pa.string())
    offsets = pa.array(np.arange(0, rows * width + 1, width, dtype=np.int32))
    joined: list[str] = pc.binary_join(pa.ListArray.from_arrays(offsets, digits), ", ").to_pylist()
    return joined


@functools.cache
def _halves() -> Any:
    """Return the digits of all numbers of float16, by their bits."""
    import pyarrow as pa

    return pa.array(np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(str).tolist())


JSONL = VectorFormat(_read_jsonl, _Jsonl, _columns)
