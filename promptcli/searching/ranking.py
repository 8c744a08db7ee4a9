"""The rankings from one pass: of the heads whose diagonals weigh tokens (Ditto, section 2), and of the layers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from promptcli.analysis.sentence import Correlation, corpus_idf, correlate, tfidf_weights
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder
from promptcli.errors import UsageError, unknown
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import check_rankable, evaluate
from promptcli.recipe import Recipe
from promptcli.searching.head_pass import HeadCosines, head_cosines
from promptcli.searching.search import Ranked, Search, correlations, cross_validate
from promptcli.searching.search_settings import SEARCHED


def rank_heads(encoder: Encoder, task: STSTask, corpus: Sequence[str], states: Sequence[str], top: int) -> Search:
    """Rank all L*h heads on each kind of states by Spearman's correlation; see ``search_heads``."""
    for kind in states:
        if kind not in SEARCHED:
            raise unknown("states", kind, SEARCHED)
    states = [kind for kind in SEARCHED if kind in states]
    check_rankable(task)
    backbone, pairs = encoder.backbone, task.pairs()
    encoder = Encoder(Recipe(backbone=backbone.name), backbone, encoder.tensors())
    idf = corpus_idf(encoder, corpus)
    cosines = head_cosines(encoder, pairs.first, pairs.second, states)
    flat = cosines.heads.reshape(-1, len(pairs))
    once = np.ones((len(pairs), 1))
    values, plain = (100 * correlations(rows, pairs.gold, once)[:, 0] for rows in (flat, cosines.plain))
    best = np.argsort(-values, kind="stable")[:top]
    intervals = statistics.bootstrap_intervals(np.concatenate([flat[best], cosines.plain]), pairs.gold)
    intervals = [(100 * low, 100 * high) for low, high in intervals]
    count = cosines.heads.shape[1]
    tfidf = _tfidf(encoder, cosines, best % count, idf)
    ranked = [
        Ranked(
            f"{states[place // count]}/ditto:{place % count // backbone.n_heads + 1}-{place % backbone.n_heads + 1}",
            float(values[place]),
            intervals[rank],
            gain=float(values[place] - plain[place // count]),
            tfidf=tfidf[rank],
        )
        for rank, place in enumerate(best.tolist())
    ]
    averages = zip(states, plain.tolist(), intervals[len(best) :], strict=True)
    maps = values.reshape(len(states), backbone.n_layers, backbone.n_heads)
    return Search(
        encoder=Encoder(encoder.recipe.replace(pooling=ranked[0].choice), backbone, encoder.tensors()),
        task=task,
        ranked=ranked,
        about={"states": states, "compared": f"{len(values)} heads", "idf": len(corpus)},
        baseline={kind: Ranked(f"{kind}/avg", value, interval) for kind, value, interval in averages},
        maps=dict(zip(states, maps, strict=True)),
        cross_validation=cross_validate(cosines.heads, cosines.plain, pairs.gold),
    )


def _tfidf(
    encoder: Encoder, cosines: HeadCosines, heads: NDArray[np.int64], idf: NDArray[np.float32]
) -> list[Correlation]:
    """Correlate some heads with TF-IDF over all tokens of every distinct sentence but the special ones."""
    words = slice(len(encoder.template.left), -len(encoder.template.right) or None)
    diagonals = np.concatenate([rows[words, heads] for rows in cosines.diagonals])
    weights = np.concatenate([tfidf_weights(row, idf)[words] for row in cosines.rows])
    return correlate(diagonals, weights)


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
