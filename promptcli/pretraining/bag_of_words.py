"""Bag-of-words prediction: the [MASK] of a template predicts the content words of the sentence that stands in it.

After Ma et al. 2024 (arXiv 2401.11248), where [CLS] predicts the words of a passage; here a template's mask does, so
that a small model learns what templates ask for. Plain masking goes on in the same sentences, and in steps between.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from promptcli.backbones.vocabulary import MASK, SPECIALS, Vocabulary
from promptcli.encoder.prompts.named import templates_folder
from promptcli.errors import UsageError
from promptcli.pretraining.batches import TEMPLATES, Bags, Batch, Step, begins, hide, inputs, mask
from promptcli.pretraining.corpus import Corpus, CorpusFile
from promptcli.pretraining.plan import Plan

#: One template a line, none of the papers' own among them: those stay unseen, so that they can be tried.
DEFAULT_TEMPLATES = templates_folder() / "pretraining.txt"
_LONGEST = 32  # tokens of a template


def read_templates(path: Path, vocabulary: Vocabulary) -> tuple[tuple[list[int], list[int]], ...]:
    """Return each template of a file as the ids before and after its [X].

    Raises:
        NotFoundError: There is no such file.
        UsageError: A line has not one [X] and one [MASK], or is long.
    """
    found = []
    for number, line in enumerate(CorpusFile(path).lines(), 1):
        before, *after = vocabulary.encode(line.split("[X]"))
        masks = sum(part.count(MASK) for part in (before, *after))
        if len(after) != 1 or masks != 1 or len(before) + len(after[0]) > _LONGEST:
            raise UsageError(
                f"{path}, line {number}: {line.strip()[:60]!r} is no template; write one [X], where the sentence"
                f" stands, one [MASK], and at most {_LONGEST} tokens"
            )
        found.append((before, after[0]))
    return tuple(found)


def predict_words(step: Step, plan: Plan, corpus: Corpus) -> Batch:
    """Return a step's inputs: lines in templates whose masks predict their words, or chunks by plain masking."""
    if not step.templated:
        return mask(step, plan, corpus)
    rng = np.random.default_rng([plan.seed, TEMPLATES, step.number])
    drawn = rng.integers(len(corpus.templates), size=len(step.spans))
    rows, own, at_mask = [], [], []
    for (start, end), number in zip(step.spans.tolist(), drawn.tolist(), strict=True):
        before, after = corpus.templates[number]
        row = np.concatenate([before, corpus.tokens[start:end], after]).astype(np.int64)
        sentence = np.arange(len(before), len(before) + end - start)
        at_mask.append(1 + int(np.setdiff1d(np.flatnonzero(row == MASK), sentence)[0]))
        own.append(1 + sentence)
        rows.append(row)
    ids, real = inputs(rows)
    starts = np.arange(len(ids)) * ids.shape[1]
    words = np.concatenate([places + first for places, first in zip(own, starts, strict=True)])
    known = words[ids.ravel()[words] >= len(SPECIALS)]
    bags = _bags(step.spans, starts + at_mask, plan, corpus)
    places, gold = hide(ids, known if len(known) else words, step, plan)
    return Batch(ids, real, begins(step, plan, real.sum(axis=1)), places, gold, bags)


def _bags(spans: np.ndarray, masks: np.ndarray, plan: Plan, corpus: Corpus) -> Bags | None:
    """Return the words of each span's mask; a line without content is left out, None where all are."""
    lines = np.searchsorted(corpus.ends, spans[:, 0], side="right")
    found = [_words(corpus, *bag, plan.neighbours) for bag in zip(spans.tolist(), lines.tolist(), strict=True)]
    kept = [row for row, (words, _) in enumerate(found) if len(words)]
    if not kept:
        return None
    words, weights = (np.concatenate(column) for column in zip(*(found[row] for row in kept), strict=True))
    owners = np.repeat(np.arange(len(kept)), [len(found[row][0]) for row in kept])
    return Bags(masks[kept], owners, words, weights.astype(np.float32))


def _words(corpus: Corpus, span: Sequence[int], line: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct content pieces of a line and their weights: information over its sum.

    Where lines are in order, the words of the lines beside it have ``share`` of the weight.
    """
    words, weights = _weighed(corpus, corpus.tokens[span[0] : span[1]])
    beside = [
        near for near in (line - 1, line + 1) if 0 <= near < corpus.unrelated_from and line < corpus.unrelated_from
    ]
    if not share or not beside or not len(words):
        return words, weights
    bounds = [(int(corpus.ends[near - 1]) if near else 0, int(corpus.ends[near])) for near in beside]
    others, theirs = _weighed(corpus, np.concatenate([corpus.tokens[begin:end] for begin, end in bounds]))
    if not len(others):
        return words, weights
    return np.concatenate([words, others]), np.concatenate([weights * (1 - share), theirs * share])


def _weighed(corpus: Corpus, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    words = np.unique(np.asarray(ids)).astype(np.int64)
    words = words[corpus.information[words] > 0]
    told = corpus.information[words]
    return words, told / max(told.sum(), 1e-9)
