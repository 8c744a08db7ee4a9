"""``tfidf:word``: TF-IDF of whole words, copied to their pieces; the unpublished granularity's other reading."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, HiddenStates
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling.weights import PlainWeights, weighted_sum
from promptcli.encoder.pooling.words import Word, Words
from promptcli.errors import UsageError

#: The words' pieces one after the other, the number of each word's pieces, and each word's idf.
PIECES, LENGTHS, IDF = "tfidf.word_pieces", "tfidf.word_lengths", "tfidf.word_idf"


class WordTfIdf(PlainWeights):
    """w_t = tf * idf of the word that piece t belongs to; unseen words weigh 0, the specials too (df = N).

    Words are the tokenizer's own, in its case (see ``Words``).
    """

    spec = "tfidf:word"

    def __init__(self, context: BuildContext) -> None:
        if IDF not in context.tensors:
            raise UsageError(
                "weights 'tfidf:word' are fitted on a corpus: `promptcli fit --pooling first-last/tfidf:word --on FILE"
                " --name NAME`, then `--model NAME`"
            )
        self._tensors = {name: context.tensors[name].cpu() for name in (PIECES, LENGTHS, IDF)}
        pieces, ends = self._tensors[PIECES].tolist(), self._tensors[LENGTHS].cumsum(0).tolist()
        words = (tuple(pieces[start:end]) for start, end in itertools.pairwise([0, *ends]))
        self._idf: dict[Word, float] = dict(zip(words, self._tensors[IDF].tolist(), strict=True))
        self._words = Words(context.backbone)

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return sum_t w_t x_t over real tokens, (n, d)."""
        weights = torch.zeros(batch.ids.shape)
        for row, (ids, length) in enumerate(zip(batch.ids.tolist(), batch.lengths.tolist(), strict=True)):
            weights[row, :length] = torch.tensor(self._weigh(ids[:length]))
        return weighted_sum(weights.to(states.device), states)

    def _weigh(self, ids: Sequence[int]) -> list[float]:
        """Return the weight of each piece of one sentence, (t,)."""
        words = self._words.cut(ids)
        counts = Counter(words)
        return [counts[word] * self._idf.get(word, 0.0) for word in words for _ in word]

    def tensors(self) -> dict[str, Tensor]:
        """Return the words and their idf."""
        return self._tensors


def fit_word_idf(rows: Iterable[Sequence[int]], backbone: Backbone) -> dict[str, Tensor]:
    """Return every word's idf = log2(N / df), float32, the words in the order of first appearance.

    Args:
        rows: N tokenised sentences, specials included.
        backbone: Whose tokens they are.
    """
    words = Words(backbone)
    frequency: Counter[Word] = Counter()
    documents = 0
    for row in rows:
        frequency.update(dict.fromkeys(words.cut(row)).keys())
        documents += 1
    counts = np.fromiter(frequency.values(), np.int64, len(frequency))
    return {
        PIECES: torch.tensor([piece for word in frequency for piece in word], dtype=torch.int32),
        LENGTHS: torch.tensor([len(word) for word in frequency], dtype=torch.int32),
        IDF: torch.from_numpy(np.log2(documents / np.maximum(counts, 1)).astype(np.float32)),
    }
