"""Embeddings of sentences, and the stream that makes them: windows of sentences in, vectors out."""

import contextvars
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from promptcli.encoder.template import ModelInputs
from promptcli.errors import UsageError
from promptcli.notes import Advance

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
Vectors = TypeVar("Vectors", np.ndarray, "Tensor")
#: Vectors supplied by the caller: one or several.
VectorsLike: TypeAlias = "np.ndarray | Tensor | Sequence[float] | Sequence[Sequence[float]]"

_CHUNK_SENTENCES = 32_768  # distinct sentences that are tokenised, then computed, at once


@dataclass(frozen=True)
class Embeddings:
    """The vectors of n sentences."""

    vectors: np.ndarray  #: (n, d) float32, row i is sentence i; not normalised
    truncated: np.ndarray  #: (n,) bool: the sentence lost tokens to the longest input
    #: (n,) int64: tokens of the model's input, template and special tokens included
    tokens: np.ndarray

    @classmethod
    def join(cls, chunks: Sequence["Embeddings"]) -> "Embeddings":
        """Return the sentences of all chunks, one chunk after the other."""
        if len(chunks) == 1:
            return chunks[0]
        return cls(
            np.concatenate([chunk.vectors for chunk in chunks]),
            np.concatenate([chunk.truncated for chunk in chunks]),
            np.concatenate([chunk.tokens for chunk in chunks]),
        )

    def take(self, indices: np.ndarray) -> "Embeddings":
        """Return the sentences of these indices."""
        if np.array_equal(indices, np.arange(len(self.tokens))):  # no sentence repeats another
            return self
        return Embeddings(self.vectors[indices], self.truncated[indices], self.tokens[indices])


def cut_columns(vectors: Vectors, count: int) -> Vectors:
    """Return the first ``count`` columns of vectors (n, d); refuse a count above d."""
    if count > vectors.shape[1]:
        raise UsageError(
            f"cannot keep {count:,} dimensions; the vectors have only {vectors.shape[1]:,}"
        )
    return vectors[:, :count]


#: Waits for the embeddings of n inputs, and returns them by encoder.
PendingEmbeddings = Callable[[], dict[Any, Embeddings]]


class ForwardPass(Protocol):
    """A pass through a model for one or several encoders."""

    def inputs(self, sentences: Sequence[str]) -> ModelInputs:
        """Return the model inputs of n sentences."""

    def begin(self, inputs: ModelInputs, progress: Advance) -> PendingEmbeddings:
        """Begin to encode n inputs; ``progress`` takes the number of inputs begun."""


def encode_stream(
    windows: Iterable[Sequence[str]], passes: Sequence[ForwardPass], progress: Advance
) -> Iterator[dict[Any, Embeddings]]:
    """Yield the embeddings of one window of sentences after the other, by the encoders of the
    passes.

    A window's distinct sentences are encoded once, in chunks. Three chunks are in work at a time: a
    thread tokenises the next one, the device computes this one, and the caller uses the vectors of
    the one before.
    """

    def tokenize(chunk: _Chunk) -> list[ModelInputs]:
        return [forward.inputs(chunk.sentences) for forward in passes]

    def begin(chunk: _Chunk, inputs: list[ModelInputs]) -> tuple[_Chunk, list[PendingEmbeddings]]:
        pairs = zip(passes, inputs, strict=True)
        return chunk, [forward.begin(of_pass, chunk.progress) for forward, of_pass in pairs]

    chunks_with_inputs = prefetch(tokenize, _chunks(windows, progress, len(passes)))
    chunks_in_work = itertools.starmap(begin, chunks_with_inputs)
    of_window = defaultdict[Any, list[Embeddings]](list)  # the window's chunks so far
    for chunk, pending in delay_by_one(chunks_in_work):
        for wait in pending:
            for encoder, embeddings in wait().items():
                of_window[encoder].append(embeddings)
        if chunk.places is not None:
            yield {
                encoder: Embeddings.join(chunks).take(chunk.places)
                for encoder, chunks in of_window.items()
            }
            of_window.clear()


class _Chunk(NamedTuple):
    """Distinct sentences of a window, all or some of them."""

    sentences: list[str]
    progress: Advance  #: takes the number of new inputs of all passes
    #: (n,) the index of each of the window's sentences among its distinct ones; None before the
    #: window's last chunk
    places: np.ndarray | None


def _chunks(windows: Iterable[Sequence[str]], progress: Advance, passes: int) -> Iterator[_Chunk]:
    for window in windows:
        place_of: dict[str, int] = {}
        places = [place_of.setdefault(sentence, len(place_of)) for sentence in window]
        distinct = list(place_of) or ["."]  # one input shows the width if there are no sentences
        share = _share(progress, len(window), len(distinct) * passes)
        for start in range(0, len(distinct), _CHUNK_SENTENCES):
            sentences = distinct[start : start + _CHUNK_SENTENCES]
            is_last = start + len(sentences) == len(distinct)
            yield _Chunk(sentences, share, np.array(places, np.int64) if is_last else None)


def _share(progress: Advance, sentences: int, inputs: int) -> Advance:
    """Return a function that takes progress in a window's inputs and reports it in sentences."""
    done: float = 0

    def advance(new: float) -> None:
        nonlocal done
        before = done * sentences // inputs
        done += new
        progress(done * sentences // inputs - before)

    return advance


def prefetch(
    work: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[tuple[Item, Result]]:
    """Yield every item with its result; another thread computes the next one meanwhile."""
    remaining = iter(items)
    first = list(itertools.islice(remaining, 2))
    if len(first) < 2:  # there is no second item that a thread could compute meanwhile
        for item in first:
            yield item, work(item)
        return
    with ThreadPoolExecutor(1) as pool:
        try:
            submitted = (
                # a copy of the context, so that its notes reach the same reader
                (item, pool.submit(contextvars.copy_context().run, work, item))
                for item in itertools.chain(first, remaining)
            )
            for item, future in delay_by_one(submitted):
                yield item, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def delay_by_one(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items one step late: each only after its successor has been read."""
    previous: list[Item] = []
    for item in items:
        yield from previous
        previous = [item]
    yield from previous
