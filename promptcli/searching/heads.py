"""The search for the attention head whose diagonal weighs tokens best (Ditto, section 2): all heads from one pass."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from promptcli.analysis.sentence import Correlation, corpus_idf, correlate, tfidf_weights
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder
from promptcli.errors import unknown
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import check_rankable, distinct_sentences
from promptcli.notes import working
from promptcli.recipe import Recipe
from promptcli.searching.head_pass import HeadCosines, head_cosines
from promptcli.searching.search import Ranked, Search, correlations, cross_validate

#: The states that a head is tried on (Ditto, table 2).
SEARCHED = ("static", "last", "first-last")


def search_heads(
    encoder: Encoder,
    task: STSTask,
    corpus: Sequence[str],
    *,
    states: Sequence[str] = SEARCHED,
    top: int = 10,
) -> Search:
    """Rank all L*h heads on each kind of states by Spearman's correlation on the pairs of a development set.

    Args:
        encoder: Its backbone's heads, behind its prompt; its pooling is not used.
        task: The development set.
        corpus: Sentences that the idf of the TF-IDF correlation is counted on; blank ones are left out.
        states: Out of ``SEARCHED``.
        top: How many heads to describe.

    Raises:
        UsageError: Unknown states, pairs that cannot rank anything, no corpus, transforms, or a backbone that does not
            open its attention.
    """
    for name in states:
        if name not in SEARCHED:
            raise unknown("states", name, SEARCHED)
    states = [name for name in SEARCHED if name in states]
    check_rankable(task)
    backbone, pairs = encoder.backbone, task.pairs()
    encoder = Encoder(Recipe(backbone=backbone.name), backbone, encoder.tensors())
    idf = corpus_idf(encoder, corpus)
    with working("ditto-search", len(distinct_sentences([task]))) as advance:
        found = head_cosines(encoder, pairs.first, pairs.second, states, progress=advance)
    flat = found.heads.reshape(-1, len(pairs))
    once = np.ones((len(pairs), 1))
    values, plain = (100 * correlations(rows, pairs.gold, once)[:, 0] for rows in (flat, found.plain))
    best = np.argsort(-values, kind="stable")[:top]
    intervals = statistics.bootstrap_intervals(np.concatenate([flat[best], found.plain]), pairs.gold)
    intervals = [(100 * low, 100 * high) for low, high in intervals]
    count = found.heads.shape[1]
    alike = _tfidf(encoder, found, best % count, idf)
    ranked = [
        Ranked(
            f"{states[place // count]}/ditto:{place % count // backbone.n_heads + 1}-{place % backbone.n_heads + 1}",
            float(values[place]),
            intervals[rank],
            gain=float(values[place] - plain[place // count]),
            tfidf=alike[rank],
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
        baseline={name: Ranked(f"{name}/avg", value, interval) for name, value, interval in averages},
        maps=dict(zip(states, maps, strict=True)),
        cross_validation=cross_validate(found.heads, found.plain, pairs.gold),
    )


def _tfidf(
    encoder: Encoder, found: HeadCosines, heads: NDArray[np.int64], idf: NDArray[np.float32]
) -> list[Correlation]:
    """Correlate some heads over the words of every distinct sentence; the specials are no words."""
    words = slice(len(encoder.template.left), -len(encoder.template.right) or None)
    diagonals = np.concatenate([rows[words, heads] for rows in found.diagonals])
    weights = np.concatenate([tfidf_weights(row, idf)[words] for row in found.rows])
    return correlate(diagonals, weights)
