"""Principal axes of sentence vectors: what linear transforms are fitted from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptcli.errors import UsageError

#: Variance, relative to the largest, that float32 rounding alone can make.
NOISE = 1e-10
#: Variance, relative to the mean square, below which vectors are one vector and its rounding.
_CONSTANT = 1e-12


@dataclass(frozen=True)
class Axes:
    """mu and the eigenvectors of the covariance (n - 1), float64, by falling variance."""

    mean: NDArray[np.float64]  #: (d,)
    basis: NDArray[np.float64]  #: (d, d), one axis a column
    variances: NDArray[np.float64]  #: (d,)


def principal_axes(vectors: NDArray[np.floating], transform: str) -> Axes:
    """Return the principal axes of vectors (n, d).

    Args:
        vectors: n sentences, one a row.
        transform: What is fitted; named in errors.

    Raises:
        UsageError: Fewer than d + 1 sentences, which cannot span d dimensions; or their vectors are all the same.
    """
    n, d = vectors.shape
    if n <= d:
        raise UsageError(
            f"{transform} of {d} dimensions needs more than {d} sentences to span them; {n} were given: give more"
        )
    wide = vectors.astype(np.float64)
    basis, variances, _ = np.linalg.svd(np.cov(wide, rowvar=False))
    if not variances[0] > _CONSTANT * np.square(wide).mean():
        raise UsageError(
            f"{transform} is fitted on how vectors differ, and those of the {n} sentences are all the same; give a file"
            " of varied sentences"
        )
    return Axes(wide.mean(0), one_sign(basis), variances)


def one_sign(basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return axes (d, r) whose largest number is positive: a decomposition leaves the sign to chance."""
    largest = np.take_along_axis(basis, np.abs(basis).argmax(0)[None], axis=0)
    return basis * np.where(largest < 0, -1.0, 1.0)
