"""Bag-of-words prediction: the [MASK] of a template predicts the content words of its sentence.

After Ma et al. 2024 (arXiv 2401.11248), in which [CLS] predicts the words of a passage; here a template's mask does, so
that a small model learns what templates ask for. Plain masking continues in the same sentences, and in other steps.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from promptcli.backbones.vocabulary import MASK, SPECIALS, Vocabulary
from promptcli.encoder.prompts.named import templates_folder
from promptcli.errors import UsageError
from promptcli.pretraining.batches import TEMPLATES, Bags, Batch, Step, begins, hide, inputs, mask
from promptcli.pretraining.corpus import Corpus, CorpusFile, Template
from promptcli.pretraining.plan import Plan

#: One template a line, without the papers' own: those stay unseen, so that they can be tried.
DEFAULT_TEMPLATES = templates_folder() / "pretraining.txt"
_LONGEST = 32  # tokens of a template


def read_templates(path: Path, vocabulary: Vocabulary) -> tuple[Template, ...]:
    """Return each template of a file as the ids before and after its [X]."""
    templates = []
    for number, line in enumerate(CorpusFile(path).lines(), 1):
        before, *after = vocabulary.encode(line.split("[X]"))
        masks = sum(piece.count(MASK) for piece in (before, *after))
        if len(after) != 1 or masks != 1 or len(before) + len(after[0]) > _LONGEST:
            raise UsageError(
                f"{path}, line {number}: {line.strip()[:60]!r} is not a template; write one [X] for the sentence, one"
                f" [MASK], and at most {_LONGEST} tokens"
            )
        templates.append((before, after[0]))
    return tuple(templates)


def predict_words(step: Step, plan: Plan, corpus: Corpus) -> Batch:
    """Return a step's inputs: lines in templates whose masks predict their words, or chunks by plain masking."""
    if not step.templated:
        return mask(step, plan, corpus)
    rng = np.random.default_rng([plan.seed, TEMPLATES, step.number])
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
