"""Vectors as a NumPy array: .npy, (n, d); memory-mapped when read."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.vector_format import Content, HeadedSink, VectorFormat
from promptcli.errors import CheckFailedError


def read_array(path: Path) -> NDArray[Any]:
    """Return the array of an .npy file, memory-mapped.

    Raises:
        CheckFailedError: It is none, or damaged.
    """
    try:
        with np.errstate(all="ignore"):  # sizes in the header may be beyond every number
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # by what its header says: ValueError, EOFError, OverflowError, MemoryError, ...
        raise CheckFailedError(f"{path}: not a whole .npy file of numbers: {error}") from None
    return array


def _read_npy(path: Path) -> Content:
    matrix = read_array(path)
    return range(len(matrix) if matrix.ndim else 0), None, matrix


def _npy_header(rows: int, width: int, dtype: np.dtype[Any]) -> bytes:
    # numpy pads the header so that the first axis may grow in place: the length does not depend on ``rows``.
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": (rows, width)})
    return file.getvalue()


NPY = VectorFormat(_read_npy, lambda file, width, with_text: HeadedSink(file, width, _npy_header))
