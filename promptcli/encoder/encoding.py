"""The engine: windows of sentences to vectors, by groups of equal model input, in batches, and in
order again.

The vectors of a sentence do not depend on the batch that it is in, on the other sentences or on the
other encoders.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, Needs, SharedTokens
from promptcli.backbones.token_rows import TokenRows
from promptcli.encoder.averaging import average_rows
from promptcli.encoder.batching import (
    TOKEN_BUDGET,
    BatchSplitter,
    begin_fetch,
    plan_batches,
    to_device,
    token_budget,
)
from promptcli.encoder.denoising import Biases
from promptcli.encoder.encoded import Encoded, Progress, ProgressShare, distinct_texts, no_progress
from promptcli.encoder.pooling import Pooling
from promptcli.encoder.prefetching import prefetch
from promptcli.encoder.streams import (
    STREAM_TOKENS,
    STREAMS,
    Graph,
    check_not_forked,
    map_in_threads,
)
from promptcli.encoder.template import Inputs
from promptcli.grammar import Spec
from promptcli.notes import note

# distinct sentences whose batches are planned together; the next ones are tokenised in the meantime
_WINDOW = 32_768
# batches that a GPU computes or has computed while the host goes on; the last may have few rows
_IN_FLIGHT = 2
_AVERAGED_AT_ONCE = 16_384  # inputs averaged at once if no layer has to run

Fetch = Callable[[], dict[int, np.ndarray]]  #: waits for vectors from a device, by encoder number
FetchEncoded = Callable[[], dict[int, Encoded]]  #: the same of a whole window
#: Rows of each batch, and the parts of it that memory held.
Batches = Iterator[tuple[np.ndarray, list[tuple[np.ndarray, Fetch]]]]


class OnePrompt(Protocol):
    """An encoder of one prompt, as the engine sees it."""

    pooling: Pooling
    backbone: Backbone
    denoising: Spec
    graph: Graph | None

    @property
    def biases(self) -> Biases: ...
    @property
    def width(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def input_key(self) -> tuple[object, ...]: ...
    def inputs(self, sentences: Sequence[str]) -> Inputs: ...
    def batch(self, rows: TokenRows) -> Batch: ...
    def averaged_rows(self) -> Tensor | None: ...
    def shared_tokens(self, needs: Needs, lengths: np.ndarray) -> SharedTokens | None: ...
    def sentence_lengths(self, lengths: np.ndarray) -> np.ndarray: ...
    def apply_transforms(self, vectors: Tensor, lengths: np.ndarray) -> Tensor: ...
    def encode_batch(
        self,
        rows: TokenRows,
        peers: Sequence[Any],
        needs: Needs,
        shared: SharedTokens | None = None,
    ) -> list[Tensor]: ...


class Encodes(Protocol):
    """An encoder, as the engine sees it."""

    @property
    def parts(self) -> Sequence[OnePrompt]:
        """The encoders of single prompts whose vectors make its own."""

    def combine(self, encoded: Sequence[Encoded]) -> Encoded:
        """Return its vectors from those of its parts."""


class Encoding:
    """Encodes with several encoders, with one forward pass wherever the model input is the same.

    An encoder of several prompts is computed prompt by prompt, and combines their vectors.
    """

    def __init__(self, encoders: Sequence[Encodes], *, most: int | None = None) -> None:
        """Plan the passes.

        Args:
            encoders: Each gets its own vectors.
            most: Most sentences in a forward pass; by default a budget of tokens decides.
        """
        check_not_forked()
        self._encoders = encoders
        self._parts: list[OnePrompt] = []
        for encoder in encoders:
            self._parts += encoder.parts
        by_input: dict[tuple[object, ...], dict[int, OnePrompt]] = {}
        for number, part in enumerate(self._parts):
            by_input.setdefault(part.input_key, {})[number] = part
        self._groups = [_Group(members, most) for members in by_input.values()]

    def windows(
        self, windows: Iterable[Sequence[str]], progress: Progress = no_progress
    ) -> Iterator[list[Encoded]]:
        """Yield each encoder's vectors of one window after the other.

        Another thread reads the next one. A window's last batches are fetched when those of the
        next one have begun, so that a GPU computes while the caller uses the vectors.
        """
        pending: list[Callable[[], list[Encoded]]] = []
        for window, (places, inputs) in prefetch(self._read, windows):
            rows = sum(len(of_group.rows) for of_group in inputs)
            share = ProgressShare(progress, len(window), rows)
            fetches = [
                group.encode(of_group, share)
                for group, of_group in zip(self._groups, inputs, strict=True)
            ]
            pending.append(functools.partial(self._combine, fetches, places))
            if len(pending) > 1:
                yield pending.pop(0)()
        for combine in pending:
            yield combine()
        for part in self._parts:
            for line in part.pooling.weights.notes():
                note(line)

    def _combine(self, fetches: Sequence[FetchEncoded], places: np.ndarray) -> list[Encoded]:
        """Return each encoder's vectors of a window, from those of its groups."""
        encoded: dict[int, Encoded] = {}
        for fetch in fetches:
            encoded |= fetch()
        of_parts = iter([encoded[number] for number in range(len(self._parts))])
        results = []
        for encoder in self._encoders:
            combined = encoder.combine(list(itertools.islice(of_parts, len(encoder.parts))))
            results.append(combined.take(places))
        return results

    def _read(self, window: Sequence[str]) -> tuple[np.ndarray, list[Inputs]]:
        """Return each sentence's place among the distinct ones, and each group's inputs of
        these.
        """
        distinct, places = distinct_texts(window)
        return places, [group.inputs(distinct) for group in self._groups]


