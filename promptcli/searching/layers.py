"""The search for the states that a recipe reads best: every layer and the usual means of two, from one pass."""

from collections.abc import Sequence

import numpy as np

from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder
from promptcli.errors import UsageError
from promptcli.evaluation.evaluator import check_rankable, evaluate
from promptcli.searching.search import Ranked, Search, cross_validate


def search_layers(encoder: Encoder, task: STSTask, *, weights: Sequence[str] = ()) -> Search:
    """Rank the states of every layer, with some weights, by Spearman's correlation on development pairs.

    Args:
        encoder: Whose prompt and backbone.
        task: The development set.
        weights: Of ``STATES/WEIGHTS``, e.g. ``avg``, ``last-token``; without any those of the encoder's recipe.

    Raises:
        UsageError: Unknown weights, transforms in the recipe, or pairs that cannot rank anything.
    """
    check_rankable(task)
    if encoder.transforms:
        raise UsageError(
            f"layers are compared without transforms, and the recipe has {', '.join(encoder.recipe.transforms)}; leave"
            " them out, and fit them on the layer found"
        )
    recipes = [encoder.recipe.replace(pooling=spec) for spec in _poolings(encoder, weights)]
    encoders = [Encoder(recipe, encoder.backbone, encoder.tensors()) for recipe in recipes]
    scores = evaluate(encoders, [task])
    own = scores[0].value
    rows = [
        Ranked(made.recipe.pooling, score.value, score.ci95, gain=score.value - own)
        for made, score in zip(encoders, scores, strict=True)
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
    """Return what is tried, the recipe's own pooling first."""
    layers = encoder.backbone.n_layers
    states = [*(f"layer-{layer}" for layer in range(layers)), "last", "first-last", "first-last:1"]
    tried = [f"{name}/{kind}" for kind in weights or [encoder.pooling.weights.spec] for name in states]
    return list(dict.fromkeys([encoder.recipe.pooling, *tried]))
