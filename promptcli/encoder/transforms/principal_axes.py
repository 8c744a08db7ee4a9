"""Transforms along principal axes: ``whitening``, ``all-but-the-top``, ``spectral``, and ``embed-filter``."""

import re
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.encoder.context import BuildContext
from promptcli.encoder.transforms import Transform
from promptcli.errors import UsageError

NOISE = 1e-10  #: variance, relative to the largest, that float32 rounding alone can make
_CONSTANT = 1e-12  #: variance, relative to the mean square, below which vectors are one vector and its rounding


@dataclass(frozen=True)
class Axes:
    """mu and the eigenvectors of the covariance (n - 1), float64, by falling variance."""

    mean: NDArray[np.float64]  #: (d,)
    basis: NDArray[np.float64]  #: (d, d), one axis a column
    variances: NDArray[np.float64]  #: (d,)


def principal_axes(vectors: NDArray[np.floating], transform: str) -> Axes:
    """Return the principal axes of the vectors (n, d) of n sentences; errors name the transform."""
    n, d = vectors.shape
    if n <= d:
        raise UsageError(f"{transform} of {d} dimensions needs more than {d} sentences to span them; {n} were given")
    wide = vectors.astype(np.float64)
    basis, variances, _ = np.linalg.svd(np.cov(wide, rowvar=False))
    if not variances[0] > _CONSTANT * np.square(wide).mean():
        raise UsageError(f"{transform} is of how vectors differ, and those of the {n} sentences are all the same")
    return Axes(wide.mean(0), one_sign(basis), variances)


