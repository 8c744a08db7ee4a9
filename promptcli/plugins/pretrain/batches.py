"""The batches of a pre-training run. The plan and the corpus determine them, so that every step can
be repeated.

In bag-of-words prediction the [MASK] of a template predicts the content words of its sentence, so
that a small model learns to answer templates. In Ma et al. 2024 (arXiv 2401.11248) [CLS] predicts
them.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from promptcli.backbones import devices
from promptcli.backbones.language_models import MaskedInputs
from promptcli.data.training_data import stream_sentences
from promptcli.errors import UsageError
from promptcli.plugins.pretrain.corpus import MASK, Corpus, Template, Vocabulary
from promptcli.plugins.pretrain.plan import BAGS, Plan
from promptcli.training.trainable_encoder import MASKED_SHARE, RANDOM_SHARE, group_by_length

_MAX_LINE_TOKENS = 62  # longest line that is put into a template
_MAX_TEMPLATE_TOKENS = 32
_CHUNKS_PER_SORT = 16_384  # sorted by length together: little padding, but still a random order
#: Each kind of draw has its own random stream.
_CUT, _ORDER, _MASKS, _PLACES, _KINDS, _TEMPLATES = range(6)
_LINES_PHASE = 1_000  # takes the place of a phase's number in the seed of the lines' order
DEFAULT_TEMPLATES = Path(__file__).with_name("templates.txt")  #: our own, without the papers'


@dataclass(frozen=True)
class Step:
    """One step of the run."""

    number: int  #: from 0
    seen: int  #: number of tokens in the earlier steps
    spans: np.ndarray  #: (n, 2) begin and end of its chunks in the corpus
    dropout: float
    templated: bool = False  #: whether the spans are lines, which are put into templates

    @property
    def tokens(self) -> int:
        """The number of tokens of the step, without padding and template words."""
        return int((self.spans[:, 1] - self.spans[:, 0] + 2).sum())


_NO_WORDS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class BagOfWords:
    """The words that the mask of a template predicts."""

    mask: int  #: the place of the mask in the flattened ids
    words: np.ndarray  #: (e,) int64, ids
    weights: np.ndarray  #: (e,), with the sum 1


@dataclass(frozen=True)
class MaskedBatch:
    """The inputs of a step and what is predicted from them; the mask of a template predicts several
    words, each with a weight.
    """

    ids: np.ndarray  #: (n, t) int64, padded at the end
    real: np.ndarray  #: (n, t) bool, False on padding
    begins: np.ndarray  #: (n,) int64, the position of each chunk's [CLS] in the position table
    #: (k,) int64, places to predict from in the flattened ids; the masks of templates come last
    places: np.ndarray
    gold: np.ndarray  #: (g,) int64, the right ids at the first g places
    #: (e,) int64, for each word the place that predicts it, numbered after the first g
    owners: np.ndarray
    words: np.ndarray  #: (e,) int64, ids
    weights: np.ndarray  #: (e,) float32, of the words, with the sum 1

    def on(self, device: str) -> MaskedInputs:
        """Return the batch on a device."""
        tensors: dict[str, Any] = {
            field.name: devices.to_device(getattr(self, field.name), torch.device(device))
            for field in fields(self)
        }
        if self.real.all():
            tensors["real"] = None
        return MaskedInputs(**tensors)


def steps(plan: Plan, corpus: Corpus) -> Iterator[Step]:
    """Yield the steps of a run, first to last."""
    number = seen = 0
    has_templates = plan.objective == BAGS
    lines: Iterator[np.ndarray] = iter(())
    if has_templates:
        template_tokens = max(len(before) + len(after) for before, after in corpus.templates)
        longest = min(_MAX_LINE_TOKENS, plan.positions - 2 - template_tokens)
        passes = itertools.repeat(corpus.lines(longest))
        lines = _batches(plan, passes, _LINES_PHASE, template_tokens)
    kinds = np.random.default_rng([plan.seed, _KINDS])
    for index, phase in enumerate(plan.phases):
        chunks = chunks_of_phase(plan, corpus, index)
        while seen < phase.until * plan.tokens:
            templated = has_templates and kinds.random() < plan.templated
            spans = next(lines if templated else chunks)
            step = Step(number, seen, spans, phase.dropout, templated)
            yield step
            number += 1
            seen += step.tokens


def chunks_of_phase(plan: Plan, corpus: Corpus, index: int) -> Iterator[np.ndarray]:
    """Yield the spans of each batch of a phase, (n, 2), endlessly; each pass cuts the corpus into
    other chunks.
    """
    lengths = plan.phases[index].lengths
    seeds = ([plan.seed, _CUT, index, epoch] for epoch in itertools.count())
    rngs = map(np.random.default_rng, seeds)
    passes = (corpus.chunks(lengths, plan.positions - 2, rng) for rng in rngs)
    return _batches(plan, passes, index)


def _batches(
    plan: Plan, passes: Iterator[np.ndarray], phase: int, template_tokens: int = 0
) -> Iterator[np.ndarray]:
    """Yield the batches of each pass over the corpus, given the spans of the pass, (n, 2).

    A batch has spans of similar lengths and at most ``batch_tokens``, padding included. Every span
    gets ``template_tokens`` more tokens.
    """
    for epoch, spans in enumerate(passes):
        rng = np.random.default_rng([plan.seed, _ORDER, phase, epoch])
        spans = spans[rng.permutation(len(spans))]
        for begin in range(0, len(spans), _CHUNKS_PER_SORT):
            pool = spans[begin : begin + _CHUNKS_PER_SORT]
            lengths = pool[:, 1] - pool[:, 0] + 2 + template_tokens
            batches = [pool[rows] for rows in group_by_length(lengths, plan.batch_tokens)]
            for index in rng.permutation(len(batches)):
                yield batches[index]


def batch_of_step(step: Step, plan: Plan, corpus: Corpus) -> MaskedBatch:
    """Return the inputs of a step: chunks, or lines in templates whose masks predict their words.

    A share of the tokens of the chunks or lines is predicted, but at least one token.
    """
    vocabulary = corpus.vocabulary
    lines = [np.asarray(corpus.tokens[start:end]) for start, end in step.spans.tolist()]
    templates: list[Template] = [([], [])] * len(lines)
    if step.templated:
        rng = np.random.default_rng([plan.seed, _TEMPLATES, step.number])
        drawn = rng.integers(len(corpus.templates), size=len(lines))
        templates = [corpus.templates[number] for number in drawn.tolist()]
    rows = []
    for line, (before, after) in zip(lines, templates, strict=True):
        rows.append([vocabulary.start, *before, *line.tolist(), *after, vocabulary.end])
    lengths = np.array(list(map(len, rows)))
    ids = np.full((len(rows), int(lengths.max())), vocabulary.pad, np.int64)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    columns = np.arange(ids.shape[1])
    starts = np.array([1 + len(before) for before, _ in templates])[:, None]
    in_line = (columns >= starts) & (columns < starts + np.array(list(map(len, lines)))[:, None])
    bags: list[BagOfWords] = []
    if step.templated:
        masks = np.flatnonzero((ids == vocabulary.mask) & ~in_line)
        bags = _bags_of_words(corpus, lines, masks)
    places, gold = _mask_tokens(ids, in_line, step, plan, vocabulary)
    weights = np.concatenate([_NO_WORDS, *(bag.weights for bag in bags)])
    return MaskedBatch(
        ids=ids,
        real=columns < lengths[:, None],
        begins=_first_positions(step, plan, lengths),
        places=np.concatenate([places, np.array([bag.mask for bag in bags], np.int64)]),
        gold=gold,
        owners=np.repeat(np.arange(len(bags)), [len(bag.words) for bag in bags]),
        words=np.concatenate([_NO_WORDS, *(bag.words for bag in bags)]),
        weights=(weights / max(len(bags), 1)).astype(np.float32),
    )


def _bags_of_words(
    corpus: Corpus, lines: Sequence[np.ndarray], masks: np.ndarray
) -> list[BagOfWords]:
    """Return the distinct content words of each line, weighted by their information.

    A line without content words is left out, because there is nothing to predict.
    """
    bags = []
    for mask, line in zip(masks.tolist(), lines, strict=True):
        words = np.unique(line).astype(np.int64)
        words = words[corpus.information[words] > 0]
        if len(words):
            information = corpus.information[words]
            bags.append(BagOfWords(mask, words, information / max(information.sum(), 1e-9)))
    return bags


def _mask_tokens(
    ids: np.ndarray, in_line: np.ndarray, step: Step, plan: Plan, vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray]:
    """Mask a share of the ordinary tokens of the lines in place; ``in_line`` (n, t) is True on the
    tokens of the lines.

    Return the places in the flattened ids and the right ids, (k,) each.
    """
    words = np.flatnonzero(in_line & vocabulary.are_ordinary[ids])
    if not len(words):  # no character of the lines is in the alphabet
        words = np.flatnonzero(in_line)
    rng = np.random.default_rng([plan.seed, _MASKS, step.number])
    flat = ids.ravel()
    chosen = rng.random(len(words)) < plan.masking
    if not chosen.any():
        chosen[rng.integers(len(words))] = True
    places = words[chosen]
    gold = flat[places].copy()
    kind = rng.random(len(places))
    random = (kind >= MASKED_SHARE) & (kind < MASKED_SHARE + RANDOM_SHARE)
    flat[places[kind < MASKED_SHARE]] = vocabulary.mask
    drawn = rng.integers(len(vocabulary.ordinary), size=int(random.sum()))
    flat[places[random]] = vocabulary.ordinary[drawn]
    return places, gold


def _first_positions(step: Step, plan: Plan, lengths: np.ndarray) -> np.ndarray:
    """Return the position of the first token of each chunk, (n,): 0, or a random position at which
    the chunk fits, so that all positions learn.
    """
    rng = np.random.default_rng([plan.seed, _PLACES, step.number])
    anywhere = rng.integers(0, plan.positions - lengths + 1)
    return np.where(rng.random(len(lengths)) < plan.at_start, 0, anywhere)


def read_templates(file: Path, vocabulary: Vocabulary) -> tuple[Template, ...]:
    """Return the templates of a file, each as the ids before and after its [X]."""
    templates = []
    for number, line in enumerate(stream_sentences(file), 1):
        before, *after = vocabulary.encode(line.split("[X]"))
        masks = sum(piece.count(MASK) for piece in (before, *after))
        if len(after) != 1 or masks != 1 or len(before) + len(after[0]) > _MAX_TEMPLATE_TOKENS:
            allowed = f"write one [X], one [MASK], and at most {_MAX_TEMPLATE_TOKENS} tokens"
            raise UsageError(
                f"{file}, line {number}: {line.strip()[:60]!r} is not a template; {allowed}"
            )
        templates.append((before, after[0]))
    return tuple(templates)
