"""The search for the states that a recipe reads best: every layer and the usual means of two, from one pass."""

from collections.abc import Sequence

import numpy as np

from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder
from promptcli.errors import UsageError
from promptcli.evaluation.evaluator import check_rankable, evaluate
from promptcli.searching.search import Ranked, Search, cross_validate


def rank_layers(encoder: Encoder, task: STSTask, weights: Sequence[str]) -> Search:
    """Rank the states of every layer, with some weights, by Spearman's correlation; see ``search_layers``."""
    check_rankable(task)
    if encoder.transforms:
        raise UsageError(
            f"layers are compared without transforms, and the recipe has {', '.join(encoder.recipe.transforms)}; leave"
            " them out, and fit them on the best layer"
        )
    recipes = [encoder.recipe.replace(pooling=spec) for spec in _poolings(encoder, weights)]
    encoders = [Encoder(recipe, encoder.backbone, encoder.tensors()) for recipe in recipes]
    scores = evaluate(encoders, [task])
    before = scores[0].value
    rows = [
        Ranked(recipe.pooling, score.value, score.ci95, gain=score.value - before)
        for recipe, score in zip(recipes, scores, strict=True)
    ]
    order = sorted(range(len(rows)), key=lambda number: -rows[number].value)  # of equals the earlier
    cosines = np.stack([score.cosines for score in scores])
    return Search(
        encoder=encoders[order[0]],
        task=task,
        ranked=[rows[number] for number in order],
        about={"compared": f"{len(rows)} poolings"},
        baseline={"own": rows[0]},
        cross_validation=cross_validate(cosines[None], cosines[:1], task.pairs().gold),
    )


def _poolings(encoder: Encoder, weights: Sequence[str]) -> list[str]:
    """Return the poolings to try, the recipe's own first."""
    layers = encoder.backbone.n_layers
    states = [*(f"layer-{layer}" for layer in range(layers)), "last", "first-last", "first-last:1"]
    tried = [f"{kind}/{spec}" for spec in weights or [encoder.pooling.weights.spec] for kind in states]
    return list(dict.fromkeys([encoder.recipe.pooling, *tried]))
