"""The batches of a pre-training run: they follow from plan and corpus alone, so that any step can be found again."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.vocabulary import CLS, MASK, PAD, SEP, SPECIALS
from promptcli.pretraining.corpus import Corpus
from promptcli.pretraining.plan import MASK_MIXES, Plan

Ids = Sequence[int] | np.ndarray

_POOL = 16_384  # chunks sorted by length together: little padding, and still a random draw
#: What a generator draws, so that no two kinds of draw share random numbers.
_CUT, _ORDER, _MASKS, _PLACES = range(4)


@dataclass(frozen=True)
class Step:
    """One step of the run."""

    number: int  #: from 0
    seen: int  #: tokens of the steps before it
    spans: np.ndarray  #: (n, 2) where its chunks begin and end in the corpus
    dropout: float  #: in force

    @property
    def tokens(self) -> int:
        """Its own tokens, padding not counted."""
        return int((self.spans[:, 1] - self.spans[:, 0] + 2).sum())


@dataclass(frozen=True)
class Batch:
    """Inputs and what is to be predicted."""

    ids: np.ndarray  #: (n, t) int64, padded at the end
    real: np.ndarray  #: (n, t) bool, not padding
    begins: np.ndarray  #: (n,) int64, the position of each chunk's [CLS] in the position table
    places: np.ndarray  #: (k,) int64, where something is predicted, numbered in the flattened ids
    gold: np.ndarray  #: (k,) int64, the right ids

    def split(self, count: int) -> "list[Batch]":
        """Return the batch as ``count`` batches of equally many rows, about; fewer where one would predict nothing."""
        n, t = self.ids.shape
        bounds = [n * index // count for index in range(count + 1)]
        ends = np.searchsorted(self.places, [bound * t for bound in bounds])
        return [
            Batch(
                self.ids[first:last],
                self.real[first:last],
                self.begins[first:last],
                self.places[begin:end] - first * t,
                self.gold[begin:end],
            )
            for (first, last), (begin, end) in zip(itertools.pairwise(bounds), itertools.pairwise(ends), strict=True)
            if end > begin
        ]

    def tensors(self, device: str | torch.device) -> tuple[Tensor, ...]:
        """Return the fields in their order, on a device."""
        fields = (self.ids, self.real, self.begins, self.places, self.gold)
        return tuple(torch.from_numpy(field).to(device) for field in fields)


def steps(plan: Plan, corpus: Corpus) -> Iterator[Step]:
    """Yield the steps of a run, first to last."""
    number = seen = 0
    for index, phase in enumerate(plan.phases):
        for spans in chunks_of_phase(plan, corpus, index):
            if seen >= phase.until * plan.tokens:
                break
            step = Step(number, seen, spans, phase.dropout)
            yield step
            number, seen = number + 1, seen + step.tokens


def chunks_of_phase(plan: Plan, corpus: Corpus, index: int) -> Iterator[np.ndarray]:
    """Yield the spans of one batch of a phase after the other, (n, 2) each, without end."""
    for epoch in itertools.count():
        yield from _epoch(plan, corpus, index, epoch)


def _epoch(plan: Plan, corpus: Corpus, phase: int, epoch: int) -> Iterator[np.ndarray]:
    """Yield the batches of one pass over the corpus, each of chunks of about one length."""
    lengths = plan.phases[phase].lengths
    spans = corpus.chunks(lengths, plan.positions - 2, np.random.default_rng([plan.seed, _CUT, phase, epoch]))
    rng = np.random.default_rng([plan.seed, _ORDER, phase, epoch])
    spans = spans[rng.permutation(len(spans))]
    for start in range(0, len(spans), _POOL):
        pool = spans[start : start + _POOL]
        pool = pool[np.argsort(pool[:, 1] - pool[:, 0], kind="stable")]
        batches = list(_cut(pool, plan.batch_tokens))
        for index in rng.permutation(len(batches)):
            yield batches[index]


def _cut(pool: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Yield stretches of a pool sorted by length that hold at most ``batch_tokens``, padding included."""
    longest = (pool[:, 1] - pool[:, 0] + 2).tolist()
    start = 0
    for row in range(len(pool)):
        if (row - start + 1) * longest[row] > batch_tokens and row > start:
            yield pool[start:row]
            start = row
    yield pool[start:]


def mask(step: Step, plan: Plan, corpus: Corpus) -> Batch:
    """Return a step's inputs: a share of the real tokens is to be predicted, at least one.

    Of these, shares by the plan's mix stand there as [MASK], as random tokens, and as they are (BERT).
    """
    rng = np.random.default_rng([plan.seed, _MASKS, step.number])
    ids, real = inputs([corpus.tokens[start:end] for start, end in step.spans.tolist()])
    flat = ids.ravel()
    words = np.flatnonzero(flat >= len(SPECIALS))
    if not len(words):  # a line of unknown characters only
        words = np.flatnonzero(flat != PAD)
    chosen = rng.random(len(words)) < plan.masking
    if not chosen.any():
        chosen[rng.integers(len(words))] = True
    places = words[chosen]
    gold = flat[places].copy()
    kind = rng.random(len(places))
    hidden, other, _ = MASK_MIXES[plan.mask_mix]
    random = (kind >= hidden) & (kind < hidden + other)
    flat[places[kind < hidden]] = MASK
    flat[places[random]] = rng.integers(len(SPECIALS), plan.vocab_size, int(random.sum()))
    return Batch(ids, real, _begins(step, plan, real.sum(axis=1)), places, gold)


def predict_next(step: Step, plan: Plan, corpus: Corpus) -> Batch:
    """Return a step's inputs: every real token but the last of its row predicts the one after it, [SEP] included."""
    return next_tokens([corpus.tokens[start:end] for start, end in step.spans.tolist()])


def next_tokens(chunks: Sequence[Ids]) -> Batch:
    """Return chunks of ids without specials as a batch in which every token predicts the one after it."""
    ids, real = inputs(chunks)
    rows, columns = np.nonzero(real[:, 1:])
    return Batch(ids, real, np.zeros(len(ids), np.int64), rows * ids.shape[1] + columns, ids[rows, columns + 1])


def inputs(chunks: Sequence[Ids]) -> tuple[np.ndarray, np.ndarray]:
    """Return chunks between [CLS] and [SEP], padded at the end, (n, t), and what of it is real, (n, t) bool."""
    lengths = np.array([len(chunk) + 2 for chunk in chunks])
    ids = np.full((len(chunks), int(lengths.max())), PAD, np.int64)
    ids[:, 0] = CLS
    for row, chunk in zip(ids, chunks, strict=True):
        row[1 : len(chunk) + 1] = chunk
        row[len(chunk) + 1] = SEP
    return ids, np.arange(ids.shape[1]) < lengths[:, None]


def _begins(step: Step, plan: Plan, lengths: np.ndarray) -> np.ndarray:
    """Return where each chunk begins in the position table, (n,): at 0, or anywhere it fits.

    So every position is trained whatever the chunks' lengths, and nothing comes to depend on its absolute place.
    """
    rng = np.random.default_rng([plan.seed, _PLACES, step.number])
    anywhere = rng.integers(0, plan.positions - lengths + 1)
    return np.where(rng.random(len(lengths)) < plan.at_start, 0, anywhere)
