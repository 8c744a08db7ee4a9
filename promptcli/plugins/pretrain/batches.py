"""The batches of a pre-training run; plan and corpus alone determine them, so any step can be
repeated.

In bag-of-words prediction the [MASK] of a template predicts the content words of its sentence; in
Ma et al. 2024 (arXiv 2401.11248) [CLS] does. A small model thus learns to answer templates.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from promptcli.backbones import devices
from promptcli.backbones.language_models import MaskedInputs
from promptcli.data.training_data import stream_sentences
from promptcli.errors import UsageError
from promptcli.plugins.pretrain.corpus import MASK, Corpus, Template, Vocabulary
from promptcli.plugins.pretrain.plan import BAGS, Plan
from promptcli.training.trainable_encoder import MASKED, RANDOM, group_by_length

LONGEST_LINE = 62  # most tokens of a line in a template
_POOL = 16_384  # chunks sorted by length at a time: little padding, but still a random draw
#: Each kind of draw has its own seed, so that no two share random numbers.
_CUT, _ORDER, _MASKS, _PLACES, _KINDS, _TEMPLATES = range(6)
_LINES = 1_000  #: seed of templated lines, as for a further phase
DEFAULT_TEMPLATES = Path(__file__).with_name("templates.txt")  #: our own, none from the papers
_LONGEST_TEMPLATE = 32  # tokens of a template


@dataclass(frozen=True)
class Step:
    """One step of the run."""

    number: int  #: from 0
    seen: int  #: tokens of the steps before it
    spans: np.ndarray  #: (n, 2) begin and end of its chunks in the corpus
    dropout: float
    templated: bool = False  #: whether its spans are lines, put into templates

    @property
    def tokens(self) -> int:
        """Tokens of the step, without padding and template words."""
        return int((self.spans[:, 1] - self.spans[:, 0] + 2).sum())


_NO_WORDS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class BagOfWords:
    """The words that the mask of a template predicts."""

    mask: int  #: its place in the flattened ids
    words: np.ndarray  #: (e,) int64, ids
    weights: np.ndarray  #: (e,), sum 1


@dataclass(frozen=True)
class MaskedBatch:
    """Inputs and predictions; each template mask predicts several words, with weights."""

    ids: np.ndarray  #: (n, t) int64, padded at the end
    real: np.ndarray  #: (n, t) bool, False on padding
    begins: np.ndarray  #: (n,) int64, the position of each chunk's [CLS] in the position table
    #: (k,) int64, places of the predictions in the flattened ids, the masks of templates last
    places: np.ndarray
    gold: np.ndarray  #: (g,) int64, the right ids at the first g places
    owners: np.ndarray  #: (e,) int64, the place of each word, counted after the first g
    words: np.ndarray  #: (e,) int64, ids
    weights: np.ndarray  #: (e,) float32, of the words; their sum is 1

    def on(self, device: str | torch.device) -> MaskedInputs:
        """Return the batch on a device."""
        tensors = {
            name: devices.to_device(array, torch.device(device))
            for name, array in vars(self).items()
            if name != "real"
        }
        real = None
        if not self.real.all():
            real = devices.to_device(self.real, torch.device(device))
        return MaskedInputs(real=real, **tensors)


def steps(plan: Plan, corpus: Corpus) -> Iterator[Step]:
    """Yield the steps of a run, first to last."""
    number = seen = 0
    has_templates = plan.objective == BAGS
    lines = lines_for_templates(plan, corpus) if has_templates else iter(())
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
    """Yield the spans of each batch of a phase, (n, 2), endlessly."""

    def spans(epoch: int) -> np.ndarray:
        cuts = np.random.default_rng([plan.seed, _CUT, index, epoch])
        return corpus.chunks(plan.phases[index].lengths, plan.positions - 2, cuts)

    return _batches(plan, spans, index)


def lines_for_templates(plan: Plan, corpus: Corpus) -> Iterator[np.ndarray]:
    """Yield the spans of each batch of lines, (n, 2), endlessly."""
    extra = max(len(before) + len(after) for before, after in corpus.templates)
    spans = corpus.lines(min(LONGEST_LINE, plan.positions - 2 - extra))
    return _batches(plan, lambda epoch: spans, _LINES, extra)


def _batches(
    plan: Plan, spans_of: Callable[[int], np.ndarray], seed: int, extra: int = 0
) -> Iterator[np.ndarray]:
    """Yield the batches of one pass after another over spans; a batch has spans of similar lengths,
    and at most ``batch_tokens``, padding included.

    Every span gets ``extra`` more tokens.
    """
    for epoch in itertools.count():
        spans = spans_of(epoch)
        rng = np.random.default_rng([plan.seed, _ORDER, seed, epoch])
        spans = spans[rng.permutation(len(spans))]
        for begin in range(0, len(spans), _POOL):
            pool = spans[begin : begin + _POOL]
            lengths = pool[:, 1] - pool[:, 0] + 2 + extra
            batches = [pool[rows] for rows in group_by_length(lengths, plan.batch_tokens)]
            for index in rng.permutation(len(batches)):
                yield batches[index]


def batch_of_step(step: Step, plan: Plan, corpus: Corpus) -> MaskedBatch:
    """Return a step's inputs: chunks, or lines in templates whose masks predict their words.

    A share of the tokens of the chunks or lines is predicted, at least one.
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

    A line without content words has nothing to predict, and is left out.
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
    """Mask a share of the ordinary tokens of the lines in place; ``in_line`` (n, t) says which
    tokens these are.

    Return the places in the flattened ids and the right ids, (k,) each.
    """
    words = np.flatnonzero(in_line & vocabulary.are_ordinary[ids])
    if not len(words):  # all characters are unknown
        words = np.flatnonzero(in_line)
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


def _first_positions(step: Step, plan: Plan, lengths: np.ndarray) -> np.ndarray:
    """Return the position of the first token of each chunk, (n,): 0, or a drawn one at which the
    chunk fits, so that all positions learn.
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
        if len(after) != 1 or masks != 1 or len(before) + len(after[0]) > _LONGEST_TEMPLATE:
            allowed = f"write one [X], one [MASK], and at most {_LONGEST_TEMPLATE} tokens"
            raise UsageError(
                f"{file}, line {number}: {line.strip()[:60]!r} is not a template; {allowed}"
            )
        templates.append((before, after[0]))
    return tuple(templates)
