"""Explanations of BM25: the share of each word of a query."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from promptcli.embedding.splitting import PART_NUMBER
from promptcli.plugins.explain.shares import explain_as_sum, highest_first, strong_words
from promptcli.retrieval.bm25 import EXACT_WORD_BONUS, Stem
from promptcli.retrieval.ranking import Explanation, Hit, RankBy
from promptcli.retrieval.sentence_index import SentenceIndex
from promptcli.retrieval.words import words

_WORD = re.compile(r"\w+")
_SUM_ROUNDING = 1e-4  # relative rounding error of a float32 sum


def shares_of_bm25(
    index: SentenceIndex, query: str, hits: Sequence[Hit], by: RankBy
) -> list[Explanation | None]:
    """Return the contribution of each word of a query to the BM25 of each hit."""
    if by == "meaning":
        return [None] * len(hits)
    shares_by_hit: list[dict[str, float]] = [{} for _ in hits]
    with index.store.reading():
        bm25 = index.snapshot().words
        keys = np.array([_key_of(index, hit) for hit in hits], np.int64)
        scores = bm25.ask(query).scores_of(keys).tolist()
        hit_words = [set(words(hit.text or "")) for hit in hits]
        for word, count in Counter(words(query, query=True)).items():
            stem = Stem(bm25, bm25.stem(word), count)
            for number, gain in enumerate(stem.gains(keys).tolist()):
                if gain:
                    bonus = EXACT_WORD_BONUS * stem.idf * (word in hit_words[number])
                    shares_by_hit[number][word] = gain + bonus
    explanations: list[Explanation | None] = []
    for hit, score, unsorted_shares in zip(hits, scores, shares_by_hit, strict=True):
        shares = highest_first(unsorted_shares)
        stems = set(map(bm25.stem, strong_words(shares)))
        text_words = _WORD.findall(hit.text or "")
        marked = {word for word in text_words if stems & set(map(bm25.stem, words(word)))}
        rest = score - sum(shares.values())
        if rest > _SUM_ROUNDING * score:  # the bonus of a text that contains the query literally
            shares[f"'{query.strip()}'"] = rest
        explanations.append(explain_as_sum("words", shares, marked))
    return explanations


def _key_of(index: SentenceIndex, hit: Hit) -> int:
    """Return the key of a hit's row, or of the part of a row that the hit shows."""
    hit_id = str(hit.id)
    keys = index.store.keys_of([hit_id])
    if hit_id in keys:
        return keys[hit_id][0]
    row_id = re.sub(PART_NUMBER, "", hit_id)
    part = int(hit_id.removeprefix(f"{row_id}#"))
    return index.store.keys_of([row_id])[row_id][part - 1]
