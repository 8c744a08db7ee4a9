"""``whitening``, ``whitening:k`` and ``whitening:k:a``: BERT-whitening (Su et al., 2021), with an exponent."""

import re

import numpy as np
import torch
from torch import Tensor

from promptcli.encoder.context import BuildContext
from promptcli.encoder.transforms.axes import NOISE, principal_axes
from promptcli.encoder.transforms.transform import Transform
from promptcli.errors import UsageError

MEAN, MATRIX = "whitening.mean", "whitening.matrix"
#: The exponent of the paper: unit variance in every direction.
_FULL = 0.5


class Whitening(Transform):
    """y = (x - mu) W[:, :k], W = U diag(s^-a); the vectors stay unnormalised (cosine divides by the length).

    Sigma = U diag(s) U^T is the covariance. a = 1/2, the default, is the paper's; 1/4 goes half of the way, 0 only
    turns the axes. ``all`` in the place of k keeps all columns.
    """

    ordered = True

    def __init__(self, context: BuildContext) -> None:
        given = f"whitening:{context.argument}"
        found = re.fullmatch(r"([1-9]\d*|all)(?::(\d*\.?\d+))?", context.argument or "all", flags=re.ASCII)
        exponent = float(found[2] or _FULL) if found else -1.0
        if found is None or exponent > 1:
            raise UsageError(
                f"transform {given!r} is not allowed; give a whole number, e.g. whitening:200, and an exponent from 0"
                " to 1 if you like, whitening:200:0.25 or whitening:all:0.25"
            )
        about = "transform 'whitening' is fitted on sentences", "--recipe whitening"
        matrix = context.fitted(MATRIX, *about, None, None)
        k = None if found[1] == "all" else int(found[1])
        if k is not None and k > matrix.size(1):
            raise UsageError(f"transform {given!r} is not allowed; the fitted matrix has {matrix.size(1)} columns")
        shown = "" if exponent == _FULL else f":{exponent:g}"
        self.spec = "whitening" + ("" if k is None and not shown else f":{k or 'all'}{shown}")
        self.takes = len(matrix)
        self._mean = context.fitted(MEAN, *about, self.takes).to(context.backbone.device)
        self._fitted: Tensor = matrix[:, :k].contiguous()  # a = 1/2, whatever the exponent
        # a column is u s^-1/2 and u has length 1, so its length to the power of 2a - 1 is s^(1/2 - a)
        scaled = self._fitted * torch.linalg.vector_norm(self._fitted, dim=0).pow(2 * exponent - 1)
        self._matrix = scaled.to(context.backbone.device)
        self.stages = [("vector", self._whiten)]

    def _whiten(self, vectors: Tensor) -> Tensor:
        whitened: Tensor = (vectors - self._mean) @ self._matrix
        return whitened

    def tensors(self) -> dict[str, Tensor]:
        """Return mu (d,) and U diag(s^-1/2) (d, k), whatever the exponent."""
        return {MEAN: self._mean.cpu(), MATRIX: self._fitted.cpu()}


def fit_whitening(vectors: np.ndarray) -> dict[str, Tensor]:
    """Return mu (d,) and W = U diag(s^-1/2) (d, r) of vectors (n, d), float32, columns by falling variance.

    Directions in which the vectors vary by rounding only are left out, so r may be below d: the mean of LayerNorm
    outputs loses one direction, which s^-1/2 would blow up to pure noise.

    Raises:
        UsageError: See ``principal_axes``.
    """
    axes = principal_axes(vectors, "whitening")
    kept = axes.variances > axes.variances[0] * NOISE
    return {
        MEAN: torch.from_numpy(axes.mean.astype(np.float32)),
        MATRIX: torch.from_numpy((axes.basis[:, kept] / np.sqrt(axes.variances[kept])).astype(np.float32)),
    }
