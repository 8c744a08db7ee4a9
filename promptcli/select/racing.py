"""Scores many templates on one development set as ``eval`` does, and races them (successive
halving).

A race compares all templates on few pairs, the better ones on more, and the last ten on all
(Jamieson and Talwalkar, 2016). Each rung's pairs are among the next rung's, so no sentence is
encoded twice on the way. The result does not depend on the order of the candidates.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.backbones.backbone import Backbone
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import TorchEncoder
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import row_of_sentences
from promptcli.notes import Advance, stage
from promptcli.recipe import Recipe
from promptcli.select.search import Ranked, rank
from promptcli.storage.cache import Cache

#: Sentences per pass for a subset of the pairs. Small batches sorted by length are hardly padded.
#: Under the full token budget, the 150 or so sentences of a rung would be one or two batches, a
#: third of them padding (STS-B dev).
_SMALL_BATCH = 32
#: How fast a race narrows. It costs about 12% of scoring every candidate on every pair.
_FIRST = 1 / 20  # share of the pairs in the first rung
_LEAST = 48  # fewest pairs of the first rung: with fewer a correlation is too uncertain
_GROWTH = 2.0  # growth in pairs from one rung to the next
_CUT = 2.5  # reduction in candidates from one rung to the next


class TemplateScorer:
    """Cosines and scores of templates on one task, for one backbone and one protocol: ``recipe``
    without its prompt.

    ``gold`` holds the gold scores (p,) of the ``size`` = p pairs. ``encoded`` counts the sentences
    encoded so far.
    """

    def __init__(
        self, backbone: Backbone, task: STSTask, recipe: Recipe, cache: Cache | None = None
    ) -> None:
        pairs = task.pairs()
        self.backbone = backbone
        self.task = task
        self.recipe = recipe
        self.gold = pairs.gold
        self.size = len(pairs)
        self.encoded = 0
        row_of = row_of_sentences([task])
        self._sentences = list(row_of)
        first = [row_of[sentence] for sentence in pairs.first]
        second = [row_of[sentence] for sentence in pairs.second]
        self._sides = np.array([first, second])  # (2, p) rows
        self._cache = cache

    def encoder(self, template: str) -> TorchEncoder:
        """Return the encoder with a template."""
        return TorchEncoder(self.recipe.replace(prompt=template), self.backbone, {})

    def cosines(self, template: str, pairs: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        """Return the cosines (p,) of a template on the pairs with these numbers (p,), or on all.

        All pairs are encoded in the same batches as in ``eval``, a subset in small batches. On a
        GPU a subset has large batches, too: waiting costs more than padding there.
        """
        numbers = np.arange(self.size) if pairs is None else pairs
        encoder = self.encoder(template)
        key = {
            "fingerprint": encoder.fingerprint,
            "dtype": str(self.backbone.dtype),
            "data": self.task.sha256(),
            "pairs": numbers.tolist(),
        }
        cached = self._cache.get(key) if self._cache is not None else None
        if cached is not None:
            return np.array(cached)
        rows, (first, second) = np.unique(self._sides[:, numbers], return_inverse=True)
        is_small = pairs is not None and self.backbone.device.type != "cuda"
        sentences = [self._sentences[row] for row in rows]
        vectors = encoder.encode(sentences, batch_size=_SMALL_BATCH if is_small else None)
        self.encoded += len(rows)
        cosines = statistics.cosine(vectors[first], vectors[second])
        if self._cache is not None:
            self._cache.put(key, cosines.tolist())
        return cosines

    def score(self, templates: Sequence[str], stage: str, advance: Advance) -> list[Ranked]:
        """Score templates on all pairs, in their order.

        ``advance`` takes the number of newly scored pairs.
        """
        cosines = []
        for template in templates:
            cosines.append(self.cosines(template))
            advance(self.size)
        return rank(templates, np.stack(cosines), self.gold, stage)


class Rung(NamedTuple):
    """A comparison of some candidates on some pairs."""

    candidates: int
    pairs: int


def plan_rungs(candidates: int, pairs: int, finalists: int) -> list[Rung]:
    """Return the rungs before the final; none if there are few candidates or pairs."""
    rungs = []
    scored = float(max(_LEAST, pairs * _FIRST))
    while candidates > finalists and round(scored) < pairs:
        rungs.append(Rung(candidates, round(scored)))
        candidates = max(finalists, math.ceil(candidates / _CUT))
        scored *= _GROWTH
    return rungs


def spread_order(gold: NDArray[np.float64], seed: int) -> NDArray[np.intp]:
    """Return an order (p,) of the pairs in which every prefix covers all levels of the gold score
    evenly.

    The pairs are sorted by gold score, ties shuffled, and taken at the points of a shifted van der
    Corput sequence.
    """
    from scipy.stats import qmc  # slow to import, and not every search races

    generator = np.random.default_rng(seed)
    size = len(gold)
    by_gold = np.lexsort((generator.random(size), gold))
    count = 2 ** max(1, math.ceil(math.log2(size)))
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
    """Find the best templates; the order of the given ones does not matter.

    Return the ``finalists``, best first, and the earlier rungs. Only the finalists are scored on
    all pairs.
    """
    remaining = sorted(set(templates))
    order = spread_order(scorer.gold, seed)
    rungs = plan_rungs(len(remaining), scorer.size, finalists)
    final = Rung(finalists, scorer.size)
    cosines: dict[str, NDArray[np.float64]] = {template: np.empty(0) for template in remaining}
    scored = 0  # pairs of the earlier rungs
    with stage("race", None) as advance:
        for rung, following in itertools.pairwise([*rungs, final]):
            added = order[scored : rung.pairs]
            gold = scorer.gold[order[: rung.pairs]]
            values: dict[str, float] = {}
            for template in remaining:
                new = scorer.cosines(template, added)
                cosines[template] = np.concatenate([cosines[template], new])
                values[template] = statistics.spearman(cosines[template], gold)
                advance(len(added))
            # on ties in the order of their texts
            ranked = sorted(values, key=lambda template: (-values[template], template))
            remaining = ranked[: following.candidates]
            scored = rung.pairs
        finalists_scored = scorer.score(remaining, "final", advance)
    return sorted(finalists_scored, key=lambda item: (-item.value, item.choice)), rungs
