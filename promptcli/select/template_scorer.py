"""Scoring many templates on one development set, each sentence tokenised once, by the encoder that
``eval`` uses.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import TorchEncoder, encode_together
from promptcli.encoder.template import Inputs
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import check_rankable, row_of_sentences
from promptcli.notes import Advance
from promptcli.recipe import MASK, RECIPES, SLOT, Recipe
from promptcli.select.search import Ranked
from promptcli.storage.cache import Cache

#: Sentences of a subset in one pass. Sorted by length and in small batches they are hardly padded;
#: the 150 or so of a rung under the full token budget would be one or two batches, a third of them
#: padding (STS-B dev).
_TOGETHER = 32

#: What is searched: a template read at its mask (PromptBERT eq. 2), period rule on as in its
#: evaluation.
PROTOCOL = Recipe(prompt=f"{SLOT} {MASK} .", period=True, pooling="last/mask")
#: Examples in front of PromptEOL's template, read at the last token.
DEMONSTRATIONS = RECIPES["prompteol"].replace(period=True)


class TemplateScorer:
    """Cosines and figures of templates on one task, for one backbone and one protocol (``recipe``
    without its prompt).

    ``gold`` holds the (p,) gold scores of the ``size`` = p pairs; ``tokens`` counts the tokens
    encoded so far.
    """

    def __init__(
        self,
        backbone: Backbone,
        task: STSTask,
        *,
        recipe: Recipe = PROTOCOL,
        cache: Cache | None = None,
    ) -> None:
        check_rankable(task)
        pairs = task.pairs()
        self.backbone = backbone
        self.task = task
        self.recipe = recipe
        self.gold = pairs.gold
        self.size = len(pairs)
        self.tokens = 0
        row_of = row_of_sentences([task])
        self._sentences = list(row_of)
        self._first = np.array([row_of[sentence] for sentence in pairs.first])
        self._second = np.array([row_of[sentence] for sentence in pairs.second])
        self._ids: dict[str, list[int]] = {}  # of each prepared sentence
        self._cache = cache

    def encoder(self, template: str) -> TorchEncoder:
        """Return the encoder of a template, sharing the sentences' tokens with every other one of
        this scorer.
        """
        return _SharedTokens(self.recipe.replace(prompt=template), self)

    def cosines(self, template: str, pairs: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        """Return the cosines (p,) of a template on the pairs with these numbers (p,), or on all."""
        wanted = np.arange(self.size) if pairs is None else pairs
        encoder = self.encoder(template)
        key = {
            "fingerprint": encoder.fingerprint,
            "dtype": str(self.backbone.dtype),
            "data": self.task.sha256(),
            "pairs": wanted.tolist(),
        }
        cached = self._cache.get(key) if self._cache is not None else None
        if cached is not None:
            return np.array(cached)
        first = self._first[wanted]
        second = self._second[wanted]
        rows = np.unique(np.concatenate([first, second]))
        vectors = self._encode(encoder, rows, complete=pairs is None)
        cosines = statistics.cosine(
            vectors[np.searchsorted(rows, first)], vectors[np.searchsorted(rows, second)]
        )
        if self._cache is not None:
            self._cache.put(key, cosines.tolist())
        return cosines

    def _encode(
        self, encoder: TorchEncoder, rows: NDArray[np.intp], *, complete: bool
    ) -> NDArray[np.float32]:
        """Return the vectors (n, d) of sentences: of all in the same batches as ``eval``'s, of a
        subset in small ones.

        On a GPU a subset has large batches too: a wait costs more than padding there.
        """
        sentences = [self._sentences[row] for row in rows]
        if complete or self.backbone.device.type == "cuda":
            return encode_together([encoder], sentences)[0].vectors
        order = np.argsort([len(sentence) for sentence in sentences], kind="stable")
        encoded = [
            encode_together([encoder], [sentences[row] for row in part])[0].vectors
            for part in np.array_split(order, math.ceil(len(order) / _TOGETHER))
        ]
        return np.asarray(np.concatenate(encoded)[np.argsort(order)])

    def score(
        self, templates: Sequence[str], stage: str = "all", advance: Advance = lambda pairs: None
    ) -> list[Ranked]:
        """Score templates on all pairs, in their order.

        ``advance`` takes the number of pairs newly done.
        """
        cosines = []
        for template in templates:
            cosines.append(self.cosines(template))
            advance(self.size)
        intervals = statistics.bootstrap_intervals(np.stack(cosines), self.gold)
        ranked = []
        for template, row, (low, high) in zip(templates, cosines, intervals, strict=True):
            value = statistics.spearman(row, self.gold)
            ranked.append(Ranked(template, 100 * value, (100 * low, 100 * high), stage))
        return ranked

    def ids(self, texts: Sequence[str], encoder: TorchEncoder) -> RaggedIds:
        """Return the token ids of prepared sentences; each distinct one is tokenised once."""
        # such a tokenizer ignores spaces, so both forms share an entry
        if self.backbone.tokenizer.splits_punctuation:
            texts = [text.strip() for text in texts]
        missing = [text for text in dict.fromkeys(texts) if text not in self._ids]
        ids = encoder.pooling.weights.token_ids(missing, self.backbone)
        self._ids.update(zip(missing, ids, strict=True))
        return RaggedIds.of([self._ids[text] for text in texts])


class _SharedTokens(TorchEncoder):
    """An encoder whose sentences are tokenised by its scorer, which also counts what it encodes."""

    def __init__(self, recipe: Recipe, scorer: TemplateScorer) -> None:
        super().__init__(recipe, scorer.backbone, {})
        self._scorer = scorer

    def token_ids(self, texts: Sequence[str]) -> RaggedIds:
        return self._scorer.ids(texts, self)

    def inputs(self, sentences: Sequence[str]) -> Inputs:
        inputs = super().inputs(sentences)
        self._scorer.tokens += int(inputs.ids.lengths.sum())
        return inputs
