"""The contribution of each word of a hit to its cosine; for transformers, the nearest words of
query and hit.
"""

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
from promptcli.models.loading import open_model
from promptcli.notes import note
from promptcli.plugins.explain.shares import MOST, as_sum, highest_first, strong
from promptcli.retrieval.ranking import Explanation, Hit, RankBy
from promptcli.retrieval.sentence_index import SentenceIndex
from promptcli.retrieval.words import words

#: Pieces of a text that are encoded alone: words and signs, or runs between spaces.
_PATTERNS = r"\s*(?:\w+|[^\w\s])", r"\s*\S+"
_AROUND = "(prompt)"  #: all tokens outside the text
_STORED = "(stored vector)"  #: difference to the index's vector, which is rounded or older
_EXACT = 1e-6
_SAYS = 0.05  #: least cosine or share for marking a word of a hit
_NEAR = 0.6  #: least cosine of two states for marking a word of a hit


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
    asking = open_model(index.open_encoder().in_role("query"))
    answering = open_model(index.open_document_encoder())
    needs = answering.pooling.needs
    if needs.static or needs.output_embeddings:
        asked = unit(asking.encode([query]))[0].astype(np.float64)
        shared = [_shares(answering, hit, asked) for hit in hits]
        if None in shared:
            recipe = answering.recipe
            steps = ", ".join([recipe.pooling, *recipe.transforms])
            note(f"after {steps} the cosine is not a sum over words")
        return shared
    states = _WordStates(asking.prompt_encoders[0], query)
    return [
        states.nearest(_WordStates(answering.prompt_encoders[0], hit.text or "")) for hit in hits
    ]


class _Words:
    """The words of a text, as an encoder reads it.

    A word is spelled by the tokens of one piece of the text; in a script without spaces, each token
    is a word.
    """

    def __init__(self, encoder: TorchEncoder, text: str) -> None:
        self.ids = encoder.inputs([text]).ids[0]
        place = encoder.template.pieces(len(self.ids))[-1]
        own = self.ids[place]
        self.names = [_AROUND]
        self.owners = np.zeros(len(self.ids), np.int64)  #: (t,) the word of each token
        numbers: dict[str, int] = {}
        for token, name in enumerate(_names(encoder, text, own), place.start):
            number = numbers.setdefault(name.casefold(), len(self.names))
            if number == len(self.names):
                self.names.append(name)
            self.owners[token] = number


def _names(encoder: TorchEncoder, text: str, own: list[int]) -> list[str]:
    """Return the word of each of a text's own tokens."""
    pieces = encoder.piece_tokenizer
    [prepared] = encoder.prepare([text])
    for pattern in _PATTERNS:
        parts = re.findall(pattern, prepared)
        rows = pieces.encode(parts)
        rows = [[] if row == [pieces.pad] else row for row in rows]  # contains no known word
        if [*itertools.chain(*rows)][: len(own)] == own:
            break
    else:
        parts, rows = [""], [own]
    names: list[str] = []
    for part, row in zip(map(str.strip, parts), rows, strict=True):
        if not part or len(words(part * 2)) > 1:
            names += [pieces.text(token).removeprefix("##").strip("▁Ġ") for token in row]
        else:
            names += [part] * len(row)
    return names[: len(own)]


def _shares(encoder: TorchEncoder, hit: Hit, asked: Floats) -> Explanation | None:
    """Return the contribution of each word of a hit to its cosine with a unit vector (d,); None if
    the vector is not a mean of the tokens' vectors.
    """
    table = encoder.averaged_matrix()
    if table is None:
        return None
    read = _Words(encoder, hit.text or "")
    averaged_tokens = encoder.pooling.weights.averaged or slice(None)
    vectors = table[read.ids[averaged_tokens]].float()
    for transform in encoder.transforms:
        if transform.spec != "normalize":  # normalize only scales the sum
            for _, step in transform.stages:
                vectors = step(vectors)
    parts = vectors.detach().cpu().numpy().astype(np.float64) / len(vectors)
    whole = parts.sum(0)
    [answer] = unit(encoder.encode([hit.text or ""])).astype(np.float64)
    length = float(np.linalg.norm(whole))
    if not length or whole @ answer < (1 - _EXACT) * length:
        return None
    sums = np.bincount(read.owners[averaged_tokens], parts @ asked / length, len(read.names))
    shares = highest_first(dict(zip(read.names, sums.tolist(), strict=True)))
    marked = [word for word in strong(shares) if word != _AROUND]
    if max(sum(shares.values()), *shares.values()) < _SAYS:
        marked = []
    if not shares[_AROUND]:
        del shares[_AROUND]
    rest = hit.score - sum(shares.values())
    if abs(rest) > _EXACT:
        shares[_STORED] = rest
    return as_sum("meaning", shares, marked)


class _WordStates(_Words):
    """The words of a text with the last states (t, d) of their tokens, of length 1."""

    def __init__(self, encoder: TorchEncoder, text: str) -> None:
        super().__init__(encoder, text)
        last = encoder.backbone.n_layers
        with torch.inference_mode():
            batch = encoder.batch([self.ids])
            hidden = encoder.backbone.run(batch, Needs(layers=frozenset({last})))
        self.states = unit(hidden.layers[last][0].float().cpu().numpy())
        spelled = np.array([bool(re.search(r"\w", name)) for name in self.names])
        spelled[0] = False
        self.kept = np.flatnonzero(spelled[self.owners])  #: tokens of words

    def nearest(self, hit: "_WordStates") -> Explanation:
        """Return for each word of a query the word of a hit with the nearest state, nearest pair
        first.
        """
        cosines = self.states[self.kept] @ hit.states[hit.kept].T
        best: dict[str, tuple[float, str]] = {}
        for token, row in zip(self.kept, cosines, strict=True):
            if not len(row):
                continue
            name = self.names[self.owners[token]]
            nearest = hit.kept[row.argmax()]
            found = (float(row.max()), hit.names[hit.owners[nearest]])
            best[name] = max(best.get(name, (-1.0, "")), found)
        figures: list[dict[str, Any]] = []
        shown = []
        marked = []
        for name, (score, word) in sorted(best.items(), key=lambda item: -item[1][0])[:MOST]:
            figures.append({"query": name, "hit": word, "cosine": score})
            shown.append(f"{name} ~ {word} {score:.2f}")
            if score >= _NEAR:
                marked.append(word)
        line = f"nearest states (an indication, no sum): {', '.join(shown)}"
        return Explanation(figures, line, marked)
