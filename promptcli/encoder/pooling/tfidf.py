"""``tfidf``: tokens weighted by TF-IDF of the backbone's own word pieces (Ditto, table 2); ``tfidf:word``: of words."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.states import Batch, HiddenStates
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling.tfidf_words import WordTfIdf
from promptcli.encoder.pooling.weights import PlainWeights, Weights, weighted_sum
from promptcli.errors import UsageError, unknown

TENSOR = "tfidf.idf"


class TfIdf(PlainWeights):
    """w_t = tf * idf: the raw count of the token in the sentence times log2(N / df); unseen tokens weigh 0.

    The specials are terms like all others: they stand in every sentence, so df = N and they weigh exactly 0. The
    published weights were gensim's (granularity unpublished); a document's scale does not matter to cosine.
    """

    spec = "tfidf"

    def __init__(self, context: BuildContext) -> None:
        if TENSOR not in context.tensors:
            raise UsageError(
                "weights 'tfidf' are fitted on a corpus: `promptcli fit --recipe first-last-tfidf --on FILE"
                " --name NAME`, then `--model NAME`"
            )
        self._idf = context.tensors[TENSOR].to(context.backbone.device)
        if len(self._idf) != len(context.backbone.token_rows):
            raise UsageError(
                f"the TF-IDF weights are for {len(self._idf)} tokens, backbone {context.backbone.name!r} has"
                f" {len(context.backbone.token_rows)}; fit them again"
            )

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return sum_t w_t x_t over real tokens, (n, d)."""
        real = batch.real()
        same = batch.ids.unsqueeze(2) == batch.ids.unsqueeze(1)
        counts = (same & real.unsqueeze(1)).sum(2)
        return weighted_sum(counts * self._idf[batch.ids] * real, states)

    def tensors(self) -> dict[str, Tensor]:
        """Return the idf, (v,)."""
        return {TENSOR: self._idf.cpu()}


def choose_granularity(context: BuildContext) -> Weights:
    """Return the weights of pieces, or those of words for ``tfidf:word``.

    Raises:
        UsageError: Another argument, or weights that were not fitted.
    """
    if context.argument not in (None, "word"):
        raise unknown("granularity of 'tfidf'", str(context.argument), ["word", "or none, which means word pieces"])
    return WordTfIdf(context) if context.argument else TfIdf(context)


def fit_idf(rows: Iterable[Sequence[int]], vocabulary: int) -> Tensor:
    """Return idf = log2(N / df), (v,) float32, 0 for tokens that never occur.

    Args:
        rows: N tokenised sentences, specials included.
        vocabulary: v.
    """
    frequency = np.zeros(vocabulary, dtype=np.int64)
    documents = 0
    for row in rows:
        frequency[np.unique(np.asarray(row, dtype=np.int64))] += 1
        documents += 1
    idf = np.zeros(vocabulary)
    np.log2(documents / np.maximum(frequency, 1), out=idf, where=frequency > 0)
    return torch.from_numpy(idf.astype(np.float32))
