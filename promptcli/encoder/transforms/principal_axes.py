"""Transforms along principal axes: ``whitening``, ``all-but-the-top``, ``spectral``, and
``embed-filter``.
"""

from abc import abstractmethod
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.encoder.components import BuildContext, Transform, by_fit
from promptcli.errors import UsageError
from promptcli.grammar import Pair, Spec, decimal_text

NOISE = 1e-10  #: variance, relative to the largest, that float32 rounding alone can produce
#: variance, relative to the mean square, below which vectors differ only by rounding
_CONSTANT = 1e-12
Array = NDArray[np.float64]


def fix_signs(basis: Array) -> Array:
    """Return axes (d, r) with a positive largest number: a decomposition's signs are arbitrary."""
    largest = np.take_along_axis(basis, np.abs(basis).argmax(0)[None], axis=0)
    return basis * np.where(largest < 0, -1.0, 1.0)


class FittedAxes(Transform):
    """y = (x - mu) M; mu (d,) and the numbers that M is made of are fitted on sentences and stored
    by name.
    """

    name: str
    stored: str  #: the name of the other numbers
    side = 0  #: which side of them is d

    def __init__(self, context: BuildContext) -> None:
        prefix = f"{self.name}."
        needed = f"transform {self.name!r}", by_fit(f"transform {self.name}")
        [stored] = context.tensors_of(prefix, {self.stored: [None, None]}, *needed).values()
        self.takes = stored.size(self.side)
        [mean] = context.tensors_of(prefix, {"mean": [self.takes]}, *needed).values()
        self.spec, kept, matrix = self.read(context, stored)
        self._tensors = {
            f"{prefix}mean": mean.cpu(),
            f"{prefix}{self.stored}": kept.contiguous().cpu(),
        }
        mean = mean.contiguous().to(context.backbone.device)
        matrix = matrix.contiguous().to(context.backbone.device)
        self.stages = [("vector", lambda vectors: (vectors - mean) @ matrix)]

    @abstractmethod
    def read(self, context: BuildContext, stored: Tensor) -> tuple[str, Tensor, Tensor]:
        """Return the spec in full, the numbers that it uses, and M."""

    @classmethod
    def fit(cls, vectors: NDArray[np.floating]) -> dict[str, Tensor]:
        """Return mu and the other numbers, float32, of the vectors (n, d) of n sentences."""
        n, d = vectors.shape
        if n <= d:
            raise UsageError(
                f"{cls.name} of {d} dimensions needs more than {d} sentences to span them; {n} were"
                " given"
            )
        wide = vectors.astype(np.float64)
        basis, variances, _ = np.linalg.svd(np.cov(wide, rowvar=False))
        if not variances[0] > _CONSTANT * np.square(wide).mean():
            raise UsageError(
                f"{cls.name} needs vectors that differ; those of the {n} sentences are all the same"
            )
        axes = cls.of_axes(fix_signs(basis), variances)
        numbers = {"mean": wide.mean(0), cls.stored: axes}
        return {
            f"{cls.name}.{key}": torch.from_numpy(values.astype(np.float32))
            for key, values in numbers.items()
        }

    @staticmethod
    def of_axes(basis: Array, variances: Array) -> Array:
        """Return the numbers to store, from all axes (d, d), one a column, by falling variance
        (d,).
        """
        return basis


class AllButTheTop(FittedAxes):
    """y = x - mu - sum_{i <= k} (u_i . (x - mu)) u_i (algorithm 1), axes (k, d).

    Without k, it is the paper's d / 100.
    """

    name = "all-but-the-top"
    stored = "axes"
    side = 1

    def read(self, context: BuildContext, stored: Tensor) -> tuple[str, Tensor, Tensor]:
        stored_axes, d = stored.shape
        k = context.spec["count"] or max(1, round(d / 100))
        most = min(stored_axes, d - 1)
        if k > most:
            raise UsageError(
                f"transform 'all-but-the-top:{k}' is not allowed; the fitted model has 1 to {most}"
            )
        axes = stored[:k]
        projection = torch.eye(d, device=axes.device) - axes.T @ axes
        return f"all-but-the-top:{k}", axes, projection

    @staticmethod
    def of_axes(basis: Array, variances: Array) -> Array:
        return basis.T


