"""How alike an attention head's diagonal and TF-IDF weights are (Ditto, table 4). Knows token ids and arrays only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptcli.evaluation import statistics


@dataclass(frozen=True)
class Correlation:
    """Pearson's and Spearman's correlation of a head's diagonal with TF-IDF over tokens; 0 where not defined."""

    pearson: float
    spearman: float

    def to_dict(self) -> dict[str, float]:
        """Return the correlations as JSON-ready values."""
        return {"pearson": round(self.pearson, 4), "spearman": round(self.spearman, 4)}


def tfidf_weights(row: Sequence[int], idf: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the TF-IDF weight of each token of one sentence, (t,).

    The raw count times idf, the sentence's vector over its distinct terms scaled to length 1: gensim's defaults, from
    which the published weights were made.

    Args:
        row: t token ids.
        idf: (v,) of ``fit_idf``; the specials, in every sentence, weigh 0.
    """
    _, place, counts = np.unique(np.asarray(row), return_inverse=True, return_counts=True)
    terms = counts * np.asarray(idf, dtype=np.float64)[np.unique(np.asarray(row))]
    length = float(np.sqrt((terms**2).sum()))
    weights: NDArray[np.float64] = (terms / length if length > 0 else terms)[place]
    return weights


def correlate(diagonals: NDArray[np.floating], weights: NDArray[np.float64]) -> list[Correlation]:
    """Correlate k diagonals with the weights of the same tokens, the tokens of all sentences put together.

    Args:
        diagonals: (tokens, k).
        weights: (tokens,) TF-IDF.
    """
    return [Correlation(_pearson(column, weights), statistics.spearman(column, weights)) for column in diagonals.T]


def _pearson(first: NDArray[np.floating], second: NDArray[np.float64]) -> float:
    if len(second) < 2:
        return 0.0
    a, b = first.astype(np.float64) - first.mean(dtype=np.float64), second - second.mean()
    norms = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / norms) if norms > 0 else 0.0
