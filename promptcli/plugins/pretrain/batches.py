"""The batches of a pre-training run: they follow from plan and corpus alone, so any step can be
repeated.

Bag-of-words prediction: the [MASK] of a template predicts the content words of its sentence, after
Ma et al. 2024 (arXiv 2401.11248), in which [CLS] does; so a small model learns what templates ask
for.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from promptcli.encoder import batching
from promptcli.errors import UsageError
from promptcli.plugins.pretrain.corpus import Corpus, CorpusFile, Template
from promptcli.plugins.pretrain.plan import BAGS, Plan
from promptcli.plugins.pretrain.vocabulary import MASK, Vocabulary
from promptcli.training.trainable_encoder import MASKED, RANDOM, group_by_length

LONGEST_LINE = 62  # tokens of a line in a template; the rest is cut
_POOL = 16_384  # chunks sorted by length together: little padding, and still a random draw
#: Seeds of the kinds of draws, so that no two share random numbers.
_CUT, _ORDER, _MASKS, _PLACES, _KINDS, _TEMPLATES = range(6)
_LINES = 1_000  #: seeds lines in templates like a further phase
DEFAULT_TEMPLATES = Path(__file__).with_name("templates.txt")  #: none of the papers' own
_LONGEST_TEMPLATE = 32  # tokens of a template


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


_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class MaskedBatch:
    """Inputs and predictions; the masks of templates predict several words each, with weights."""

    ids: np.ndarray  #: (n, t) int64, padded at the end
    real: np.ndarray  #: (n, t) bool, not padding
    begins: np.ndarray  #: (n,) int64, the position of each chunk's [CLS] in the position table
    #: (k,) int64, of the predictions, numbered in the flattened ids; of templates' masks last
    places: np.ndarray
    gold: np.ndarray  #: (g,) int64, the right ids at the first g places
    owners: np.ndarray  #: (e,) int64, each word's place, numbered after the first g
    words: np.ndarray  #: (e,) int64, ids
    weights: np.ndarray  #: (e,) float32, of the words; their sum is 1

    def tensors(self, device: str | torch.device) -> tuple[Any, ...]:
        """Return the fields in their order, on a device; ``real`` is None without padding."""
        fields = {**vars(self), "real": None if self.real.all() else self.real}
        return tuple(
            None if field is None else batching.to_device(field, torch.device(device))
            for field in fields.values()
        )


def steps(plan: Plan, corpus: Corpus) -> Iterator[Step]:
    """Yield the steps of a run, first to last."""
    number = seen = 0
    is_taught = plan.objective == BAGS
    lines = lines_for_templates(plan, corpus) if is_taught else iter(())
    kinds = np.random.default_rng([plan.seed, _KINDS])
    for index, phase in enumerate(plan.phases):
        chunks = chunks_of_phase(plan, corpus, index)
        while seen < phase.until * plan.tokens:
            templated = is_taught and kinds.random() < plan.templated
            spans = next(lines if templated else chunks)
            step = Step(number, seen, spans, phase.dropout, templated)
            yield step
            number += 1
            seen += step.tokens


def chunks_of_phase(plan: Plan, corpus: Corpus, index: int) -> Iterator[np.ndarray]:
    """Yield the spans of each batch of a phase, (n, 2), without end."""
    for epoch in itertools.count():
        cuts = np.random.default_rng([plan.seed, _CUT, index, epoch])
        spans = corpus.chunks(plan.phases[index].lengths, plan.positions - 2, cuts)
        yield from _batches(plan, spans, [index, epoch])


def lines_for_templates(plan: Plan, corpus: Corpus) -> Iterator[np.ndarray]:
    """Yield the spans of each batch of lines, (n, 2), without end."""
    extra = max(len(before) + len(after) for before, after in corpus.templates)
    spans = corpus.lines(min(LONGEST_LINE, plan.positions - 2 - extra))
    for epoch in itertools.count():
        yield from _batches(plan, spans, [_LINES, epoch], extra)


def _batches(
    plan: Plan, spans: np.ndarray, seed: Sequence[int], extra: int = 0
) -> Iterator[np.ndarray]:
    """Yield the batches of one pass over spans, of similar lengths; each holds at most
    ``batch_tokens``, padding included.

    Every span gets ``extra`` more tokens.
    """
    rng = np.random.default_rng([plan.seed, _ORDER, *seed])
    spans = spans[rng.permutation(len(spans))]
    for begin in range(0, len(spans), _POOL):
        pool = spans[begin : begin + _POOL]
        lengths = pool[:, 1] - pool[:, 0] + 2 + extra
        batches = [pool[rows] for rows in group_by_length(lengths, plan.batch_tokens)]
        for index in rng.permutation(len(batches)):
            yield batches[index]


def masked_batch(step: Step, plan: Plan, corpus: Corpus) -> MaskedBatch:
    """Return a step's inputs: a share of the real tokens is predicted, at least one."""
    vocabulary = corpus.vocabulary
    chunks = [corpus.tokens[start:end] for start, end in step.spans.tolist()]
    ids, real = padded_inputs(chunks, vocabulary)
    words = np.flatnonzero(vocabulary.are_ordinary[ids.ravel()])
    if not len(words):  # a line of unknown characters only
        words = np.flatnonzero(real.ravel())
    places, gold = mask_tokens(ids, words, step, plan, vocabulary)
    starts = first_positions(step, plan, real.sum(axis=1))
    return MaskedBatch(ids, real, starts, places, gold, _NONE, _NONE, _NONE.astype(np.float32))


