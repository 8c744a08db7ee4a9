"""``spectral:A-B`` and ``embed-filter:A-B``: of d axes the first A and the last B are dropped, d - A - B numbers stay.

The axes are the principal ones of sentence vectors, fitted; or those of the model's own output embeddings (EmbedFilter,
arXiv 2606.07502), for which nothing is fitted.
"""

import re
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.encoder.context import BuildContext
from promptcli.encoder.transforms.axes import one_sign, principal_axes
from promptcli.encoder.transforms.transform import Transform
from promptcli.errors import UsageError

MEAN, AXES = "spectral.mean", "spectral.axes"
#: V of each backbone in use: a search asks for it many times.
_OUTPUT_AXES: WeakKeyDictionary[Backbone, NDArray[np.float64]] = WeakKeyDictionary()


class Spectral(Transform):
    """y = (x - mu) U[:, A:d-B], U by falling variance; without A-B, a quarter of d at either end."""

    def __init__(self, context: BuildContext) -> None:
        about = "transform 'spectral' is fitted on sentences", "--transform spectral"
        axes = context.fitted(AXES, *about, None, None)
        d = self.takes = axes.size(0)
        top, bottom = _ends("spectral", context.argument, d)
        if axes.size(1) == d:
            axes = axes[:, top : d - bottom]
        elif axes.size(1) != d - top - bottom:
            raise UsageError(
                f"transform 'spectral:{top}-{bottom}' is not allowed; the fitted model keeps {axes.size(1)} of {d}"
                " axes: fit it again"
            )
        self.spec = f"spectral:{top}-{bottom}"
        self._mean = context.fitted(MEAN, *about, d).to(context.backbone.device)
        self._axes = axes.contiguous().to(context.backbone.device)
        self.stages = [("vector", self._keep)]

    def _keep(self, vectors: Tensor) -> Tensor:
        return (vectors - self._mean) @ self._axes

    def tensors(self) -> dict[str, Tensor]:
        """Return mu (d,) and the axes kept (d, d - A - B)."""
        return {MEAN: self._mean.cpu(), AXES: self._axes.cpu()}


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
        kept = axes[:, top : self.takes - bottom].astype(np.float32)
        self._axes = torch.from_numpy(kept).to(backbone.device)
        self.stages = [("vector", self._keep)]

    def _keep(self, vectors: Tensor) -> Tensor:
        return vectors @ self._axes


def _ends(name: str, argument: str | None, d: int) -> tuple[int, int]:
    """Return A and B."""
    if argument is None:
        return d // 4, d // 4
    found = re.fullmatch(r"(\d+)-(\d+)", argument, flags=re.ASCII)
    top, bottom = (int(number) for number in found.groups()) if found else (d, d)
    if top + bottom >= d:
        raise UsageError(
            f"transform '{name}:{argument}' is not allowed; give how many of {d} axes to drop at the top and at the"
            f" bottom, fewer than {d} together, e.g. {name}:{max(d // 16, 1)}-{d // 4}"
        )
    return top, bottom


def fit_spectral(vectors: np.ndarray) -> dict[str, Tensor]:
    """Return mu (d,) and all axes (d, d), one a column, by falling variance, of vectors (n, d).

    Raises:
        UsageError: See ``principal_axes``.
    """
    axes = principal_axes(vectors, "spectral")
    return {
        MEAN: torch.from_numpy(axes.mean.astype(np.float32)),
        AXES: torch.from_numpy(axes.basis.astype(np.float32)),
    }
