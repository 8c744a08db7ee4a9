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
from promptcli.encoder.components import BuildContext, Transform, fit_command
from promptcli.errors import UsageError
from promptcli.grammar import Pair, Spec, decimal_text

NOISE = 1e-10  #: variance, relative to the largest, that float32 rounding alone can produce
#: Variance, relative to the mean square, below which vectors differ only by rounding.
_CONSTANT = 1e-12
Array = NDArray[np.float64]


def fix_signs(basis: Array) -> Array:
    """Return axes (d, r), each with its largest number positive: a decomposition's signs are
    arbitrary.
    """
    largest = np.take_along_axis(basis, np.abs(basis).argmax(0)[None], axis=0)
    return basis * np.where(largest < 0, -1.0, 1.0)


class FittedAxes(Transform):
    """y = (x - mu) M; mu (d,) and the axes from which M is computed are fitted on sentences."""

    name: str
    stored: str  #: the name under which the axes are stored
    side = 0  #: the dimension of the stored axes whose size is d

    def __init__(self, context: BuildContext) -> None:
        prefix = f"{self.name}."
        needed = f"transform {self.name!r}", fit_command(f"transform {self.name}")
        [stored] = context.tensors_of(prefix, {self.stored: [None, None]}, *needed).values()
        self.takes = stored.size(self.side)
        [mean] = context.tensors_of(prefix, {"mean": [self.takes]}, *needed).values()
        self.spec, used_axes, matrix = self.read(context, stored)
        self._tensors = {
            f"{prefix}mean": mean.cpu(),
            f"{prefix}{self.stored}": used_axes.contiguous().cpu(),
        }
        mean = mean.contiguous().to(context.backbone.device)
        matrix = matrix.contiguous().to(context.backbone.device)
        self.stages = [("vector", lambda vectors: (vectors - mean) @ matrix)]

    @abstractmethod
    def read(self, context: BuildContext, stored: Tensor) -> tuple[str, Tensor, Tensor]:
        """Return the complete spec, the stored axes that it uses, and the matrix M."""

    @classmethod
    def fit(cls, vectors: NDArray[np.floating]) -> dict[str, Tensor]:
        """Return mu and the axes, float32, of the vectors (n, d) of n sentences."""
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
        """Return the axes to store, from all axes (d, d), a column each, and their variances (d,),
        the largest first.
        """
        return basis


class AllButTheTop(FittedAxes):
    """y = x - mu - sum_{i <= k} (u_i . (x - mu)) u_i (algorithm 1), axes u (k, d).

    The default of k is the paper's d / 100.
    """

    name = "all-but-the-top"
    stored = "axes"
    side = 1

    def read(self, context: BuildContext, stored: Tensor) -> tuple[str, Tensor, Tensor]:
        stored_axes, d = stored.shape
        k = context.spec["count"] or max(1, round(d / 100))
        max_k = min(stored_axes, d - 1)
        if k > max_k:
            raise UsageError(
                f"transform 'all-but-the-top:{k}' is not allowed; the fitted model has 1 to {max_k}"
            )
        axes = stored[:k]
        projection = torch.eye(d, device=axes.device) - axes.T @ axes
        return f"all-but-the-top:{k}", axes, projection

    @staticmethod
    def of_axes(basis: Array, variances: Array) -> Array:
        return basis.T


class Spectral(FittedAxes):
    """y = (x - mu) U[:, A:d-B], the axes U (d, d) by falling variance.

    The default of A and B is a quarter of d.
    """

    name = "spectral"
    stored = "axes"

    def read(self, context: BuildContext, stored: Tensor) -> tuple[str, Tensor, Tensor]:
        d, columns = stored.shape
        top, bottom = _ends(context.spec, d)
        spec = f"spectral:{top}-{bottom}"
        if columns not in (d, d - top - bottom):
            reason = f"the fitted model keeps {columns} of {d} axes: fit it again"
            raise UsageError(f"transform {spec!r} is not allowed; {reason}")
        axes = stored[:, top : d - bottom] if columns == d else stored
        return spec, axes, axes


_FULL = 0.5  #: the exponent of the paper: unit variance in every direction


class Whitening(FittedAxes):
    """y = (x - mu) W[:, :k], W = U diag(s^-a); Sigma = U diag(s) U^T is the covariance.

    a = 1/2, the default, is the paper's; 1/4 is half of the way, and 0 only rotates the axes.
    ``all`` instead of k keeps all columns. U diag(s^-1/2) (d, k) is stored, for any exponent. The
    vectors are not normalised, since the cosine divides by the length.
    """

    is_prefix_truncatable = True
    name = "whitening"
    stored = "matrix"

    def read(self, context: BuildContext, stored: Tensor) -> tuple[str, Tensor, Tensor]:
        k = context.spec["columns"]
        exponent = context.spec["exponent"]
        if exponent is None:
            exponent = _FULL
        if k is not None and k > stored.size(1):
            raise UsageError(
                f"transform '{context.spec}' is not allowed; the fitted matrix has"
                f" {stored.size(1)} columns"
            )
        columns = stored[:, :k].contiguous()
        # a column is u s^-1/2, and u has length 1: the length to the power of 2a - 1 is s^(1/2 - a)
        matrix = columns * torch.linalg.vector_norm(columns, dim=0).pow(2 * exponent - 1)
        spec = "whitening" if k is None else f"whitening:{k}"
        if exponent != _FULL:
            spec = f"whitening:{k or 'all'}:{decimal_text(exponent)}"
        return spec, columns, matrix

    @staticmethod
    def of_axes(basis: Array, variances: Array) -> Array:
        """Leave out directions with nothing but rounding errors, which s^-1/2 would enlarge.

        After a LayerNorm there is one: the mean of the dimensions is constant.
        """
        varying = variances > variances[0] * NOISE
        whitened: Array = basis[:, varying] / np.sqrt(variances[varying])
        return whitened


#: Backbone -> its V: a search needs it many times.
_OUTPUT_AXES: WeakKeyDictionary[Backbone, Array] = WeakKeyDictionary()


class EmbedFilter(Transform):
    """y = x V[:, A:d-B], V the right singular vectors of the output embeddings (v, d).

    The default of A and B is a quarter of d.
    """

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        if backbone not in _OUTPUT_AXES:
            matrix = backbone.head.output_embeddings.detach().cpu().double()
            # by ascending eigenvalue; this is V of the SVD, at a fraction of the cost
            _, basis = torch.linalg.eigh(matrix.T @ matrix)
            _OUTPUT_AXES[backbone] = fix_signs(basis.flip(1).numpy())
        axes = _OUTPUT_AXES[backbone]
        self.takes = len(axes)
        top, bottom = _ends(context.spec, self.takes)
        self.spec = f"embed-filter:{top}-{bottom}"
        used_axes = axes[:, top : self.takes - bottom].astype(np.float32)
        columns = torch.from_numpy(used_axes).to(backbone.device)
        self.stages = [("vector", lambda vectors: vectors @ columns)]


def _ends(spec: Spec, d: int) -> Pair:
    """Return how many of d axes are dropped at the top and at the bottom."""
    ends: Pair = spec["ends"] or Pair(d // 4, d // 4)
    if sum(ends) >= d:
        meaning = f"how many of {d} axes to drop at the top and the bottom, fewer than {d} together"
        example = f"{spec.name}:{max(d // 16, 1)}-{d // 4}"
        raise UsageError(f"transform '{spec}' is not allowed; give {meaning}, e.g. {example}")
    return ends
