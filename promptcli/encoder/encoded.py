"""Encoded sentences and their progress."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

Progress = Callable[[int], None]
#: Vectors supplied by the caller: one or several.
Vectors = np.ndarray | Tensor | Sequence[float] | Sequence[Sequence[float]]
#: A value of an argument of ``encode``.
Option = str | int | bool | Progress | None


def silent(done: int) -> None:
    """Ignore progress."""


class Share:
    """Turns progress in distinct rows of all groups into progress in sentences."""

    def __init__(self, progress: Progress, sentences: int, rows: int) -> None:
        self._progress, self._sentences, self._rows = progress, sentences, rows
        self._done = 0

    def __call__(self, rows: int) -> None:
        """Take the number of rows newly done."""
        before = self._done * self._sentences // self._rows
        self._done += rows
        self._progress(self._done * self._sentences // self._rows - before)


@dataclass(frozen=True)
class Encoded:
    """Encoded sentences."""

    vectors: np.ndarray  #: (n, d) float32, row i is sentence i; not normalised
    truncated: np.ndarray  #: (n,) bool: the sentence lost tokens to the longest input
    tokens: np.ndarray  #: (n,) int64: tokens of the model's input, template and special tokens included
