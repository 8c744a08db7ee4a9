"""TF-IDF weights of a sentence's tokens, and their correlation with other values of the tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.pooling.tfidf import fit_idf
from promptcli.errors import UsageError
from promptcli.evaluation import statistics


@dataclass(frozen=True)
class Correlation:
    """Pearson's and Spearman's correlation with TF-IDF over tokens; 0 if undefined."""

    pearson: float
    spearman: float


def tfidf_weights(row: Sequence[int], idf: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the TF-IDF weight of each of a sentence's t token ids, (t,), by idf (v,).

    A weight is the raw count times idf, and the sentence's vector over its distinct terms is scaled
    to length 1: gensim's defaults, as for the published weights. Special tokens occur in every
    sentence and have weight 0.
    """
    distinct, place, counts = np.unique(np.asarray(row), return_inverse=True, return_counts=True)
    terms = counts * np.asarray(idf, dtype=np.float64)[distinct]
    length = float(np.sqrt((terms**2).sum()))
    if length > 0:
        terms = terms / length
    weights: NDArray[np.float64] = terms[place]
    return weights


def correlate(values: NDArray[np.floating], weights: NDArray[np.float64]) -> Correlation:
    """Correlate values of tokens (t,), e.g. a head's diagonals, with the TF-IDF weights (t,) of the
    same tokens.
    """
    with np.errstate(invalid="ignore"):  # constant values
        pearson = np.corrcoef(values.astype(np.float64), weights)[0, 1]
    return Correlation(float(np.nan_to_num(pearson)), statistics.spearman(values, weights))


def corpus_idf(encoder: TorchEncoder, corpus: Sequence[str]) -> NDArray[np.float32]:
    """Return idf (v,), counted on the encoder's inputs of all non-empty sentences."""
    texts = [sentence for sentence in corpus if sentence.strip()]
    if not texts:
        raise UsageError(
            "has no sentence to count idf on; give a file, or demo", parameter="corpus"
        )
    idf: NDArray[np.float32] = fit_idf(
        encoder.inputs(texts).ids, len(encoder.backbone.word_embeddings)
    ).numpy()
    return idf
