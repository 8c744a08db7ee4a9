"""Encoded sentences, and the stream that makes them: windows of sentences in, their vectors out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np

from promptcli.encoder.prefetching import one_late, prefetch

if TYPE_CHECKING:
    from torch import Tensor

Progress = Callable[[int], None]
#: Vectors supplied by the caller: one or several.
VectorsLike: TypeAlias = "np.ndarray | Tensor | Sequence[float] | Sequence[Sequence[float]]"
Inputs = TypeVar("Inputs")

_TOGETHER = 32_768  # distinct sentences that are encoded together


def no_progress(done: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Encoded:
    """Encoded sentences."""

    vectors: np.ndarray  #: (n, d) float32, row i is sentence i; not normalised
    truncated: np.ndarray  #: (n,) bool: the sentence lost tokens to the longest input
    #: (n,) int64: tokens of the model's input, template and special tokens included
    tokens: np.ndarray

    @classmethod
    def join(cls, parts: Sequence["Encoded"]) -> "Encoded":
        """Return the sentences of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.vectors for part in parts]),
            np.concatenate([part.truncated for part in parts]),
            np.concatenate([part.tokens for part in parts]),
        )

    def take(self, indices: np.ndarray) -> "Encoded":
        """Return the sentences of these indices."""
        if np.array_equal(indices, np.arange(len(self.tokens))):  # none repeats another
            return self
        return Encoded(self.vectors[indices], self.truncated[indices], self.tokens[indices])


class _Chunk(NamedTuple):
    """Distinct sentences of a window, which may have several chunks."""

    sentences: list[str]
    progress: Progress  #: takes the number of inputs newly done, of all passes
    #: (n,) the index of each of the window's sentences among its distinct ones, with its last chunk
    places: np.ndarray | None


def _chunks(windows: Iterable[Sequence[str]], progress: Progress, passes: int) -> Iterator[_Chunk]:
    for window in windows:
        place_of: dict[str, int] = {}
        places = [place_of.setdefault(sentence, len(place_of)) for sentence in window]
        distinct = list(place_of) or ["."]  # which tells the width of no vectors
        share = _share(progress, len(window), len(distinct) * passes)
        for start in range(0, len(distinct), _TOGETHER):
            some = distinct[start : start + _TOGETHER]
            is_last = start + len(some) == len(distinct)
            yield _Chunk(some, share, np.array(places, np.int64) if is_last else None)


def _share(progress: Progress, sentences: int, inputs: int) -> Progress:
    """Return what turns progress in inputs of a window into progress in its sentences."""
    done = 0

    def advance(new: int) -> None:
        nonlocal done
        before = done * sentences // inputs
        done += new
        progress(done * sentences // inputs - before)

    return advance


def encode_stream(
    windows: Iterable[Sequence[str]],
    read: Callable[[Sequence[str]], Inputs],
    begin: Callable[[Inputs, Progress], Callable[[], list[Encoded]]],
    *,
    progress: Progress = no_progress,
    passes: int = 1,
) -> Iterator[list[Encoded]]:
    """Yield the vectors of one window after the other, by each of one or several encoders.

    A window's distinct sentences are encoded once, and many of them in chunks. Another thread reads
    the next chunk. A chunk's last batches are fetched when those of the next one have begun, so
    that a GPU computes while the caller uses the vectors.

    Args:
        windows: Sentences.
        read: Makes the model inputs of distinct sentences.
        begin: Begins to encode inputs; what it returns waits for their vectors.
        progress: Called with the number of sentences newly done.
        passes: How often ``begin`` reports each input.
    """
    chunks = prefetch(lambda chunk: read(chunk.sentences), _chunks(windows, progress, passes))
    begun = ((chunk, begin(inputs, chunk.progress)) for chunk, inputs in chunks)
    parts: list[list[Encoded]] = []
    for chunk, fetch in one_late(begun):
        parts.append(fetch())
        if chunk.places is not None:
            yield [Encoded.join(of_one).take(chunk.places) for of_one in zip(*parts, strict=True)]
            parts = []