def encode_windows(
    encoders: Sequence[Encodes],
    windows: Iterable[Sequence[str]],
    *,
    progress: Progress = no_progress,
    most: int | None = None,
) -> Iterator[list[Encoded]]:
    """Yield each encoder's vectors of one window after the other; see ``Encoding``."""
    return Encoding(encoders, most=most).windows(windows, progress)


def encode_together(
    encoders: Sequence[Encodes],
    sentences: Sequence[str],
    *,
    progress: Progress = no_progress,
    most: int | None = None,
) -> list[Encoded]:
    """Return each encoder's vectors of n sentences, each distinct sentence encoded once.

    See ``Encoding``.

    A batch has at most ``most`` sentences and fills the token budget otherwise. ``progress`` adds
    up to n.
    """
    distinct, places = distinct_texts(sentences)
    windows = [distinct[start : start + _WINDOW] for start in range(0, len(distinct), _WINDOW)]
    if not windows:
        windows = [[]]
    share = ProgressShare(progress, len(sentences), len(distinct))
    by_window = list(encode_windows(encoders, windows, progress=share, most=most))
    results = []
    for number in range(len(encoders)):
        whole = Encoded.join([encoded[number] for encoded in by_window])
        results.append(whole.take(places))
    return results


class _Group:
    """Encoders of one prompt whose model input is the same: one forward pass serves them all."""

    def __init__(self, encoders: Mapping[int, OnePrompt], most: int | None) -> None:
        self._encoders = encoders
        self._most = most
        self._first = next(iter(encoders.values()))  # shared tokens are read from it
        self._averaging: dict[int, Tensor] = {}  # the tables whose rows are averaged: no layer runs
        self._deep: dict[int, OnePrompt] = {}
        self._needs = Needs()
        for number, encoder in encoders.items():
            table = encoder.averaged_rows()
            if table is not None:
                self._averaging[number] = table
            else:
                self._deep[number] = encoder
        if self._deep:
            needs = [encoder.pooling.needs for encoder in self._deep.values()]
            self._needs = functools.reduce(operator.or_, needs)

    def inputs(self, sentences: Sequence[str]) -> Inputs:
        return self._first.inputs(sentences)

    def encode(self, inputs: Inputs, progress: Progress) -> FetchEncoded:
        """Begin to compute the vectors by encoder number; the function returned waits for them.

        ``progress`` takes the number of inputs newly begun.
        """
        rows = inputs.rows
        if not len(rows):
            empty = {
                number: Encoded.empty(encoder.width) for number, encoder in self._encoders.items()
            }
            return lambda: empty
        averages: dict[int, np.ndarray] = {}
        fetch_deep: Fetch = dict  # nothing
        with torch.inference_mode():
            for number, table in self._averaging.items():
                averages[number] = self._averages(number, rows, table)
            if self._deep:
                fetch_deep = self._in_batches(rows, progress)
            else:
                progress(len(rows))

        def fetch() -> dict[int, Encoded]:
            vectors = averages | fetch_deep()
            return {
                number: Encoded(vectors[number], inputs.truncated, rows.lengths)
                for number in self._encoders
            }

        return fetch

    def _averages(self, number: int, rows: TokenRows, table: Tensor) -> np.ndarray:
        """Return the vectors (n, d) float32 of an encoder that averages rows, without batches or
        padding.
        """
        encoder = self._encoders[number]
        counted = encoder.pooling.weights.averaged or slice(None)
        parts = []
        for start in range(0, len(rows), _AVERAGED_AT_ONCE):
            some = rows[start : start + _AVERAGED_AT_ONCE]
            means = average_rows(
                some.within(counted), functools.partial(_rows_of, table), len(table)
            )
            vectors = encoder.apply_transforms(to_device(means, table.device), some.lengths)
            parts.append(vectors.cpu().numpy())
        return np.concatenate(parts)

    def _in_batches(self, rows: TokenRows, progress: Progress) -> Fetch:
        """Begin to compute the vectors (n, d) by encoder number: sort the rows by length, encode
        them in batches, and put the vectors in the rows' order.
        """
        first = self._first
        lengths = rows.lengths
        shared = None
        if first.graph is None:
            shared = first.shared_tokens(self._needs, lengths)
            self._prepare_biases(lengths)
        streams, budget = self._streams_and_budget()
        computed_lengths = lengths
        if shared is not None:
            computed_lengths = lengths - shared.length
        batches = list(plan_batches(computed_lengths, token_budget=budget, most=self._most))
        splitter = BatchSplitter(lengths, first.device)
        compute = functools.partial(self._compute, rows, shared)
        computed = map_in_threads(functools.partial(splitter.run, compute), batches, most=streams)
        return _gather(computed, len(rows), progress)

    def _streams_and_budget(self) -> tuple[int, int]:
        """Return how many batches are computed at a time, and the tokens of each."""
        backbone = self._first.backbone
        if self._first.graph or backbone.reentrant:
            return STREAMS, STREAM_TOKENS
        if backbone.causal and backbone.device.type == "cpu":  # the threads share the batch
            return 1, min(TOKEN_BUDGET, STREAM_TOKENS * torch.get_num_threads())
        return 1, token_budget(backbone.device, backbone.token_rows.size(1))

    def _prepare_biases(self, lengths: np.ndarray) -> None:
        """Compute the biases of all sentence lengths at once, so that no order of batches shows in
        them.
        """
        for encoder in self._deep.values():
            if encoder.denoising.name != "none":
                encoder.biases.at(np.unique(encoder.sentence_lengths(lengths)))

    def _compute(self, rows: TokenRows, shared: SharedTokens | None, numbers: np.ndarray) -> Fetch:
        """Begin to compute the vectors of the rows of these numbers."""
        first = self._first
        ids = rows.take(numbers)
        if first.graph is not None:
            by_graph = dict.fromkeys(self._deep, first.graph.run(first.batch(ids)))
            return lambda: by_graph
        vectors = first.encode_batch(ids, list(self._deep.values()), self._needs, shared)
        results = [of_one.float() for of_one in vectors]
        return begin_fetch(dict(zip(self._deep, results, strict=True)))


def _rows_of(table: Tensor, numbers: np.ndarray) -> np.ndarray:
    """Return some rows of a table as float32 in host memory."""
    return table[to_device(numbers, table.device)].float().cpu().numpy()


def _gather(batches: Batches, count: int, progress: Progress) -> Fetch:
    """Begin to gather the vectors (count, d) by encoder number.

    Batches are fetched late, while a GPU computes the next; the last ones by the function returned.
    """
    vectors: dict[int, np.ndarray] = {}
    pending: list[list[tuple[np.ndarray, Fetch]]] = []

    def fetch_until(left: int) -> dict[int, np.ndarray]:
        while len(pending) > left:
            for rows, fetch in pending.pop(0):
                for number, values in fetch().items():
                    if number not in vectors:
                        vectors[number] = np.empty((count, values.shape[1]), dtype=np.float32)
                    vectors[number][rows] = values
        return vectors

    left = count
    for numbers, parts in batches:
        pending.append(parts)
        fetch_until(_IN_FLIGHT)
        new = min(len(numbers), left)  # the last batch may repeat its rows
        left -= new
        progress(new)
    return functools.partial(fetch_until, 0)
