"""``tfidf``: tokens weighted by the TF-IDF of tokens, or of words (``tfidf:word``); Ditto (table 2)
does not say which of the two it used.
"""

import itertools
import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import to_device
from promptcli.backbones.states import Batch, HiddenStates
from promptcli.encoder.components import BuildContext, Weights, fit_command
from promptcli.encoder.pooling.weights import weighted_sum

TENSOR = "tfidf.idf"  #: each token's idf, (v,)
#: The words' tokens one after the other, the number of each word's tokens, and each word's idf.
TOKENS = "tfidf.word_pieces"
LENGTHS = "tfidf.word_lengths"
IDF = "tfidf.word_idf"

_CONTINUES = "##"  # WordPiece: before a token that goes on with a word
_BLANKS = ("Ġ", "▁")  # byte-level BPE, SentencePiece: before a token that followed a space
_PUNCTUATION = frozenset(string.punctuation)

Word = tuple[int, ...]


def choose_granularity(context: BuildContext) -> Weights:
    """Return the weights of tokens, or those of words for ``tfidf:word``."""
    return WordTfIdf(context) if context.argument == "word" else TfIdf(context)


class TfIdf(Weights):
    """w_t = tf * idf: the raw count of the token in the sentence times log2(N / df).

    Unseen tokens weigh 0.

    The special tokens occur in every sentence, so that df = N and their weight is 0. The published
    weights were gensim's; gensim also scales each sentence's weights, which changes no cosine.
    """

    spec = "tfidf"

    def __init__(self, context: BuildContext) -> None:
        super().__init__(context)
        needed = "weights 'tfidf'", fit_command("model first-last-tfidf")
        shape = [len(context.backbone.word_embeddings)]
        self._idf = context.tensors_of("", {TENSOR: shape}, *needed)[TENSOR].to(
            context.backbone.device
        )

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        real = batch.real()
        is_same_token = batch.ids.unsqueeze(2) == batch.ids.unsqueeze(1)
        counts = (is_same_token & real.unsqueeze(1)).sum(2)
        return weighted_sum(counts * self._idf[batch.ids] * real, states)

    def tensors(self) -> dict[str, Tensor]:
        return {TENSOR: self._idf.cpu()}


def fit_idf(inputs: Iterable[Sequence[int]], vocabulary: int) -> Tensor:
    """Return idf = log2(N / df), (v,) float32, from N inputs with their specials; 0 for tokens that
    never occur.
    """
    frequency = np.zeros(vocabulary, dtype=np.int64)
    documents = 0
    for ids in inputs:
        frequency[np.unique(np.asarray(ids, dtype=np.int64))] += 1
        documents += 1
    idf = np.zeros(vocabulary)
    np.log2(documents / np.maximum(frequency, 1), out=idf, where=frequency > 0)
    return torch.from_numpy(idf.astype(np.float32))


class WordTfIdf(Weights):
    """w_t = tf * idf of the word that token t belongs to, see ``Words``.

    Unseen words weigh 0, and so do the specials (df = N).
    """

    spec = "tfidf:word"
    graph_obstacle = "cut sentences into words"

    def __init__(self, context: BuildContext) -> None:
        needed = "weights 'tfidf:word'", fit_command("pooling first-last/tfidf:word")
        shapes = {TOKENS: [None], LENGTHS: [None]}
        stored_words = context.tensors_of("", shapes, *needed, dtype=torch.int32)
        lengths = stored_words[LENGTHS].tolist()
        self._tensors = stored_words | context.tensors_of("", {IDF: [len(lengths)]}, *needed)
        tokens = iter(stored_words[TOKENS].tolist())
        words = [tuple(itertools.islice(tokens, length)) for length in lengths]
        self._idf: dict[Word, float] = dict(zip(words, self._tensors[IDF].tolist(), strict=True))
        self._words = Words(context.backbone)

    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        weights = np.zeros(batch.ids.shape, np.float32)
        for number, (ids, length) in enumerate(
            zip(batch.host_ids(), batch.host_lengths(), strict=True)
        ):
            words = self._words.cut(ids[:length])
            counts = Counter(words)
            weights[number, :length] = [
                counts[word] * self._idf.get(word, 0.0) for word in words for _ in word
            ]
        return weighted_sum(to_device(weights, states.device), states)

    def tensors(self) -> dict[str, Tensor]:
        return self._tensors


def fit_word_idf(inputs: Iterable[Sequence[int]], backbone: Backbone) -> dict[str, Tensor]:
    """Return the tensors of ``tfidf:word``: each word's idf = log2(N / df), from N inputs, in the
    order of the words' first appearance.
    """
    words = Words(backbone)
    frequency: Counter[Word] = Counter()
    documents = 0
    for ids in inputs:
        # each word of an input once, in order; a set has no order
        frequency.update(dict.fromkeys(words.cut(ids)).keys())
        documents += 1
    tokens = list(itertools.chain(*frequency))
    idf = np.log2(documents / np.array(list(frequency.values()), np.int64))
    return {
        TOKENS: torch.tensor(tokens, dtype=torch.int32),
        LENGTHS: torch.tensor([len(word) for word in frequency], dtype=torch.int32),
        IDF: torch.from_numpy(idf.astype(np.float32)),
    }


class Words:
    """Cuts the ids of an input into words.

    A WordPiece vocabulary marks a token that continues a word (``##``). Other vocabularies mark a
    token that follows a space. In both, a punctuation mark or a special token is a separate word,
    as in their own pre-tokenizers.
    """

    def __init__(self, backbone: Backbone) -> None:
        tokenizer = backbone.tokenizer
        tokens = list(map(tokenizer.text, range(len(backbone.word_embeddings))))
        self._alone = np.fromiter(map(_is_punctuation, tokens), bool, len(tokens))
        specials = [*tokenizer.start, *tokenizer.end]
        if tokenizer.mask is not None:
            specials.append(tokenizer.mask)
        self._alone[specials] = True
        marked = {token for token in tokens if token.startswith(_CONTINUES)}
        if marked - {_CONTINUES}:  # the mark alone is punctuation
            self._begins = np.array([token not in marked for token in tokens])
        else:
            self._begins = np.array([token.startswith(_BLANKS) for token in tokens])

    def cut(self, tokens: Sequence[int]) -> list[Word]:
        """Return the words of some ids, in order; joined, they are the ids."""
        if not len(tokens):
            return []
        ids: NDArray[np.int64] = np.asarray(tokens, dtype=np.int64)
        is_separate = self._alone[ids]
        begins = self._begins[ids] | is_separate
        begins[1:] |= is_separate[:-1]
        starts = [0, *(np.flatnonzero(begins[1:]) + 1).tolist(), len(ids)]
        return [tuple(ids[start:stop].tolist()) for start, stop in itertools.pairwise(starts)]


def _is_punctuation(token: str) -> bool:
    bare = token.removeprefix("Ġ").removeprefix("▁")
    return bool(bare) and _PUNCTUATION.issuperset(bare)
