"""The contribution of each word of a query to the BM25 of a hit."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from promptcli.embedding.splitting import PART
from promptcli.plugins.explain.shares import as_sum, highest_first, strong
from promptcli.retrieval.bm25 import EXACT_WORD_BONUS, Bm25, Stem
from promptcli.retrieval.ranking import Explanation, Hit, RankBy
from promptcli.retrieval.sentence_index import SentenceIndex
from promptcli.retrieval.words import words

_WORD = re.compile(r"\w+")
_ROUNDING = 1e-4  #: of a sum of float32


def shares_of_bm25(
    index: SentenceIndex, query: str, hits: Sequence[Hit], by: RankBy
) -> list[Explanation | None]:
    """Return the contribution of each word of a query to the BM25 of each hit."""
    if by == "meaning":
        return [None] * len(hits)
    with index.store.reading():
        bm25 = index.snapshot().words
        keys = np.array([_key_of(index, hit) for hit in hits], np.int64)
        scores = bm25.ask(query).scores_of(keys).tolist()
        of_texts = [set(words(hit.text or "")) for hit in hits]
        shares: list[dict[str, float]] = [{} for _ in hits]
        for word, times in Counter(words(query, query=True)).items():
            stem = Stem(bm25, bm25.stem(word), times)
            gains = stem.gains(keys).tolist()
            for of_text, of_hit, gain in zip(of_texts, shares, gains, strict=True):
                if gain:
                    of_hit[word] = gain + EXACT_WORD_BONUS * stem.idf * (word in of_text)
        rows = zip(hits, shares, scores, strict=True)
        return [_explanation(bm25, query, hit.text or "", *figures) for hit, *figures in rows]


def _key_of(index: SentenceIndex, hit: Hit) -> int:
    """Return the key of a hit's row, or of the part that it shows."""
    name = str(hit.id)
    keys = index.store.keys_of([name])
    if name in keys:
        return keys[name][0]
    whole = re.sub(PART, "", name)
    part = int(name.removeprefix(f"{whole}#"))
    return index.store.keys_of([whole])[whole][part - 1]


def _explanation(
    bm25: Bm25, query: str, text: str, added: Mapping[str, float], score: float
) -> Explanation:
    """Return the score of a text as the sum of the contributions ``added`` by words of a query."""
    shares = highest_first(added)
    stems = set(map(bm25.stem, strong(shares)))
    marked = {word for word in _WORD.findall(text) if stems & set(map(bm25.stem, words(word)))}
    rest = score - sum(shares.values())
    if rest > _ROUNDING * score:  # the text has the query literally, with its signs
        shares[f"'{query.strip()}'"] = rest
    return as_sum("words", shares, marked)
