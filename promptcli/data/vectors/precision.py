"""Quantization of vectors to half floats, 8-bit buckets or single bits, and its loss.

Buckets and bits are those of sentence-transformers' ``quantize_embeddings``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.errors import PromptcliError, UsageError, look_up, short_repr

Floats = NDArray[np.float32]
#: Rows on which a loss is measured.
SAMPLE_ROWS = 2000
#: Neighbours of a row that are compared, and the difference below which cosines are ties.
_NEIGHBOURS = 10
_TIE = 1e-6


def as_floats(numbers: NDArray[Any]) -> Floats:
    """Return numbers as float32; numbers beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32, copy=False)


def _step_sizes(ranges: Floats) -> Floats:
    steps = (ranges[1] - ranges[0]) / 255
    return np.where(steps == 0, np.float32(1), steps)


def _to_halves(vectors: Floats, ranges: Floats) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        halves = vectors.astype(np.float16)
    if np.isinf(halves).any():
        raise UsageError(
            f"numbers up to {np.abs(vectors).max():.3g} do not fit float16; give float32 or int8"
        )
    return halves


def _to_buckets(vectors: Floats, ranges: Floats) -> NDArray[Any]:
    numbers = np.clip(np.floor((vectors - ranges[0]) / _step_sizes(ranges)), 0, 255)
    buckets: NDArray[Any] = (numbers - 128).astype(np.int8)
    return buckets


def _from_buckets(stored: NDArray[Any], ranges: Floats) -> Floats:
    buckets = stored.astype(np.float32) + 128.5
    middles: Floats = np.minimum(ranges[0] + buckets * _step_sizes(ranges), ranges[1])
    return middles


def _to_bits(vectors: Floats, ranges: Floats) -> NDArray[Any]:
    return np.packbits(vectors > 0, axis=1)


def _from_bits(stored: NDArray[Any], ranges: Floats) -> Floats:
    bits = np.unpackbits(stored, axis=1, count=ranges.shape[1])
    return bits.astype(np.float32) * 2 - 1


#: Flipping this bit of a byte of ``_to_bits``, read as int8, subtracts 128 from the byte.
_SIGN = np.int8(-128)


@dataclass(frozen=True)
class Precision:
    """How numbers are stored and read back.

    Ranges (2, d) are the minimum and maximum of each dimension.
    """

    dtype: type[np.generic]  #: of the stored numbers
    store: Callable[[Floats, Floats], NDArray[Any]]  #: takes vectors (n, d) and ranges
    restore: Callable[[NDArray[Any], Floats], Floats]  #: takes stored numbers and ranges
    needs_ranges: bool = False  #: whether the stored numbers cannot be read without the ranges
    #: whether a byte holds eight numbers: (n, ceil(d / 8)), zeros at the end
    is_packed: bool = False


PRECISIONS: dict[str, Precision] = {
    "float32": Precision(np.float32, lambda vectors, _: vectors, lambda stored, _: stored),
    "float16": Precision(np.float16, _to_halves, lambda stored, _: stored.astype(np.float32)),
    "int8": Precision(np.int8, _to_buckets, _from_buckets, needs_ranges=True),
    "binary": Precision(
        np.int8,
        lambda vectors, ranges: _to_bits(vectors, ranges).view(np.int8) ^ _SIGN,
        lambda stored, ranges: _from_bits((stored ^ _SIGN).view(np.uint8), ranges),
        is_packed=True,
    ),
    "ubinary": Precision(np.uint8, _to_bits, _from_bits, is_packed=True),
}


@dataclass(frozen=True)
class QuantizedVectors:
    """n vectors of d dimensions in fewer bytes."""

    #: (n, d) float32, float16 or int8; packed bits (n, ceil(d / 8)) int8 or uint8.
    matrix: NDArray[Any]
    precision: str
    #: (2, d) float32: minimum and maximum of each dimension; ``int8`` is read by them.
    ranges: Floats

    def restore(self) -> Floats:
        """Return vectors (n, d) float32: the middle of each ``int8`` bucket, -1 or 1 for a bit."""
        return PRECISIONS[self.precision].restore(self.matrix, self.ranges)


