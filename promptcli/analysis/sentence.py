"""One sentence token by token: its input, TF-IDF weights, and one attention head on it.

Ditto's figure 2 (a head's matrix; its diagonal is Ditto's weights) and table 4 (diagonals and TF-IDF).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Needs
from promptcli.encoder.batching import make_batch
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.pooling.tfidf import fit_idf
from promptcli.errors import UsageError
from promptcli.evaluation import statistics
from promptcli.recipe import Recipe


@dataclass(frozen=True)
class Correlation:
    """Pearson's and Spearman's correlation with TF-IDF over tokens; 0 if undefined."""

    pearson: float
    spearman: float

    def to_dict(self) -> dict[str, float]:
        """Return the correlations as JSON-ready values."""
        return {"pearson": round(self.pearson, 4), "spearman": round(self.spearman, 4)}


def tfidf_weights(row: Sequence[int], idf: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the TF-IDF weight of each of a sentence's t token ids, (t,), by the idf (v,) of ``fit_idf``.

    The raw count times idf, the sentence's vector over its distinct terms scaled to length 1: gensim's defaults, used
    for the published weights. Special tokens, in every sentence, weigh 0.
    """
    _, place, counts = np.unique(np.asarray(row), return_inverse=True, return_counts=True)
    terms = counts * np.asarray(idf, dtype=np.float64)[np.unique(np.asarray(row))]
    length = float(np.sqrt((terms**2).sum()))
    weights: NDArray[np.float64] = (terms / length if length > 0 else terms)[place]
    return weights


def correlate(values: NDArray[np.floating], weights: NDArray[np.float64]) -> Correlation:
    """Correlate values of tokens (t,), e.g. a head's diagonals, with the TF-IDF weights (t,) of the same tokens."""
    a, b = values.astype(np.float64) - values.mean(dtype=np.float64), weights - weights.mean()
    norms = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return Correlation(float((a * b).sum() / norms) if norms > 0 else 0.0, statistics.spearman(values, weights))


def plain_encoder(backbone: Backbone) -> Encoder:
    """Return an encoder without a template, for its inputs."""
    return Encoder(Recipe(backbone=backbone.name), backbone, {})


def corpus_idf(encoder: Encoder, corpus: Sequence[str]) -> NDArray[np.float32]:
    """Return idf (v,), counted on the encoder's inputs of the sentences that are not empty."""
    texts = [sentence for sentence in corpus if sentence.strip()]
    if not texts:
        raise UsageError("`corpus` has no sentence to count idf on; give a file, or demo")
    idf: NDArray[np.float32] = fit_idf(encoder.inputs(texts).rows, len(encoder.backbone.token_rows)).numpy()
    return idf


def tokenize(encoder: Encoder, sentence: str) -> list[int]:
    """Return the t token ids of a sentence, the special token at either end included."""
    inputs = encoder.inputs([sentence])
    backbone, ids = encoder.backbone, inputs.rows[0]
    if inputs.truncated[0]:
        count = len(backbone.tokenizer.encode(encoder.pieces([sentence]))[0])
        raise UsageError(
            f"the sentence has {count} tokens, and backbone {backbone.name!r} has room for"
            f" {encoder.max_length - encoder.template.length}; give a shorter one: {sentence[:40]!r}..."
        )
    if len(ids) == encoder.template.length:
        raise UsageError(f"the sentence {sentence[:40]!r} has no tokens; give one with words")
    return ids


@dataclass(frozen=True)
class Attention:
    """One head on one sentence."""

    head: str  #: layer-head, 1-based
    tokens: list[str]  #: t vocabulary items, special ones included
    matrix: NDArray[np.float64]  #: (t, t), a_ij: attention of token i to token j; rows add up to 1

    @property
    def diagonal(self) -> NDArray[np.float64]:
        """a_ii, (t,): the weights of Ditto pooling."""
        return np.diagonal(self.matrix)


def attention(backbone: Backbone, sentence: str, head: str | None = None) -> Attention:
    """Return one head's attention on one sentence; ``head`` is layer-head, 1-based, None the best known one."""
    pooling = "last/ditto" if head is None else f"last/ditto:{head}"
    encoder = Encoder(Recipe(backbone=backbone.name, pooling=pooling), backbone, {})
    name = encoder.pooling.weights.spec.removeprefix("ditto:")
    layer, number = (int(number) - 1 for number in name.split("-"))
    ids = tokenize(encoder, sentence)
    batch = make_batch([ids], None, backbone.tokenizer.pad, backbone.device, len(ids))
    with torch.inference_mode():
        matrices = backbone.run(batch, Needs(matrices=frozenset({layer}))).matrices[layer]
    tokens = [backbone.tokenizer.text(token) for token in ids]
    return Attention(name, tokens, matrices[0, number].double().cpu().numpy())