def mask_tokens(
    ids: np.ndarray, words: np.ndarray, step: Step, plan: Plan, vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray]:
    """Hide a share of the places ``words`` of the flattened ids, in place.

    Return places and right ids, (k,) each.
    """
    rng = np.random.default_rng([plan.seed, _MASKS, step.number])
    flat = ids.ravel()
    chosen = rng.random(len(words)) < plan.masking
    if not chosen.any():
        chosen[rng.integers(len(words))] = True
    places = words[chosen]
    gold = flat[places].copy()
    kind = rng.random(len(places))
    random = (kind >= MASKED) & (kind < MASKED + RANDOM)
    flat[places[kind < MASKED]] = vocabulary.mask
    drawn = rng.integers(len(vocabulary.ordinary), size=int(random.sum()))
    flat[places[random]] = vocabulary.ordinary[drawn]
    return places, gold


def padded_inputs(
    chunks: Sequence[Sequence[int] | np.ndarray], vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray]:
    """Return chunks between [CLS] and [SEP], padded at the end, (n, t), and which tokens are real,
    (n, t) bool.
    """
    lengths = np.array([len(chunk) + 2 for chunk in chunks])
    ids = np.full((len(chunks), int(lengths.max())), vocabulary.pad, np.int64)
    ids[:, 0] = vocabulary.start
    for row, chunk in zip(ids, chunks, strict=True):
        row[1 : len(chunk) + 1] = chunk
        row[len(chunk) + 1] = vocabulary.end
    return ids, np.arange(ids.shape[1]) < lengths[:, None]


def first_positions(step: Step, plan: Plan, lengths: np.ndarray) -> np.ndarray:
    """Return the position of each chunk's first token, (n,): 0, or anywhere it fits, so that all
    positions learn.
    """
    rng = np.random.default_rng([plan.seed, _PLACES, step.number])
    anywhere = rng.integers(0, plan.positions - lengths + 1)
    return np.where(rng.random(len(lengths)) < plan.at_start, 0, anywhere)


def read_templates(file: CorpusFile, vocabulary: Vocabulary) -> tuple[Template, ...]:
    """Return each template of a file as the ids before and after its [X]."""
    templates = []
    for number, line in enumerate(file.lines(), 1):
        before, *after = vocabulary.encode(line.split("[X]"))
        masks = sum(piece.count(MASK) for piece in (before, *after))
        if len(after) != 1 or masks != 1 or len(before) + len(after[0]) > _LONGEST_TEMPLATE:
            allowed = f"write one [X], one [MASK], and at most {_LONGEST_TEMPLATE} tokens"
            raise UsageError(
                f"{file.path}, line {number}: {line.strip()[:60]!r} is not a template; {allowed}"
            )
        templates.append((before, after[0]))
    return tuple(templates)


def batch_of_step(step: Step, plan: Plan, corpus: Corpus) -> MaskedBatch:
    """Return a step's inputs: lines in templates whose masks predict their words, or chunks by
    plain masking.
    """
    if not step.templated:
        return masked_batch(step, plan, corpus)
    rng = np.random.default_rng([plan.seed, _TEMPLATES, step.number])
    drawn = rng.integers(len(corpus.templates), size=len(step.spans))
    lines = [np.asarray(corpus.tokens[start:end]) for start, end in step.spans.tolist()]
    rows = []
    sentences = []  # the places of each line in its row
    masks = []  # that of its template's mask
    for line, number in zip(lines, drawn.tolist(), strict=True):
        before, after = corpus.templates[number]
        rows.append(np.concatenate([before, line, after]).astype(np.int64))
        sentences.append(1 + len(before) + np.arange(len(line)))
        if MASK in before:
            masks.append(1 + before.index(MASK))
        else:
            masks.append(1 + len(before) + len(line) + after.index(MASK))
    ids, real = padded_inputs(rows, corpus.vocabulary)
    starts = np.arange(len(ids)) * ids.shape[1]
    words = np.concatenate(
        [begin + places for begin, places in zip(starts, sentences, strict=True)]
    )
    known = words[corpus.vocabulary.are_ordinary[ids.ravel()[words]]]
    places, gold = mask_tokens(ids, known if len(known) else words, step, plan, corpus.vocabulary)
    weighed = [_weighed(corpus, line) for line in lines]
    filled = [row for row, (content, _) in enumerate(weighed) if len(content)]
    contents = [weighed[row][0] for row in filled]
    weights = np.concatenate([_NONE, *(weighed[row][1] for row in filled)])
    return MaskedBatch(
        ids=ids,
        real=real,
        begins=first_positions(step, plan, real.sum(axis=1)),
        # lines without content teach nothing
        places=np.concatenate([places, (starts + masks)[filled]]),
        gold=gold,
        owners=np.repeat(np.arange(len(filled)), list(map(len, contents))),
        words=np.concatenate([_NONE, *contents]),
        weights=(weights / max(len(filled), 1)).astype(np.float32),
    )


def _weighed(corpus: Corpus, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct content pieces of a line and their weights: information over its sum."""
    words = np.unique(ids).astype(np.int64)
    words = words[corpus.information[words] > 0]
    information = corpus.information[words]
    return words, information / max(information.sum(), 1e-9)
