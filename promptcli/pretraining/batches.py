"""The batches of a pre-training run: they follow from plan and corpus alone, so any step can be repeated.

Bag-of-words prediction: the [MASK] of a template predicts the content words of its sentence, after Ma et al. 2024
(arXiv 2401.11248), in which [CLS] does; so a small model learns what templates ask for.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from promptcli.backbones.vocabulary import CLS, MASK, PAD, SEP, SPECIALS, Vocabulary
from promptcli.encoder.batching import to_device
from promptcli.encoder.prompts.named import templates_folder
from promptcli.errors import UsageError
from promptcli.pretraining.corpus import Corpus, CorpusFile, Template
from promptcli.pretraining.plan import BAGS, Plan

LONGEST_LINE = 62  # tokens of a line in a template; the rest is cut
_MASKED, _RANDOM = 0.8, 0.1  # of the tokens to predict (BERT); the others stay
_POOL = 16_384  # chunks sorted by length together: little padding, and still a random draw
#: Seeds of the kinds of draws, so that no two share random numbers.
_CUT, _ORDER, _MASKS, _PLACES, _KINDS, _TEMPLATES = range(6)
_LINES = 1_000  #: seeds lines in templates like a further phase
DEFAULT_TEMPLATES = templates_folder() / "pretraining.txt"  #: none of the papers' own, to be tried
_LONGEST = 32  # tokens of a template


@dataclass(frozen=True)
class Step:
    """One step of the run."""

    number: int  #: from 0
    seen: int  #: tokens of the steps before it
    spans: np.ndarray  #: (n, 2) begin and end of its chunks in the corpus
    dropout: float  #: in force
    templated: bool = False  #: its spans are lines, put into templates

    @property
    def tokens(self) -> int:
        """Tokens of the step, without padding and the words of templates."""
        return int((self.spans[:, 1] - self.spans[:, 0] + 2).sum())


@dataclass(frozen=True)
class Bags:
    """The words that the masks of templates predict: several pieces for each mask, with weights that sum to 1."""

    places: np.ndarray  #: (b,) int64, of the masks, numbered in the flattened ids
    owners: np.ndarray  #: (e,) int64, each word's mask: a row of ``places``
    words: np.ndarray  #: (e,) int64, ids
    weights: np.ndarray  #: (e,) float32

    def between(self, start: int, stop: int) -> "Bags | None":
        """Return the bags at the places from ``start`` to ``stop``, counted from there; None without any."""
        first, last = np.searchsorted(self.places, [start, stop])
        begin, end = np.searchsorted(self.owners, [first, last])
        words, weights = self.words[begin:end], self.weights[begin:end]
        return (
            Bags(self.places[first:last] - start, self.owners[begin:end] - first, words, weights)
            if len(words)
            else None
        )


@dataclass(frozen=True)
class Batch:
    """Inputs and predictions."""

    ids: np.ndarray  #: (n, t) int64, padded at the end
    real: np.ndarray  #: (n, t) bool, not padding
    begins: np.ndarray  #: (n,) int64, the position of each chunk's [CLS] in the position table
    places: np.ndarray  #: (k,) int64, of the predictions, numbered in the flattened ids
    gold: np.ndarray  #: (k,) int64, the right ids
    bags: Bags | None = None  #: of sentences in templates

    def split(self, count: int) -> "list[Batch]":
        """Return the batch as ``count`` batches of about the same size; fewer if one would predict nothing."""
        n, t = self.ids.shape
        parts = []
        for first, last in itertools.pairwise(n * index // count for index in range(count + 1)):
            begin, end = np.searchsorted(self.places, [first * t, last * t])
            bags = None if self.bags is None else self.bags.between(first * t, last * t)
            if end > begin or bags is not None:
                rows, predicted = slice(first, last), slice(begin, end)
                places, gold = self.places[predicted] - first * t, self.gold[predicted]
                parts.append(Batch(self.ids[rows], self.real[rows], self.begins[rows], places, gold, bags))
        return parts

    def tensors(self, device: str | torch.device) -> tuple[Any, ...]:
        """Return the fields in their order, on a device, those of the bags last; ``real`` is None without padding."""
        fields = [self.ids, None if self.real.all() else self.real, self.begins, self.places, self.gold]
        if self.bags is not None:
            fields += [self.bags.places, self.bags.owners, self.bags.words, self.bags.weights]
        return tuple(None if field is None else to_device(field, torch.device(device)) for field in fields)


def steps(plan: Plan, corpus: Corpus) -> Iterator[Step]:
    """Yield the steps of a run, first to last."""
    number = seen = 0
    lines = lines_for_templates(plan, corpus) if plan.objective == BAGS else None
    kinds = np.random.default_rng([plan.seed, _KINDS])
    for index, phase in enumerate(plan.phases):
        chunks = chunks_of_phase(plan, corpus, index)
        while seen < phase.until * plan.tokens:
            templated = lines is not None and kinds.random() < plan.templated
            step = Step(number, seen, next(lines if lines and templated else chunks), phase.dropout, templated)
            yield step
            number, seen = number + 1, seen + step.tokens


def chunks_of_phase(plan: Plan, corpus: Corpus, index: int) -> Iterator[np.ndarray]:
    """Yield the spans of each batch of a phase, (n, 2), without end."""
    lengths = plan.phases[index].lengths
    for epoch in itertools.count():
        rng = np.random.default_rng([plan.seed, _CUT, index, epoch])
        spans = corpus.chunks(lengths, plan.positions - 2, rng)
        yield from _epoch(plan, spans, np.random.default_rng([plan.seed, _ORDER, index, epoch]))


def lines_for_templates(plan: Plan, corpus: Corpus) -> Iterator[np.ndarray]:
    """Yield the spans of each batch of lines, (n, 2), without end."""
    extra = max(len(before) + len(after) for before, after in corpus.templates)
    spans = corpus.lines(min(LONGEST_LINE, plan.positions - 2 - extra))
    for epoch in itertools.count():
        yield from _epoch(plan, spans, np.random.default_rng([plan.seed, _ORDER, _LINES, epoch]), extra)


def _epoch(plan: Plan, spans: np.ndarray, rng: np.random.Generator, extra: int = 0) -> Iterator[np.ndarray]:
    """Yield the batches of one pass over spans, of similar lengths; every span gets ``extra`` more tokens."""
    spans = spans[rng.permutation(len(spans))]
    for start in range(0, len(spans), _POOL):
        pool = spans[start : start + _POOL]
        pool = pool[np.argsort(pool[:, 1] - pool[:, 0], kind="stable")]
        batches = list(_cut(pool, plan.batch_tokens, extra))
        for index in rng.permutation(len(batches)):
            yield batches[index]


def _cut(pool: np.ndarray, batch_tokens: int, extra: int) -> Iterator[np.ndarray]:
    """Yield slices of a pool sorted by length that hold at most ``batch_tokens``, padding included."""
    longest = (pool[:, 1] - pool[:, 0] + 2 + extra).tolist()
    start = 0
    for row in range(len(pool)):
        if (row - start + 1) * longest[row] > batch_tokens and row > start:
            yield pool[start:row]
            start = row
    yield pool[start:]


def mask(step: Step, plan: Plan, corpus: Corpus) -> Batch:
    """Return a step's inputs: a share of the real tokens is predicted, at least one."""
    ids, real = inputs([corpus.tokens[start:end] for start, end in step.spans.tolist()])
    words = np.flatnonzero(ids.ravel() >= len(SPECIALS))
    if not len(words):  # a line of unknown characters only
        words = np.flatnonzero(ids.ravel() != PAD)
    places, gold = hide(ids, words, step, plan)
    return Batch(ids, real, begins(step, plan, real.sum(axis=1)), places, gold)


