"""Encoded sentences, and the progress of encoding them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Progress = Callable[[int], None]
#: Vectors supplied by the caller: one or several.
VectorsLike: TypeAlias = "np.ndarray | Tensor | Sequence[float] | Sequence[Sequence[float]]"


def no_progress(done: int) -> None:
    """Ignore progress."""


class ProgressShare:
    """Turns progress in distinct rows of all groups into progress in sentences."""

    def __init__(self, progress: Progress, sentences: int, rows: int) -> None:
        self._progress = progress
        self._sentences = sentences
        self._rows = rows
        self._done = 0

    def __call__(self, rows: int) -> None:
        before = self._done * self._sentences // self._rows
        self._done += rows
        self._progress(self._done * self._sentences // self._rows - before)


@dataclass(frozen=True)
class Encoded:
    """Encoded sentences."""

    vectors: np.ndarray  #: (n, d) float32, row i is sentence i; not normalised
    truncated: np.ndarray  #: (n,) bool: the sentence lost tokens to the longest input
    #: (n,) int64: tokens of the model's input, template and special tokens included
    tokens: np.ndarray

    @classmethod
    def empty(cls, width: int) -> "Encoded":
        """Return no sentences, of vectors that wide."""
        return cls(np.empty((0, width), np.float32), np.empty(0, bool), np.empty(0, np.int64))

    @classmethod
    def join(cls, parts: Sequence["Encoded"]) -> "Encoded":
        """Return the sentences of all parts, one part after the other."""
        return cls(
            np.concatenate([part.vectors for part in parts]),
            np.concatenate([part.truncated for part in parts]),
            np.concatenate([part.tokens for part in parts]),
        )

    def take(self, rows: np.ndarray) -> "Encoded":
        """Return the sentences of these rows."""
        if np.array_equal(rows, np.arange(len(self.tokens))):  # none repeats another
            return self
        return Encoded(self.vectors[rows], self.truncated[rows], self.tokens[rows])


def distinct_texts(sentences: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the distinct sentences in order of appearance, and the place (n,) of each sentence
    among them.
    """
    place_of: dict[str, int] = {}
    places = [place_of.setdefault(sentence, len(place_of)) for sentence in sentences]
    return list(place_of), np.array(places, np.int64)
