"""Vectors as the tensor ``embeddings`` of a .safetensors file, (n, d)."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from promptcli.data.vectors.vector_format import TENSOR, Content, HeadedSink, VectorFormat
from promptcli.errors import CheckFailedError, UsageError

#: Bytes kept for the header; it is padded with spaces, as the format allows.
_HEADER = 256


def _read_safetensors(path: Path) -> Content:
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


def _safetensors_header(rows: int, width: int, dtype: np.dtype[Any]) -> bytes:
    name = f"{dtype.kind.upper()}{8 * dtype.itemsize}"  # F32, F16, I8, U8
    tensor = {"dtype": name, "shape": [rows, width], "data_offsets": [0, dtype.itemsize * rows * width]}
    text = json.dumps({TENSOR: tensor}).encode().ljust(_HEADER)
    return len(text).to_bytes(8, "little") + text


SAFETENSORS = VectorFormat(
    _read_safetensors, lambda file, width, with_text: HeadedSink(file, width, _safetensors_header)
)
