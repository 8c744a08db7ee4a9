"""The search for the attention head whose diagonal weighs tokens best (Ditto, section 2): all heads from one pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.analysis.head_tfidf import Correlation, correlate, tfidf_weights
from promptcli.analysis.sentence import corpus_idf
from promptcli.backbones.backbone import Backbone
from promptcli.data.sources import development_task, fitting_sentences
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder, Progress, build_encoder, silent
from promptcli.errors import unknown
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import check_rankable
from promptcli.recipe import Recipe
from promptcli.registry.entries import Entry
from promptcli.searching.head_luck import PoolingSearch, correlations, cross_validate
from promptcli.searching.head_pass import HeadCosines, head_cosines
from promptcli.settings import BARE

#: The states that a head is tried on (Ditto, table 2).
SEARCHED = ("static", "last", "first-last")

Interval = tuple[float, float]


@dataclass(frozen=True)
class RankedHead:
    """One head on one kind of states."""

    head: str  #: layer-head, 1-based
    states: str  #: one of ``SEARCHED``
    value: float  #: Spearman x 100 on the development pairs
    ci95: Interval  #: 95% bootstrap interval over the pairs
    gain: float  #: points above the plain average of the same states
    tfidf: Correlation  #: how alike its diagonal and TF-IDF are

    @property
    def pooling(self) -> str:
        """The pooling of its recipe, e.g. ``first-last/ditto:1-10``."""
        return f"{self.states}/ditto:{self.head}"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        row = {"head": self.head, "states": self.states, "value": round(self.value, 4), "ci95": rounded(self.ci95)}
        return {**row, "gain": round(self.gain, 4), "tfidf": self.tfidf.to_dict()}


@dataclass(frozen=True)
class HeadSearch(PoolingSearch):
    """What a search found."""

    heads: list[RankedHead]  #: the best of all heads on all states, best first
    values: dict[str, NDArray[np.float64]]  #: states -> (L, h) Spearman x 100
    baseline: dict[str, tuple[float, Interval]]  #: states -> Spearman x 100 of their plain average, and its interval
    corpus: int  #: sentences that idf was counted on

    def entry(self, name: str) -> Entry:
        """Return the best head as a registry entry, with how it was found."""
        return self.entry_of(name, self.heads[0].value, states=list(self.values))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values."""
        return {
            "heads": [head.to_dict() for head in self.heads],
            "baseline": {
                states: {"value": round(value, 4), "ci95": rounded(interval)}
                for states, (value, interval) in self.baseline.items()
            },
            "maps": {states: [rounded(row) for row in rows.tolist()] for states, rows in self.values.items()},
            "cross_validation": self.cross_validation.to_dict(),
        }


def search_heads(
    backbone: Backbone | str,
    on: STSTask | str | Path = BARE.development,
    corpus: Sequence[str] | str | Path = BARE.corpus,
    *,
    states: Sequence[str] = SEARCHED,
    top: int = 10,
    progress: Progress = silent,
    data_dir: Path | None = None,
    device: str = "auto",
    dtype: str = "stored",
    offline: bool = False,
) -> HeadSearch:
    """Rank all L*h heads on each kind of states by Spearman's correlation on the pairs of a development set.

    Args:
        backbone: Whose heads: loaded, or its name.
        on: The development set: a task's name, a file of graded pairs, or loaded.
        corpus: Sentences that the idf of the TF-IDF correlation is counted on, or a file, a task or ``demo``; blank
            ones are left out.
        states: Out of ``SEARCHED``.
        top: How many heads to describe.
        progress: Called with the number of distinct sentences newly done.
        data_dir: SentEval folder of a task that is named.
        device: Of a backbone that is named.
        dtype: Of a backbone that is named.
        offline: Never use the network.

    Raises:
        UsageError: Unknown states, pairs that cannot rank anything, no corpus, or a backbone that does not open its
            attention.
        NotFoundError: A backbone, a task or a file that is not there.

    Example:
        >>> found = search_heads("mini", states=["first-last"])  # doctest: +SKIP
        >>> found.heads[0].head, found.recipe.pooling  # doctest: +SKIP
    """
    for name in states:
        if name not in SEARCHED:
            raise unknown("states", name, SEARCHED)
    states = [name for name in SEARCHED if name in states]
    task = development_task(on, data_dir, offline=offline)
    check_rankable(task)
    if isinstance(corpus, str | Path):
        corpus = fitting_sentences(str(corpus), data_dir, offline=offline)
    if isinstance(backbone, str):
        encoder = build_encoder(Recipe(backbone=backbone), device=device, dtype=dtype, offline=offline)
    else:
        encoder = Encoder(Recipe(backbone=backbone.name), backbone, {})
    return _ranked(encoder, task, corpus, states, top, progress)


def _ranked(
    encoder: Encoder, task: STSTask, corpus: Sequence[str], states: Sequence[str], top: int, progress: Progress
) -> HeadSearch:
    backbone, pairs = encoder.backbone, task.pairs()
    idf = corpus_idf(encoder, corpus)
    found = head_cosines(encoder, pairs.first, pairs.second, states, progress=progress)
    flat = found.heads.reshape(-1, len(pairs))
    once = np.ones((len(pairs), 1))
    values, plain = (100 * correlations(rows, pairs.gold, once)[:, 0] for rows in (flat, found.plain))
    best = np.argsort(-values, kind="stable")[:top]
    intervals = statistics.bootstrap_intervals(np.concatenate([flat[best], found.plain]), pairs.gold)
    intervals = [(100 * low, 100 * high) for low, high in intervals]
    count = found.heads.shape[1]
    alike = _tfidf(encoder, found, best % count, idf)
    heads = [
        RankedHead(
            head=f"{place % count // backbone.n_heads + 1}-{place % backbone.n_heads + 1}",
            states=states[place // count],
            value=float(values[place]),
            ci95=intervals[rank],
            gain=float(values[place] - plain[place // count]),
            tfidf=alike[rank],
        )
        for rank, place in enumerate(best.tolist())
    ]
    maps = values.reshape(len(states), backbone.n_layers, backbone.n_heads)
    return HeadSearch(
        heads=heads,
        values=dict(zip(states, maps, strict=True)),
        baseline=dict(zip(states, zip(plain.tolist(), intervals[len(best) :], strict=True), strict=True)),
        cross_validation=cross_validate(found.heads, found.plain, pairs.gold),
        encoder=Encoder(encoder.recipe.replace(pooling=heads[0].pooling), backbone, {}),
        task=task,
        corpus=len(corpus),
    )


def rounded(figures: Sequence[float]) -> list[float]:
    """Return figures as results print them."""
    return [round(figure, 4) for figure in figures]


def _tfidf(
    encoder: Encoder, found: HeadCosines, heads: NDArray[np.int64], idf: NDArray[np.float32]
) -> list[Correlation]:
    """Correlate some heads over the words of every distinct sentence; the specials are no words."""
    words = slice(len(encoder.template.left), -len(encoder.template.right) or None)
    diagonals = np.concatenate([rows[words, heads] for rows in found.diagonals])
    weights = np.concatenate([tfidf_weights(row, idf)[words] for row in found.rows])
    return correlate(diagonals, weights)
