"""Embeddings of sentences, and the stream that makes them: windows of sentences in, vectors out.

The stream works on three chunks at a time: one thread tokenises a chunk, the device computes the
chunk before it, and the caller uses the vectors of the one before that.
"""

import contextvars
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from promptcli.encoder.template import ModelInputs
from promptcli.notes import Advance

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
#: Vectors supplied by the caller: one or several.
VectorsLike: TypeAlias = "np.ndarray | Tensor | Sequence[float] | Sequence[Sequence[float]]"

_SENTENCES_A_CHUNK = 32_768  # distinct ones


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


#: Waits for the embeddings of the same n inputs, by encoder.
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

    A window's distinct sentences are encoded once, and many of them in chunks. Another thread makes
    the inputs of the next chunk. A chunk's last batches are fetched when those of the next one have
    begun, so that a GPU computes while the caller uses the vectors.
    """
    computed = defaultdict[Any, list[Embeddings]](list)  # the window's chunks so far
    for chunk, pending in delay_by_one(_begin_chunks(windows, passes, progress)):
        for wait in pending:
            for encoder, embeddings in wait().items():
                computed[encoder].append(embeddings)
        if chunk.places is not None:
            yield {
                encoder: Embeddings.join(chunks).take(chunk.places)
                for encoder, chunks in computed.items()
            }
            computed.clear()


def _begin_chunks(
    windows: Iterable[Sequence[str]], passes: Sequence[ForwardPass], progress: Advance
) -> Iterator[tuple["_Chunk", list[PendingEmbeddings]]]:
    """Yield each chunk when its passes have begun, with their embeddings."""
    chunks = _chunks(windows, progress, len(passes))
    tokenized = prefetch(
        lambda chunk: [forward.inputs(chunk.sentences) for forward in passes], chunks
    )
    for chunk, inputs in tokenized:
        begun = zip(passes, inputs, strict=True)
        yield chunk, [forward.begin(of_pass, chunk.progress) for forward, of_pass in begun]


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
        for start in range(0, len(distinct), _SENTENCES_A_CHUNK):
            sentences = distinct[start : start + _SENTENCES_A_CHUNK]
            is_last = start + len(sentences) == len(distinct)
            yield _Chunk(sentences, share, np.array(places, np.int64) if is_last else None)


def _share(progress: Advance, sentences: int, inputs: int) -> Advance:
    """Return a function that converts progress in inputs of a window to progress in its
    sentences.
    """
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
    """Yield every item with its result, computed by another thread while the previous one is in
    use.
    """
    remaining = iter(items)
    first = list(itertools.islice(remaining, 2))
    if len(first) < 2:  # nothing to overlap with
        for item in first:
            yield item, work(item)
        return
    with ThreadPoolExecutor(1) as pool:
        try:
            submitted = (
                # in the context of the messages that it raises
                (item, pool.submit(contextvars.copy_context().run, work, item))
                for item in itertools.chain(first, remaining)
            )
            for item, future in delay_by_one(submitted):
                yield item, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def delay_by_one(items: Iterable[Item]) -> Iterator[Item]:
    """Yield every item once the next one is made."""
    previous: list[Item] = []
    for item in items:
        yield from previous
        previous = [item]
    yield from previous