def hide(ids: np.ndarray, words: np.ndarray, step: Step, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Hide a share of the places ``words`` of the flattened ids, in place; return places and right ids, (k,) each."""
    rng = np.random.default_rng([plan.seed, _MASKS, step.number])
    flat = ids.ravel()
    chosen = rng.random(len(words)) < plan.masking
    if not chosen.any():
        chosen[rng.integers(len(words))] = True
    places = words[chosen]
    gold = flat[places].copy()
    kind = rng.random(len(places))
    random = (kind >= _MASKED) & (kind < _MASKED + _RANDOM)
    flat[places[kind < _MASKED]] = MASK
    flat[places[random]] = rng.integers(len(SPECIALS), plan.vocab_size, int(random.sum()))
    return places, gold


def inputs(chunks: Sequence[Sequence[int] | np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return chunks between [CLS] and [SEP], padded at the end, (n, t), and which tokens are real, (n, t) bool."""
    lengths = np.array([len(chunk) + 2 for chunk in chunks])
    ids = np.full((len(chunks), int(lengths.max())), PAD, np.int64)
    ids[:, 0] = CLS
    for row, chunk in zip(ids, chunks, strict=True):
        row[1 : len(chunk) + 1] = chunk
        row[len(chunk) + 1] = SEP
    return ids, np.arange(ids.shape[1]) < lengths[:, None]


def begins(step: Step, plan: Plan, lengths: np.ndarray) -> np.ndarray:
    """Return the position of each chunk's first token, (n,): 0, or anywhere it fits, so that all positions learn."""
    rng = np.random.default_rng([plan.seed, _PLACES, step.number])
    anywhere = rng.integers(0, plan.positions - lengths + 1)
    return np.where(rng.random(len(lengths)) < plan.at_start, 0, anywhere)


def read_templates(path: Path, vocabulary: Vocabulary) -> tuple[Template, ...]:
    """Return each template of a file as the ids before and after its [X]."""
    templates = []
    for number, line in enumerate(CorpusFile(path).lines(), 1):
        before, *after = vocabulary.encode(line.split("[X]"))
        masks = sum(piece.count(MASK) for piece in (before, *after))
        if len(after) != 1 or masks != 1 or len(before) + len(after[0]) > _LONGEST:
            allowed = f"write one [X], one [MASK], and at most {_LONGEST} tokens"
            raise UsageError(f"{path}, line {number}: {line.strip()[:60]!r} is not a template; {allowed}")
        templates.append((before, after[0]))
    return tuple(templates)


def predict_words(step: Step, plan: Plan, corpus: Corpus) -> Batch:
    """Return a step's inputs: lines in templates whose masks predict their words, or chunks by plain masking."""
    if not step.templated:
        return mask(step, plan, corpus)
    rng = np.random.default_rng([plan.seed, _TEMPLATES, step.number])
    drawn = rng.integers(len(corpus.templates), size=len(step.spans))
    rows, sentences, at_mask = [], [], []
    for (start, end), number in zip(step.spans.tolist(), drawn.tolist(), strict=True):
        before, after = corpus.templates[number]
        row = np.concatenate([before, corpus.tokens[start:end], after]).astype(np.int64)
        sentence = np.arange(len(before), len(before) + end - start)
        at_mask.append(1 + int(np.setdiff1d(np.flatnonzero(row == MASK), sentence)[0]))
        sentences.append(1 + sentence)
        rows.append(row)
    ids, real = inputs(rows)
    starts = np.arange(len(ids)) * ids.shape[1]
    words = np.concatenate([places + first for places, first in zip(sentences, starts, strict=True)])
    known = words[ids.ravel()[words] >= len(SPECIALS)]
    bags = _bags(step.spans, starts + at_mask, plan, corpus)
    places, gold = hide(ids, known if len(known) else words, step, plan)
    return Batch(ids, real, begins(step, plan, real.sum(axis=1)), places, gold, bags)


def _bags(spans: np.ndarray, masks: np.ndarray, plan: Plan, corpus: Corpus) -> Bags | None:
    """Return the words of each span's mask, without lines that have no content; None if no line is left."""
    lines = np.searchsorted(corpus.ends, spans[:, 0], side="right")
    bags = [_words(corpus, *bag, plan.neighbours) for bag in zip(spans.tolist(), lines.tolist(), strict=True)]
    rows = [row for row, (words, _) in enumerate(bags) if len(words)]
    if not rows:
        return None
    words, weights = (np.concatenate(column) for column in zip(*(bags[row] for row in rows), strict=True))
    owners = np.repeat(np.arange(len(rows)), [len(bags[row][0]) for row in rows])
    return Bags(masks[rows], owners, words, weights.astype(np.float32))


def _words(corpus: Corpus, span: Sequence[int], line: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct content pieces of a line and their weights: information over its sum.

    If lines are in order, the words of the two neighbouring lines have ``share`` of the weight.
    """
    words, weights = _weighed(corpus, corpus.tokens[span[0] : span[1]])
    near = [
        other for other in (line - 1, line + 1) if 0 <= other < corpus.unrelated_from and line < corpus.unrelated_from
    ]
    if not share or not near or not len(words):
        return words, weights
    bounds = [(int(corpus.ends[other - 1]) if other else 0, int(corpus.ends[other])) for other in near]
    others, other_weights = _weighed(corpus, np.concatenate([corpus.tokens[begin:end] for begin, end in bounds]))
    if not len(others):
        return words, weights
    return np.concatenate([words, others]), np.concatenate([weights * (1 - share), other_weights * share])


def _weighed(corpus: Corpus, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    words = np.unique(np.asarray(ids)).astype(np.int64)
    words = words[corpus.information[words] > 0]
    information = corpus.information[words]
    return words, information / max(information.sum(), 1e-9)
