"""The batches of a pre-training run: they follow from plan and corpus alone, so that any step can be found again."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from promptcli.backbones.vocabulary import CLS, MASK, PAD, SEP, SPECIALS
from promptcli.pretraining.corpus import Corpus
from promptcli.pretraining.plan import Plan

_POOL = 16_384  # chunks sorted by length together: little padding, and still a random draw
#: What a generator draws, so that no two kinds of draw share random numbers.
_CUT, _ORDER, _MASKS = range(3)


@dataclass(frozen=True)
class Step:
    """One step of the run.

    Attributes:
        number: From 0.
        seen: Tokens of the steps before it.
        tokens: Its own, padding not counted.
        spans: (n, 2) where its chunks begin and end in the corpus.
        dropout: In force.
    """

    number: int
    seen: int
    tokens: int
    spans: np.ndarray
    dropout: float


@dataclass(frozen=True)
class MaskedBatch:
    """Masked inputs.

    Attributes:
        ids: (n, t) int64, padded at the end.
        real: (n, t) bool, not padding.
        places: (k,) int64, the tokens to predict, numbered in the flattened ids.
        gold: (k,) int64, what stood there.
    """

    ids: np.ndarray
    real: np.ndarray
    places: np.ndarray
    gold: np.ndarray


def steps(plan: Plan, corpus: Corpus) -> Iterator[Step]:
    """Yield the steps of a run, first to last."""
    number = seen = 0
    for index, phase in enumerate(plan.phases):
        epoch = 0
        while seen < phase.until * plan.tokens:
            for spans in _epoch(plan, corpus, index, epoch):
                tokens = int((spans[:, 1] - spans[:, 0] + 2).sum())
                yield Step(number, seen, tokens, spans, phase.dropout)
                number, seen = number + 1, seen + tokens
                if seen >= phase.until * plan.tokens:
                    break
            epoch += 1


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


def mask(step: Step, plan: Plan, corpus: Corpus) -> MaskedBatch:
    """Return a step's inputs: a share of the real tokens is to be predicted, at least one.

    Of these 80% stand there as [MASK], 10% as random tokens, 10% as they are (BERT).
    """
    rng = np.random.default_rng([plan.seed, _MASKS, step.number])
    lengths = step.spans[:, 1] - step.spans[:, 0]
    ids = np.full((len(lengths), int(lengths.max()) + 2), PAD, np.int64)
    ids[:, 0] = CLS
    for row, (start, end) in zip(ids, step.spans.tolist(), strict=True):
        row[1 : end - start + 1] = corpus.tokens[start:end]
        row[end - start + 1] = SEP
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
    random = (kind >= 0.8) & (kind < 0.9)
    flat[places[kind < 0.8]] = MASK
    flat[places[random]] = rng.integers(len(SPECIALS), plan.vocab_size, int(random.sum()))
    return MaskedBatch(ids, np.arange(ids.shape[1]) < lengths[:, None] + 2, places, gold)
