"""Embeddings of sentences, and the stream that makes them: windows of sentences in, vectors out."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from promptcli.encoder.prefetching import delay_by_one, prefetch
from promptcli.encoder.template import ModelInputs

if TYPE_CHECKING:
    from torch import Tensor

Progress = Callable[[int], None]
#: Vectors supplied by the caller: one or several.
VectorsLike: TypeAlias = "np.ndarray | Tensor | Sequence[float] | Sequence[Sequence[float]]"

_SENTENCES_A_CHUNK = 32_768  # distinct ones


def no_progress(done: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Embeddings:
    """The vectors of n sentences."""

    vectors: np.ndarray  #: (n, d) float32, row i is sentence i; not normalised
    truncated: np.ndarray  #: (n,) bool: the sentence lost tokens to the longest input
    #: (n,) int64: tokens of the model's input, template and special tokens included
    tokens: np.ndarray

    @classmethod
    def join(cls, parts: Sequence["Embeddings"]) -> "Embeddings":
        """Return the sentences of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.vectors for part in parts]),
            np.concatenate([part.truncated for part in parts]),
            np.concatenate([part.tokens for part in parts]),
        )

    def take(self, indices: np.ndarray) -> "Embeddings":
        """Return the sentences of these indices."""
        if np.array_equal(indices, np.arange(len(self.tokens))):  # none repeats another
            return self
        return Embeddings(self.vectors[indices], self.truncated[indices], self.tokens[indices])


class _Chunk(NamedTuple):
    """Distinct sentences of a window, all or some of them."""

    sentences: list[str]
    progress: Progress  #: takes the number of new inputs of all passes
    #: (n,) the index of each of the window's sentences among its distinct ones, with its last chunk
    places: np.ndarray | None


def _chunks(windows: Iterable[Sequence[str]], progress: Progress, passes: int) -> Iterator[_Chunk]:
    for window in windows:
        place_of: dict[str, int] = {}
        places = [place_of.setdefault(sentence, len(place_of)) for sentence in window]
        distinct = list(place_of) or ["."]  # one input shows the width if there are no sentences
        share = _share(progress, len(window), len(distinct) * passes)
        for start in range(0, len(distinct), _SENTENCES_A_CHUNK):
            some = distinct[start : start + _SENTENCES_A_CHUNK]
            is_last = start + len(some) == len(distinct)
            yield _Chunk(some, share, np.array(places, np.int64) if is_last else None)


def _share(progress: Progress, sentences: int, inputs: int) -> Progress:
    """Return a function that converts progress in inputs of a window to progress in its
    sentences.
    """
    done = 0

    def advance(new: int) -> None:
        nonlocal done
        before = done * sentences // inputs
        done += new
        progress(done * sentences // inputs - before)

    return advance


class ForwardPass(Protocol):
    """A pass through a model for one or several encoders."""

    def inputs(self, sentences: Sequence[str]) -> ModelInputs:
        """Return the model inputs of n sentences."""

    def begin(self, inputs: ModelInputs, progress: Progress) -> Callable[[], dict[Any, Embeddings]]:
        """Begin to encode n inputs; the returned function waits for their vectors, by encoder.

        ``progress`` takes the number of inputs begun.
        """


def encode_stream(
    windows: Iterable[Sequence[str]], passes: Sequence[ForwardPass], progress: Progress
) -> Iterator[dict[Any, Embeddings]]:
    """Yield the embeddings of one window of sentences after the other, by the encoders of the
    passes.

    A window's distinct sentences are encoded once, and many of them in chunks. Another thread makes
    the inputs of the next chunk. A chunk's last batches are fetched when those of the next one have
    begun, so that a GPU computes while the caller uses the vectors.
    """
    chunks = _chunks(windows, progress, len(passes))
    tokenized = prefetch(lambda chunk: [each.inputs(chunk.sentences) for each in passes], chunks)
    begun = (
        (chunk, [each.begin(one, chunk.progress) for each, one in zip(passes, inputs, strict=True)])
        for chunk, inputs in tokenized
    )
    parts = defaultdict[Any, list[Embeddings]](list)
    for chunk, fetches in delay_by_one(begun):
        for fetch in fetches:
            for encoder, embeddings in fetch().items():
                parts[encoder].append(embeddings)
        if chunk.places is not None:
            yield {
                encoder: Embeddings.join(of_chunks).take(chunk.places)
                for encoder, of_chunks in parts.items()
            }
            parts.clear()
