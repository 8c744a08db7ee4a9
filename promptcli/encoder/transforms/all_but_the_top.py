"""``all-but-the-top:k``: the mean and the first k principal axes are taken out of the vectors (Mu, Viswanath, 2018)."""

import numpy as np
import torch
from torch import Tensor

from promptcli.encoder.context import BuildContext
from promptcli.encoder.transforms.axes import principal_axes
from promptcli.encoder.transforms.transform import Transform
from promptcli.errors import UsageError

MEAN, AXES = "all-but-the-top.mean", "all-but-the-top.axes"
#: The paper's rule of thumb: one axis for so many dimensions.
_DIMENSIONS_AN_AXIS = 100


class AllButTheTop(Transform):
    """y = x - mu - sum_{i <= k} (u_i . (x - mu)) u_i (algorithm 1); without k, the paper's d / 100."""

    def __init__(self, context: BuildContext) -> None:
        k = context.count("all-but-the-top")
        about = "transform 'all-but-the-top' is fitted on sentences", "--transform all-but-the-top"
        axes = context.fitted(AXES, *about, None, None)
        d, most = axes.size(1), min(axes.size(0), axes.size(1) - 1)
        k = max(1, round(d / _DIMENSIONS_AN_AXIS)) if k is None else k
        if k > most:
            raise UsageError(f"transform 'all-but-the-top:{k}' is not allowed; the fitted model has 1 to {most}")
        self.spec = f"all-but-the-top:{k}"
        self._mean = context.fitted(MEAN, *about, d).to(context.backbone.device)
        self._axes = axes[:k].contiguous().to(context.backbone.device)
        self.takes = d
        self.stages = [("vector", self._remove)]

    def _remove(self, vectors: Tensor) -> Tensor:
        centred = vectors - self._mean
        return centred - centred @ self._axes.T @ self._axes

    def tensors(self) -> dict[str, Tensor]:
        """Return mu (d,) and the axes taken out (k, d)."""
        return {MEAN: self._mean.cpu(), AXES: self._axes.cpu()}


def fit_all_but_the_top(vectors: np.ndarray) -> dict[str, Tensor]:
    """Return mu (d,) and all axes (d, d), one a row, by falling variance, of vectors (n, d).

    Raises:
        UsageError: See ``principal_axes``.
    """
    axes = principal_axes(vectors, "all-but-the-top")
    return {
        MEAN: torch.from_numpy(axes.mean.astype(np.float32)),
        AXES: torch.from_numpy(axes.basis.T.astype(np.float32)),
    }