def one_sign(basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return axes (d, r) whose largest number is positive: a decomposition leaves the sign to chance."""
    largest = np.take_along_axis(basis, np.abs(basis).argmax(0)[None], axis=0)
    return basis * np.where(largest < 0, -1.0, 1.0)


def _stored(names: tuple[str, str], mean: NDArray[np.float64], matrix: NDArray[np.float64]) -> dict[str, Tensor]:
    arrays = zip(names, (mean, matrix), strict=True)
    return {name: torch.from_numpy(array.astype(np.float32)) for name, array in arrays}


_TOP = TOP_MEAN, TOP_AXES = "all-but-the-top.mean", "all-but-the-top.axes"
_DIMENSIONS_AN_AXIS = 100  #: the paper's rule of thumb: dimensions per axis


class AllButTheTop(Transform):
    """y = x - mu - sum_{i <= k} (u_i . (x - mu)) u_i (algorithm 1); without k, the paper's d / 100."""

    def __init__(self, context: BuildContext) -> None:
        k = context.count("all-but-the-top")
        needed = "transform 'all-but-the-top' is fitted on sentences", "transform all-but-the-top"
        axes = context.fitted(TOP_AXES, *needed, None, None)
        d, most = axes.size(1), min(axes.size(0), axes.size(1) - 1)
        k = max(1, round(d / _DIMENSIONS_AN_AXIS)) if k is None else k
        if k > most:
            raise UsageError(f"transform 'all-but-the-top:{k}' is not allowed; the fitted model has 1 to {most}")
        self.spec = f"all-but-the-top:{k}"
        self._mean = context.fitted(TOP_MEAN, *needed, d).to(context.backbone.device)
        self._axes = axes[:k].contiguous().to(context.backbone.device)
        self.takes = d
        self.stages = [("vector", self._remove)]

    def _remove(self, vectors: Tensor) -> Tensor:
        centred = vectors - self._mean
        return centred - centred @ self._axes.T @ self._axes

    def tensors(self) -> dict[str, Tensor]:
        """Return mu (d,) and the axes taken out (k, d)."""
        return {TOP_MEAN: self._mean.cpu(), TOP_AXES: self._axes.cpu()}


def fit_all_but_the_top(vectors: np.ndarray) -> dict[str, Tensor]:
    """Return mu (d,) and all axes (d, d), one a row, by falling variance, of vectors (n, d); see ``principal_axes``."""
    axes = principal_axes(vectors, "all-but-the-top")
    return _stored(_TOP, axes.mean, axes.basis.T)


_SPECTRAL = SPECTRAL_MEAN, SPECTRAL_AXES = "spectral.mean", "spectral.axes"
#: V of each backbone in use: a search asks for it many times.
_OUTPUT_AXES: WeakKeyDictionary[Backbone, NDArray[np.float64]] = WeakKeyDictionary()


class Spectral(Transform):
    """y = (x - mu) U[:, A:d-B], U by falling variance; without A-B, a quarter of d at either end."""

    def __init__(self, context: BuildContext) -> None:
        needed = "transform 'spectral' is fitted on sentences", "transform spectral"
        axes = context.fitted(SPECTRAL_AXES, *needed, None, None)
        d = self.takes = axes.size(0)
        top, bottom = _ends("spectral", context.argument, d)
        if axes.size(1) == d:
            axes = axes[:, top : d - bottom]
        elif axes.size(1) != d - top - bottom:
            kept = f"the fitted model keeps {axes.size(1)} of {d} axes: fit it again"
            raise UsageError(f"transform 'spectral:{top}-{bottom}' is not allowed; {kept}")
        self.spec = f"spectral:{top}-{bottom}"
        self._mean = context.fitted(SPECTRAL_MEAN, *needed, d).to(context.backbone.device)
        self._axes = axes.contiguous().to(context.backbone.device)
        self.stages = [("vector", lambda vectors: (vectors - self._mean) @ self._axes)]

    def tensors(self) -> dict[str, Tensor]:
        """Return mu (d,) and the axes kept (d, d - A - B)."""
        return {SPECTRAL_MEAN: self._mean.cpu(), SPECTRAL_AXES: self._axes.cpu()}


class EmbedFilter(Transform):
    """y = x V[:, A:d-B], V the right singular vectors of the output embeddings (v, d); without A-B, half of d stays."""

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        if backbone not in _OUTPUT_AXES:
            rows = backbone.head.rows.detach().cpu().double()
            _, basis = torch.linalg.eigh(rows.T @ rows)  # ascending; V of the SVD at a fraction of its cost
            _OUTPUT_AXES[backbone] = one_sign(basis.flip(1).numpy())
        axes = _OUTPUT_AXES[backbone]
        self.takes = len(axes)
        top, bottom = _ends("embed-filter", context.argument, self.takes)
        self.spec = f"embed-filter:{top}-{bottom}"
        columns = torch.from_numpy(axes[:, top : self.takes - bottom].astype(np.float32)).to(backbone.device)
        self.stages = [("vector", lambda vectors: vectors @ columns)]


def _ends(name: str, argument: str | None, d: int) -> tuple[int, int]:
    if argument is None:
        return d // 4, d // 4
    match = re.fullmatch(r"(\d+)-(\d+)", argument, flags=re.ASCII)
    top, bottom = (int(number) for number in match.groups()) if match else (d, d)
    if top + bottom >= d:
        allowed = f"how many of {d} axes to drop at the top and the bottom, fewer than {d} together"
        example = f"{name}:{max(d // 16, 1)}-{d // 4}"
        raise UsageError(f"transform '{name}:{argument}' is not allowed; give {allowed}, e.g. {example}")
    return top, bottom


def fit_spectral(vectors: np.ndarray) -> dict[str, Tensor]:
    """Return mu (d,) and all axes (d, d), one a column, by falling variance, of vectors; see ``principal_axes``."""
    axes = principal_axes(vectors, "spectral")
    return _stored(_SPECTRAL, axes.mean, axes.basis)


_WHITENING = MEAN, MATRIX = "whitening.mean", "whitening.matrix"
_FULL = 0.5  #: the exponent of the paper: unit variance in every direction


class Whitening(Transform):
    """y = (x - mu) W[:, :k], W = U diag(s^-a); the vectors stay unnormalised (cosine divides by the length).

    Sigma = U diag(s) U^T is the covariance. a = 1/2, the default, is the paper's; 1/4 goes half of the way, 0 only
    turns the axes. ``all`` in the place of k keeps all columns.
    """

    ordered = True

    def __init__(self, context: BuildContext) -> None:
        spec = f"whitening:{context.argument}"
        match = re.fullmatch(r"([1-9]\d*|all)(?::(\d*\.?\d+))?", context.argument or "all", flags=re.ASCII)
        exponent = float(match[2] or _FULL) if match else -1.0
        if match is None or exponent > 1:
            allowed = "a whole number, e.g. whitening:200, and perhaps an exponent from 0 to 1, whitening:all:0.25"
            raise UsageError(f"transform {spec!r} is not allowed; give {allowed}")
        needed = "transform 'whitening' is fitted on sentences", "model whitening"
        matrix = context.fitted(MATRIX, *needed, None, None)
        k = None if match[1] == "all" else int(match[1])
        if k is not None and k > matrix.size(1):
            raise UsageError(f"transform {spec!r} is not allowed; the fitted matrix has {matrix.size(1)} columns")
        shown = "" if exponent == _FULL else f":{exponent:g}"
        self.spec = "whitening" + ("" if k is None and not shown else f":{k or 'all'}{shown}")
        self.takes = len(matrix)
        self._mean = context.fitted(MEAN, *needed, self.takes).to(context.backbone.device)
        self._fitted: Tensor = matrix[:, :k].contiguous()  # a = 1/2 for any exponent
        # a column is u s^-1/2 and u has length 1, so its length to the power of 2a - 1 is s^(1/2 - a)
        scaled = self._fitted * torch.linalg.vector_norm(self._fitted, dim=0).pow(2 * exponent - 1)
        whitening = scaled.to(context.backbone.device)
        self.stages = [("vector", lambda vectors: (vectors - self._mean) @ whitening)]

    def tensors(self) -> dict[str, Tensor]:
        """Return mu (d,) and U diag(s^-1/2) (d, k), for any exponent."""
        return {MEAN: self._mean.cpu(), MATRIX: self._fitted.cpu()}


def fit_whitening(vectors: np.ndarray) -> dict[str, Tensor]:
    """Return mu (d,) and W = U diag(s^-1/2) (d, r) of vectors (n, d), float32, columns by falling variance.

    Directions of rounding alone are left out: the mean of LayerNorm outputs loses one, which s^-1/2 would blow up.
    """
    axes = principal_axes(vectors, "whitening")
    varying = axes.variances > axes.variances[0] * NOISE
    return _stored(_WHITENING, axes.mean, axes.basis[:, varying] / np.sqrt(axes.variances[varying]))