def quantize(vectors: Floats, precision: str, ranges: Floats | None = None) -> QuantizedVectors:
    """Return vectors (n, d) in fewer bytes, the same bytes as sentence-transformers'.

    ``int8`` cuts the range of each dimension into 255 equal steps, and stores the number of steps
    below the value, less 128. ``binary`` (int8) and ``ubinary`` (uint8) store whether a value is
    above 0, eight values a byte.

    Args:
        vectors: (n, d) float32.
        precision: ``float32``, ``float16``, ``int8``, ``binary`` or ``ubinary``.
        ranges: (2, d) of other vectors, to give queries the buckets of the rows; values outside are
            clipped. Default: the ranges of ``vectors``.

    Raises:
        UsageError: Another precision or shape, or numbers that are not finite or too large for
            float16.

    Example:
        >>> import numpy as np, promptcli as pc
        >>> vectors = np.array([[0.0, 2.0], [1.0, -2.0]], dtype=np.float32)
        >>> pc.quantize(vectors, "int8").matrix.tolist()
        [[-128, 127], [127, -128]]
        >>> pc.quantize(vectors, "binary").restore().tolist()
        [[-1.0, 1.0], [1.0, -1.0]]
    """
    store = look_up("precision", precision, PRECISIONS).store
    if hasattr(vectors, "detach"):  # torch tensors, possibly on a GPU or with gradients
        vectors = vectors.detach().float().cpu().numpy()
    if np.asarray(vectors).dtype.kind not in "fiub":
        raise UsageError("vectors must be numbers of shape (n, d), such as `encode` returns")
    with np.errstate(over="ignore"):
        vectors = np.asarray(vectors, dtype=np.float32)
    if not np.isfinite(vectors).all():
        raise UsageError(
            "must be finite numbers: any other would spoil its column", parameter="vectors"
        )
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise UsageError(f"vectors of shape {vectors.shape} are not allowed; give (n, d)")
    if ranges is None:
        ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])
    bounds = np.asarray(ranges, dtype=np.float32)
    if bounds.shape != (2, vectors.shape[1]):
        raise UsageError(
            f"ranges of shape {bounds.shape} are not those of vectors of shape {vectors.shape}"
        )
    return QuantizedVectors(store(vectors, bounds), precision, bounds)


@dataclass(frozen=True)
class Loss:
    """The difference between restored and original vectors, on some rows of the first window."""

    rows: int
    #: mean share of a row's 10 nearest other rows, by cosine, that are still among the 10 nearest
    recall_at_10: float


def neighbour_recall(before: Floats, after: Floats) -> float:
    """Return the mean share of the 10 nearest other rows, by cosine, that a change of n vectors
    (n, d) keeps.
    """
    before, after = unit(before), unit(after)
    count = min(_NEIGHBOURS, len(before) - 1)
    true, restored = (rows @ rows.T for rows in (before, after))
    for cosines in (true, restored):  # a row is not its own neighbour
        np.fill_diagonal(cosines, -np.inf)
    last = np.partition(true, -count, axis=1)[:, -count, None]
    nearest = np.argpartition(restored, -count, axis=1)[:, -count:]
    is_kept = np.take_along_axis(true, nearest, axis=1) >= last - _TIE
    return float(is_kept.mean())


def check_finite(vectors: Floats, names: Sequence[Any], noun: str = "text") -> None:
    """Refuse vectors (n, d) if one is not finite.

    The n names are the texts of the vectors, or what ``noun`` says.

    Raises:
        PromptcliError: The message names the first such vector.
    """
    infinite = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(infinite):
        raise PromptcliError(
            f"the vector of {noun} {short_repr(names[infinite[0]])} is not finite; try dtype"
            " float32, or check the model"
        )


def unit(vectors: Floats) -> Floats:
    """Return vectors (n, d) scaled to length 1; a zero vector stays zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        extreme = ~((lengths[:, 0] > 1e-15) & (lengths[:, 0] < 1e15))
        # squares of very large or very small numbers are infinite, zero, or have few digits
        if extreme.any():
            largest = np.abs(vectors[extreme]).max(axis=1, keepdims=True)
            vectors = vectors.copy()
            vectors[extreme] /= np.where(largest > 0, largest, 1)
            lengths[extreme] = np.linalg.norm(vectors[extreme], axis=1, keepdims=True)
        scaled: Floats = np.divide(vectors, np.where(lengths > 0, lengths, 1), dtype=np.float32)
    return scaled
