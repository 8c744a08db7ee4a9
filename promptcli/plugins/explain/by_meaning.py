"""Explanations of cosines: the share of each word of a hit, or the words with near states."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from promptcli.backbones.states import Needs
from promptcli.data.vectors.precision import Floats, unit
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import UsageError
from promptcli.models.loading import open_torch_encoder
from promptcli.notes import note
from promptcli.plugins.explain.shares import (
    MAX_TERMS,
    explain_as_sum,
    highest_first,
    strong_words,
)
from promptcli.retrieval.ranking import Explanation, Hit, RankBy
from promptcli.retrieval.sentence_index import SentenceIndex
from promptcli.retrieval.words import words

#: Patterns of the pieces into which a text is split: words and signs, or runs between spaces.
_PIECE_PATTERNS = r"\s*(?:\w+|[^\w\s])", r"\s*\S+"
_PROMPT = "(prompt)"  # the name of all tokens outside the text
_STORED_VECTOR = (
    "(stored vector)"  # the share of what rounding or age changed in the index's vector
)
_TOLERANCE = 1e-6
_MIN_MARKED_SHARE = 0.05  # words of a hit are marked if the cosine or a share is at least this
_MIN_MARKED_COSINE = 0.6  # of the states of two words


def shares_of_cosine(
    index: SentenceIndex, query: str, hits: Sequence[Hit], by: RankBy
) -> list[Explanation | None]:
    """Return the contribution of each word of each hit to its cosine with a query.

    A static encoder's vector is a mean of its tokens' vectors, so each token has an exact share. A
    transformer's vector is not: there, the words of query and hit with the nearest last states are
    an indication.

    Raises:
        UsageError: An index without texts.
    """
    if by == "words" or not hits:
        return [None] * len(hits)
    if not index.has_texts():
        raise UsageError("the index has no texts, so no words can be named", parameter="explain")
    queries = open_torch_encoder(index.open_encoder().in_role("query"))
    documents = open_torch_encoder(index.open_document_encoder())
    needs = documents.pooling.needs
    if needs.static or needs.output_embeddings:
        query_vector = unit(queries.encode([query]))[0].astype(np.float64)
        explanations = [_explain_as_sum(documents, hit, query_vector) for hit in hits]
        if None in explanations:
            recipe = documents.recipe
            steps = ", ".join([recipe.pooling, *recipe.transforms])
            note(f"after {steps} the cosine is not a sum over words")
        return explanations
    query_states = _WordStates(queries.prompt_encoders[0], query)
    explanations = []
    for hit in hits:
        hit_states = _WordStates(documents.prompt_encoders[0], hit.text or "")
        explanations.append(query_states.nearest(hit_states))
    return explanations


class _Words:
    """The words of a text as an encoder reads them.

    A word is a piece of the text with its tokens; in a script without spaces, each token is a word.
    """

    def __init__(self, encoder: TorchEncoder, text: str) -> None:
        self.token_ids = encoder.inputs([text]).ids[0]
        text_tokens = encoder.template.pieces(len(self.token_ids))[-1]
        token_words = _words_of_tokens(encoder, text, self.token_ids[text_tokens])
        self.names = [_PROMPT]
        self.word_of_token = np.zeros(len(self.token_ids), np.int64)  #: (t,) indices of ``names``
        numbers: dict[str, int] = {}
        for token, name in enumerate(token_words, text_tokens.start):
            number = numbers.setdefault(name.casefold(), len(self.names))
            if number == len(self.names):
                self.names.append(name)
            self.word_of_token[token] = number


def _words_of_tokens(encoder: TorchEncoder, text: str, token_ids: list[int]) -> list[str]:
    """Return the word of each token of a text."""
    tokenizer = encoder.piece_tokenizer
    [prepared] = encoder.prepare([text])
    for pattern in _PIECE_PATTERNS:
        pieces = re.findall(pattern, prepared)
        piece_ids = tokenizer.encode(pieces)
        # padding alone means that the piece has no known token
        piece_ids = [[] if ids == [tokenizer.pad] else ids for ids in piece_ids]
        if [*itertools.chain(*piece_ids)][: len(token_ids)] == token_ids:
            break
    else:
        pieces, piece_ids = [""], [token_ids]
    names: list[str] = []
    for piece, ids in zip(map(str.strip, pieces), piece_ids, strict=True):
        if not piece or len(words(piece * 2)) > 1:
            names += [tokenizer.text(token).removeprefix("##").strip("▁Ġ") for token in ids]
        else:
            names += [piece] * len(ids)
    return names[: len(token_ids)]


def _explain_as_sum(encoder: TorchEncoder, hit: Hit, query_vector: Floats) -> Explanation | None:
    """Return the contribution of each word of a hit to its cosine with a unit vector (d,); None if
    the hit's vector is not a mean of the tokens' vectors.
    """
    matrix = encoder.averaged_matrix()
    if matrix is None:
        return None
    text = _Words(encoder, hit.text or "")
    averaged_tokens = encoder.pooling.weights.averaged or slice(None)
    vectors = matrix[text.token_ids[averaged_tokens]].float()
    for transform in encoder.transforms:
        if transform.spec != "normalize":  # normalize only scales the sum
            for _, step in transform.stages:
                vectors = step(vectors)
    terms = vectors.detach().cpu().numpy().astype(np.float64) / len(vectors)
    mean = terms.sum(0)
    [hit_vector] = unit(encoder.encode([hit.text or ""])).astype(np.float64)
    length = float(np.linalg.norm(mean))
    if not length or mean @ hit_vector < (1 - _TOLERANCE) * length:
        return None
    owners = text.word_of_token[averaged_tokens]
    sums = np.bincount(owners, terms @ query_vector / length, len(text.names))
    shares = highest_first(dict(zip(text.names, sums.tolist(), strict=True)))
    marked = [word for word in strong_words(shares) if word != _PROMPT]
    if max(sum(shares.values()), *shares.values()) < _MIN_MARKED_SHARE:
        marked = []
    if not shares[_PROMPT]:
        del shares[_PROMPT]
    rest = hit.score - sum(shares.values())
    if abs(rest) > _TOLERANCE:
        shares[_STORED_VECTOR] = rest
    return explain_as_sum("meaning", shares, marked)


class _WordStates(_Words):
    """The words of a text with the last states (t, d) of their tokens, of length 1."""

    def __init__(self, encoder: TorchEncoder, text: str) -> None:
        super().__init__(encoder, text)
        last = encoder.backbone.n_layers
        with torch.inference_mode():
            batch = encoder.batch([self.token_ids])
            hidden = encoder.backbone.run(batch, Needs(layers=frozenset({last})))
        self.states = unit(hidden.layers[last][0].float().cpu().numpy())
        is_word = np.array([bool(re.search(r"\w", name)) for name in self.names])
        is_word[0] = False  # the prompt
        self.word_tokens = np.flatnonzero(is_word[self.word_of_token])

    def nearest(self, hit: "_WordStates") -> Explanation:
        """Return for each word of a query the word of a hit with the nearest state, nearest pair
        first.
        """
        cosines = self.states[self.word_tokens] @ hit.states[hit.word_tokens].T
        nearest_words: dict[str, tuple[float, str]] = {}
        for token, row in zip(self.word_tokens, cosines, strict=True):
            if not len(row):
                continue
            name = self.names[self.word_of_token[token]]
            nearest_token = hit.word_tokens[row.argmax()]
            nearest_word = (float(row.max()), hit.names[hit.word_of_token[nearest_token]])
            nearest_words[name] = max(nearest_words.get(name, (-1.0, "")), nearest_word)
        figures: list[dict[str, Any]] = []
        terms = []
        marked = []
        pairs = sorted(nearest_words.items(), key=lambda item: -item[1][0])
        for name, (cosine, word) in pairs[:MAX_TERMS]:
            figures.append({"query": name, "hit": word, "cosine": cosine})
            terms.append(f"{name} ~ {word} {cosine:.2f}")
            if cosine >= _MIN_MARKED_COSINE:
                marked.append(word)
        line = f"nearest states (an indication, no sum): {', '.join(terms)}"
        return Explanation(figures, line, marked)
