"""The search for the states that a recipe reads best: every layer and the usual means of two, from one pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from promptcli.data.sources import development_task
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder, Progress, build_encoder, silent
from promptcli.errors import UsageError
from promptcli.evaluation.evaluator import check_rankable, evaluate
from promptcli.recipe import Recipe
from promptcli.registry.entries import Entry
from promptcli.searching.head_luck import PoolingSearch, cross_validate
from promptcli.settings import BARE


@dataclass(frozen=True)
class RankedStates:
    """One pooling's figure."""

    pooling: str  #: STATES/WEIGHTS
    value: float  #: Spearman x 100 on the development pairs
    ci95: tuple[float, float]  #: 95% bootstrap interval over the pairs
    gain: float  #: points above the recipe's own pooling

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        interval = [round(bound, 4) for bound in self.ci95]
        return {"pooling": self.pooling, "value": round(self.value, 4), "ci95": interval, "gain": round(self.gain, 4)}


@dataclass(frozen=True)
class LayerSearch(PoolingSearch):
    """What a search found."""

    states: list[RankedStates]  #: best first
    own: RankedStates  #: the recipe's own pooling

    def entry(self, name: str) -> Entry:
        """Return the best as a registry entry, with how it was found."""
        return self.entry_of(name, self.states[0].value, compared=len(self.states))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values."""
        return {
            "states": [row.to_dict() for row in self.states],
            "own": self.own.to_dict(),
            "cross_validation": self.cross_validation.to_dict(),
        }


def search_layers(
    encoder: Encoder | str,
    on: STSTask | str | Path = BARE.development,
    *,
    weights: Sequence[str] = (),
    progress: Progress = silent,
    data_dir: Path | None = None,
    device: str = "auto",
    dtype: str = "float32",
    offline: bool = False,
) -> LayerSearch:
    """Rank the states of every layer, with some weights, by Spearman's correlation on development pairs.

    Args:
        encoder: Whose prompt and backbone: made, or a backbone's name.
        on: The development set: a task's name, a file of graded pairs, or loaded.
        weights: Of ``STATES/WEIGHTS``, e.g. ``avg``, ``last-token``; without any those of the encoder's recipe.
        progress: Called with the number of distinct sentences newly done.
        data_dir: SentEval folder of a task that is named.
        device: Of a backbone that is named.
        dtype: Of a backbone that is named.
        offline: Never use the network.

    Raises:
        UsageError: Unknown weights, transforms in the recipe, or pairs that cannot rank anything.
        NotFoundError: A backbone, a task or a file that is not there.

    Example:
        >>> found = search_layers("mini")  # doctest: +SKIP
        >>> found.states[0].pooling  # doctest: +SKIP
    """
    task = development_task(on, data_dir, offline=offline)
    check_rankable(task)
    if isinstance(encoder, str):
        encoder = build_encoder(Recipe(backbone=encoder), device=device, dtype=dtype, offline=offline)
    if encoder.transforms:
        raise UsageError(
            f"layers are compared without transforms, and the recipe has {', '.join(encoder.recipe.transforms)}; leave"
            " them out, and fit them on the layer found"
        )
    recipes = [encoder.recipe.replace(pooling=spec) for spec in _poolings(encoder, weights)]
    encoders = [Encoder(recipe, encoder.backbone, encoder.tensors()) for recipe in recipes]
    scores = evaluate(encoders, [task], progress=progress)
    own = scores[0].value
    rows = [
        RankedStates(made.recipe.pooling, score.value, score.ci95, score.value - own)
        for made, score in zip(encoders, scores, strict=True)
    ]
    order = sorted(range(len(rows)), key=lambda number: -rows[number].value)  # of equals the earlier
    cosines = np.stack([score.cosines for score in scores])
    return LayerSearch(
        states=[rows[number] for number in order],
        own=rows[0],
        cross_validation=cross_validate(cosines[None], cosines[:1], task.pairs().gold),
        encoder=encoders[order[0]],
        task=task,
    )


def _poolings(encoder: Encoder, weights: Sequence[str]) -> list[str]:
    """Return what is tried, the recipe's own pooling first."""
    layers = encoder.backbone.n_layers
    states = [*(f"layer-{layer}" for layer in range(layers)), "last", "first-last", "first-last:1"]
    tried = [f"{name}/{kind}" for kind in weights or [encoder.pooling.weights.spec] for name in states]
    return list(dict.fromkeys([encoder.recipe.pooling, *tried]))
