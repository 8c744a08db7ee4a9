"""Racing many templates: all on few pairs, the better ones on more, the last ten on all (successive
halving).

The method is that of Jamieson and Talwalkar (2016). The pairs of a rung are among those of the
next, so nothing is encoded twice on the way, and the result does not depend on the order of the
candidates.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.evaluation import statistics
from promptcli.notes import stage
from promptcli.select.search import Ranked
from promptcli.select.template_scorer import TemplateScorer

#: How fast a race narrows; about 12% of what scoring every candidate on every pair costs.
_FIRST = 1 / 20  # share of the pairs in the first rung
_LEAST = 48  # pairs of the first rung at least: on fewer a correlation says too little
_GROWTH = 2.0  # pairs of a rung over those of the one before
_CUT = 2.5  # candidates of a rung over those of the next


class Rung(NamedTuple):
    """A comparison of some candidates on some pairs."""

    candidates: int
    pairs: int


def plan_rungs(candidates: int, pairs: int, finalists: int) -> list[Rung]:
    """Return the rungs before the final.

    Empty if few candidates or pairs make the final the whole race.
    """
    rungs = []
    seen = float(max(_LEAST, pairs * _FIRST))
    while candidates > finalists and round(seen) < pairs:
        rungs.append(Rung(candidates, round(seen)))
        candidates = max(finalists, math.ceil(candidates / _CUT))
        seen *= _GROWTH
    return rungs


def spread_order(gold: NDArray[np.float64], seed: int) -> NDArray[np.intp]:
    """Return an order (p,) of the pairs in which every beginning holds all levels of the gold score
    equally.

    Sorted by gold score, equal ones shuffled, they are taken at the points of a shifted van der
    Corput sequence.
    """
    generator = np.random.default_rng(seed)
    size = len(gold)
    by_gold = np.lexsort((generator.random(size), gold))
    count = 2 ** max(1, math.ceil(math.log2(size)))
    from scipy.stats import qmc  # slow to import, and not every search races

    sequence = qmc.Halton(1, scramble=False).random(count)[:, 0]  # of base 2: van der Corput's
    shifted = (sequence + generator.random()) % 1.0
    points = np.floor(shifted * size).astype(np.intp)
    _, first_seen = np.unique(points, return_index=True)
    distinct = points[np.sort(first_seen)]
    order: NDArray[np.intp] = by_gold[distinct]
    return order


def race(
    templates: Sequence[str], scorer: TemplateScorer, *, seed: int = 42, finalists: int = 10
) -> tuple[list[Ranked], list[Rung]]:
    """Find the best templates, whose order does not matter.

    Return the ``finalists``, which alone are scored on all pairs, the best first, and the
    comparisons before.
    """
    alive = sorted(set(templates))
    order = spread_order(scorer.gold, seed)
    rungs = plan_rungs(len(alive), scorer.size, finalists)
    sizes = [*(rung.candidates for rung in rungs[1:]), finalists]
    seen: dict[str, NDArray[np.float64]] = {template: np.empty(0) for template in alive}
    done = 0
    with stage("race", None) as advance:
        for rung, keep in zip(rungs, sizes, strict=False):
            added = order[done : rung.pairs]
            gold = scorer.gold[order[: rung.pairs]]
            values: dict[str, float] = {}
            for template in alive:
                seen[template] = np.concatenate([seen[template], scorer.cosines(template, added)])
                values[template] = 100 * statistics.spearman(seen[template], gold)
                advance(len(added))
            # equal ones in the order of their texts
            alive = sorted(values, key=lambda template: (-values[template], template))[:keep]
            done = rung.pairs
        final = scorer.score(alive, "final", advance)
    return sorted(final, key=lambda item: (-item.value, item.choice)), rungs
