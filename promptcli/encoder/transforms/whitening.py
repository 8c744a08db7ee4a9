"""``whitening`` and ``whitening:k``: BERT-whitening, a linear map to unit covariance (Su et al., 2021)."""

import numpy as np
import torch
from torch import Tensor

from promptcli.encoder.context import BuildContext
from promptcli.encoder.transforms.transform import Transform
from promptcli.errors import UsageError

MEAN, MATRIX = "whitening.mean", "whitening.matrix"
#: Variance, relative to the largest, that float32 rounding alone can make.
_NOISE = 1e-10


class Whitening(Transform):
    """y = (x - mu) W[:, :k]; the vectors stay unnormalised (cosine divides by the length)."""

    def __init__(self, context: BuildContext) -> None:
        k = context.count("whitening")
        matrix = context.fitted(MATRIX, "transform 'whitening' is fitted on sentences", "--recipe whitening")
        if k is not None and k > matrix.size(1):
            raise UsageError(
                f"transform 'whitening:{k}' is not allowed; the fitted matrix has {matrix.size(1)} columns"
            )
        self.spec = "whitening" if k is None else f"whitening:{k}"
        self._mean = context.tensors[MEAN].to(context.backbone.device)
        self._matrix = matrix[:, :k].contiguous().to(context.backbone.device)
        self.stages = [("vector", self._whiten)]

    def _whiten(self, vectors: Tensor) -> Tensor:
        return (vectors - self._mean) @ self._matrix

    def tensors(self) -> dict[str, Tensor]:
        """Return mu (d,) and W (d, k)."""
        return {MEAN: self._mean.cpu(), MATRIX: self._matrix.cpu()}


def fit_whitening(vectors: np.ndarray) -> dict[str, Tensor]:
    """Return mu (d,) and W (d, r) of vectors (n, d), float32.

    Sigma = U diag(s) U^T is the covariance (n - 1); W = U diag(s^-1/2), columns by falling variance. Directions in
    which the vectors vary by rounding only are left out, so r may be below d: the mean of LayerNorm outputs
    loses one direction, which s^-1/2 would blow up to pure noise.

    Raises:
        UsageError: Fewer than d + 1 sentences, which cannot span d dimensions.
    """
    n, d = vectors.shape
    if n <= d:
        raise UsageError(
            f"whitening of {d} dimensions needs more than {d} sentences to span them; {n} were given: give more"
        )
    wide = vectors.astype(np.float64)
    u, s, _ = np.linalg.svd(np.cov(wide, rowvar=False))
    kept = s > s[0] * _NOISE
    return {
        MEAN: torch.from_numpy(wide.mean(0).astype(np.float32)),
        MATRIX: torch.from_numpy((u[:, kept] / np.sqrt(s[kept])).astype(np.float32)),
    }
