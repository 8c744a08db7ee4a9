"""Hard negatives for pairs: the nearest positive of another pair that is far enough from being one (``mine``)."""

import dataclasses

import numpy as np
import torch

from promptcli.data.dialect import PAIRS, TRIPLETS
from promptcli.data.sources import TrainingExamples
from promptcli.data.vectors.formats import Floats
from promptcli.data.vectors.precision import unit
from promptcli.errors import UsageError
from promptcli.notes import note, working
from promptcli.training.teacher import SentenceVectors

_ROWS = 1024  # pairs compared at once with all candidates


def check_minable(examples: TrainingExamples, source: str) -> None:
    """Refuse examples that are not pairs."""
    if examples.layout not in (PAIRS, TRIPLETS):
        raise UsageError(f"`mine` needs pairs, columns {', '.join(PAIRS)}; {source} has none")


def mined(
    examples: TrainingExamples, vectors: SentenceVectors, guide: SentenceVectors, margin: float
) -> TrainingExamples:
    """Return the pairs with a hard negative each, if there is one; a negative that is there stays.

    Of the other pairs' positives it is the nearest to the sentence by ``vectors`` that is farther than the positive by
    ``margin`` at least, and that the ``guide`` does not find nearer than the positive, which would be a false negative.
    The positives of equal sentences, and these themselves, are never taken.
    """
    first, second, *rest = examples.columns
    hard = list(rest[0]) if rest else [""] * len(first)
    candidates = list(dict.fromkeys(second))
    number = {text: place for place, text in enumerate(candidates)}
    positives: dict[str, set[int]] = {}
    for one, two in zip(first, second, strict=True):
        positives.setdefault(one, {number[text] for text in (one,) if text in number}).add(number[two])
    rows = [row for row, text in enumerate(hard) if not text]
    sides = [(model, _unit(model, candidates)) for model in dict.fromkeys((vectors, guide))]
    found = 0
    with working("mine", len(rows)) as advance:
        for start in range(0, len(rows), _ROWS):
            block = rows[start : start + _ROWS]
            own = [number[second[row]] for row in block]
            allowed = np.ones((len(block), len(candidates)), bool)
            cosines = []
            for model, theirs in sides:
                cosine = (
                    torch.from_numpy(_unit(model, [first[row] for row in block])) @ torch.from_numpy(theirs).T
                ).numpy()
                positive = cosine[np.arange(len(block)), own][:, None]
                allowed &= (cosine <= positive - margin) if model is vectors else (cosine <= positive)
                cosines.append(cosine)
            for line, row in enumerate(block):
                allowed[line, list(positives[first[row]])] = False
            nearest = np.where(allowed, cosines[0], -np.inf).argmax(1)
            for line, row in enumerate(block):
                if allowed[line, nearest[line]]:
                    hard[row], found = candidates[nearest[line]], found + 1
            advance(len(block))
    note(f"{found:,} hard negatives mined; {len(rows) - found:,} pairs have none farther than the margin")
    return dataclasses.replace(examples, columns=(first, second, hard), layout=TRIPLETS)


def _unit(model: SentenceVectors, texts: list[str]) -> Floats:
    return unit(model.encode(texts))
