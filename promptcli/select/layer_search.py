"""The search for the layer that a recipe reads best, in one pass over the sentences."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.prompts.causal import Contrastive
from promptcli.errors import UsageError
from promptcli.evaluation.evaluator import score_encoders
from promptcli.evaluation.scores import SpearmanScore
from promptcli.models.loading import Model
from promptcli.select.search import ScoredChoice, SearchResult, cross_validate, open_search
from promptcli.settings import BUILT_IN

_LAYER_COUNT = 8  # layers of a contrastive prompt to try, spread over the first half of the model
_FACTORS = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0)  # C of a contrastive prompt


def search_layers(
    model: Model = BUILT_IN.backbone,
    on: str | Path | STSTask | None = None,
    *,
    weights: Sequence[str] = (),
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
) -> SearchResult:
    """Rank the layers of a backbone as a recipe reads them, in one pass.

    The candidates are every layer (0: the embeddings), the last, and the means of first and last.
    For a recipe of ``attention`` or ``values``, its first layers and its last layers are added, and
    for ``values`` each layer alone. A contrastive prompt's own layer and C are also chosen, one
    pass for each.

    Args:
        model: An encoder, or what ``load`` takes; a backbone's name means its plain recipe.
        on: Development set, see ``search_heads``.
        weights: Weights to try on every layer: ``avg``, ``last-token``. Default: the recipe's.
        name: Save the best as a model under this name.
        force: Replace a model of that name.
        data_dir: SentEval folder of the tasks.

    Returns:
        The poolings, best first, in Spearman x 100, and the selection bias.

    Raises:
        UsageError: Unknown weights, transforms in the recipe, a taken name, or pairs that cannot
            rank anything.
        NotFoundError: A model, a task or a file is missing.

    Example:
        >>> search_layers("mini-bert").best.choice  # doctest: +SKIP
    """
    task, encoder = open_search(model, on, name, force=force, data_dir=data_dir)
    if encoder.transforms:
        transforms = ", ".join(encoder.recipe.transforms)
        raise UsageError(
            f"layers are compared without transforms; leave out {transforms}, then fit on the best"
            " layer"
        )
    backbone = encoder.backbone
    own = encoder.recipe
    prompt = encoder.prompt
    poolings = _poolings(encoder, weights)
    scores: list[tuple[TorchEncoder, SpearmanScore]] = []

    def score_prompts(prompts: Iterable[str]) -> TorchEncoder:
        """Score every pooling under each prompt, one pass for a prompt; return the best encoder so
        far.
        """
        for spec in prompts:
            recipes = [own.replace(prompt=spec, pooling=pooling) for pooling in poolings]
            encoders = [TorchEncoder(recipe, backbone, encoder.tensors()) for recipe in recipes]
            scores.extend(zip(encoders, score_encoders(encoders, [task]), strict=True))
        return max(scores, key=lambda pair: pair[1].value)[0]  # on ties the earlier

    best = score_prompts([own.prompt])
    if isinstance(prompt, Contrastive):  # the layer first, then C there
        half = np.linspace(0, backbone.n_layers // 2, _LAYER_COUNT).round().astype(int)
        layers = [layer for layer in dict.fromkeys(half.tolist()) if layer != prompt.layer]
        best = score_prompts(prompt.with_subtraction(layer, prompt.factor) for layer in layers)
        assert isinstance(best.prompt, Contrastive)
        layer = best.prompt.layer
        factors = [factor for factor in _FACTORS if factor != prompt.factor]
        best = score_prompts(prompt.with_subtraction(layer, factor) for factor in factors)
    own_value = scores[0][1].value
    rows = []
    for layer_encoder, score in scores:
        choice = layer_encoder.recipe.pooling
        if isinstance(layer_encoder.prompt, Contrastive):
            choice = f"{layer_encoder.prompt.settings} {choice}"
        gain = score.value - own_value
        rows.append(ScoredChoice(choice, score.value, score.ci95, gain=gain))
    cosines = np.stack([score.cosines for _, score in scores])
    search = SearchResult(
        encoder=best,
        task=task,
        ranked=sorted(rows, key=lambda row: -row.value),
        compared_in_words=f"{len(rows)} poolings",
        settings={},
        baselines={"own": rows[0]},
        cross_validation=cross_validate(cosines[None], cosines[:1], task.pairs().gold),
    )
    return search if name is None else search.save(name, force=force)


def _poolings(encoder: TorchEncoder, weights: Sequence[str]) -> list[str]:
    """Return the poolings to try, the recipe's own first.

    For ``attention`` and ``values``, the first layers and the last; for ``values`` also each layer
    alone.
    """
    layers = encoder.backbone.n_layers
    own = encoder.recipe.parts.pooling.states.name
    states = [*(f"layer-{layer}" for layer in range(layers)), "last", "first-last", "first-last:1"]
    if own in ("attention", "values"):
        states += [f"{own}:{first}-{layers}" for first in range(1, layers + 1)]
        states += [f"{own}:1-{last}" for last in range(1, layers)]
    if own == "values":  # the values of each layer have their own basis
        states += [f"{own}:{layer}-{layer}" for layer in range(2, layers)]
    poolings = [encoder.recipe.pooling]
    for spec in weights or [encoder.pooling.weights.spec]:
        poolings += [f"{kind}/{spec}" for kind in states]
    return list(dict.fromkeys(poolings))