class Spectral(FittedAxes):
    """y = (x - mu) U[:, A:d-B], U (d, d) by falling variance.

    Without A-B, both are a quarter of d.
    """

    name = "spectral"
    stored = "axes"

    def read(self, context: BuildContext, stored: Tensor) -> tuple[str, Tensor, Tensor]:
        d, columns = stored.shape
        top, bottom = _ends(context.spec, d)
        spec = f"spectral:{top}-{bottom}"
        if columns not in (d, d - top - bottom):
            kept = f"the fitted model keeps {columns} of {d} axes: fit it again"
            raise UsageError(f"transform {spec!r} is not allowed; {kept}")
        axes = stored[:, top : d - bottom] if columns == d else stored
        return spec, axes, axes


_FULL = 0.5  #: the exponent of the paper: unit variance in every direction


class Whitening(FittedAxes):
    """y = (x - mu) W[:, :k], W = U diag(s^-a).

    The vectors stay unnormalised (cosine divides by the length).

    Sigma = U diag(s) U^T is the covariance. a = 1/2, the default, is the paper's; 1/4 goes half of
    the way, 0 only rotates the axes. ``all`` instead of k keeps all columns. Stored are U
    diag(s^-1/2) (d, k), for any exponent.
    """

    is_prefix_truncatable = True
    name = "whitening"
    stored = "matrix"

    def read(self, context: BuildContext, stored: Tensor) -> tuple[str, Tensor, Tensor]:
        k = context.spec["columns"]
        given = context.spec["exponent"]
        exponent = _FULL if given is None else given
        if k is not None and k > stored.size(1):
            raise UsageError(
                f"transform '{context.spec}' is not allowed; the fitted matrix has"
                f" {stored.size(1)} columns"
            )
        kept = stored[:, :k].contiguous()
        # a column is u s^-1/2 and u has length 1, so its length to the power of 2a - 1 is s^(1/2 -
        # a)
        matrix = kept * torch.linalg.vector_norm(kept, dim=0).pow(2 * exponent - 1)
        spec = "whitening" if k is None else f"whitening:{k}"
        if exponent != _FULL:
            spec = f"whitening:{k or 'all'}:{decimal_text(exponent)}"
        return spec, kept, matrix

    @staticmethod
    def of_axes(basis: Array, variances: Array) -> Array:
        """Leave out directions that hold rounding errors alone: s^-1/2 would blow them up.

        LayerNorm leaves such a direction, the mean.
        """
        varying = variances > variances[0] * NOISE
        whitened: Array = basis[:, varying] / np.sqrt(variances[varying])
        return whitened


#: V of each backbone in use: a search needs it many times.
_OUTPUT_AXES: WeakKeyDictionary[Backbone, Array] = WeakKeyDictionary()


class EmbedFilter(Transform):
    """y = x V[:, A:d-B], V the right singular vectors of the output embeddings (v, d).

    Without A-B, half of d stays.
    """

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        if backbone not in _OUTPUT_AXES:
            matrix = backbone.head.output_embeddings.detach().cpu().double()
            # ascending; V of the SVD at a fraction of its cost
            _, basis = torch.linalg.eigh(matrix.T @ matrix)
            _OUTPUT_AXES[backbone] = fix_signs(basis.flip(1).numpy())
        axes = _OUTPUT_AXES[backbone]
        self.takes = len(axes)
        top, bottom = _ends(context.spec, self.takes)
        self.spec = f"embed-filter:{top}-{bottom}"
        kept = axes[:, top : self.takes - bottom].astype(np.float32)
        columns = torch.from_numpy(kept).to(backbone.device)
        self.stages = [("vector", lambda vectors: vectors @ columns)]


def _ends(spec: Spec, d: int) -> Pair:
    """Return how many of d axes are dropped at the top and at the bottom."""
    ends: Pair = spec["ends"] or Pair(d // 4, d // 4)
    if sum(ends) >= d:
        allowed = f"how many of {d} axes to drop at the top and the bottom, fewer than {d} together"
        example = f"{spec.name}:{max(d // 16, 1)}-{d // 4}"
        raise UsageError(f"transform '{spec}' is not allowed; give {allowed}, e.g. {example}")
    return ends
