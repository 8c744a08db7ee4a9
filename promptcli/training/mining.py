"""Hard negatives for pairs: the nearest positive of another pair that is far enough from being one (``mine``)."""

import dataclasses

import numpy as np

from promptcli.data.dialect import PAIRS, TRIPLETS
from promptcli.data.sources import TrainingExamples
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
    """Return the pairs with a hard negative each, if one exists; negatives that are given stay.

    Of the other pairs' positives it is the nearest to the sentence by ``vectors`` that is farther than the positive by
    ``margin`` at least, and that the ``guide`` does not find nearer: that would be a false negative. The positives of
    equal sentences, and these themselves, are never taken.
    """
    first, second, *rest = examples.columns
    hard = list(rest[0]) if rest else [""] * len(first)
    place = {text: number for number, text in enumerate(dict.fromkeys(second))}
    candidates = list(place)
    excluded: dict[str, set[int]] = {}
    for one, two in zip(first, second, strict=True):
        excluded.setdefault(one, {place[one]} if one in place else set()).add(place[two])
    rows = [row for row, text in enumerate(hard) if not text]
    theirs = {model: unit(model.encode(candidates)).T for model in (vectors, guide)}
    with working("mine", len(rows)) as advance:
        for start in range(0, len(rows), _ROWS):
            block = rows[start : start + _ROWS]
            lines, own = np.arange(len(block)), [place[second[row]] for row in block]
            cosines = {model: unit(model.encode([first[row] for row in block])) @ theirs[model] for model in theirs}
            near, guided = cosines[vectors], cosines[guide]
            allowed = (near <= near[lines, own][:, None] - margin) & (guided <= guided[lines, own][:, None])
            for line, row in enumerate(block):
                allowed[line, list(excluded[first[row]])] = False
                best = int(np.where(allowed[line], near[line], -np.inf).argmax())
                hard[row] = candidates[best] if allowed[line, best] else ""
            advance(len(block))
    none = sum(not hard[row] for row in rows)
    note(f"{len(rows) - none:,} hard negatives mined; {none:,} pairs have none farther than the margin")
    return dataclasses.replace(examples, columns=(first, second, hard), layout=TRIPLETS)
