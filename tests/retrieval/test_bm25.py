"""BM25 and the joined ranking beside plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcli.models.language import main_language
from promptcli.retrieval.array_files import Source
from promptcli.retrieval.bm25 import EXACT_WORD_BONUS, K1, B, Bm25, WordCounts
from promptcli.retrieval.ranking import Match, Ranking, join_rankings, weight_of_words
from promptcli.retrieval.words import stemmer_of, words, words_of_each

WORD = st.sampled_from("cat cats Dog dogs RAIN raining C++ C# C kx-4831 café 猫在 tree".split())
TEXTS = st.lists(st.lists(WORD, min_size=1, max_size=8).map(" ".join), min_size=1, max_size=12)


def plain_bm25(texts, query, language, *, written=True):
    """Lucene's BM25 by its formula, and the gain of words spelled as in the query."""
    stem = stemmer_of(language)
    rows = [[stem(word) for word in words(text)] for text in texts]
    mean = sum(max(len(row), 1) for row in rows) / len(rows)

    def idf(name):
        count = sum(name in row for row in rows)
        return math.log(1 + (len(rows) - count + 0.5) / (count + 0.5))

    scores = []
    for text, row in zip(texts, rows, strict=True):
        score = 0.0
        for word in words(query, query=True):
            times = row.count(stem(word))
            norm = K1 * (1 - B + B * max(len(row), 1) / mean)
            score += idf(stem(word)) * times / (times + norm)
        if score > 0 and written:
            same = set(words(query, query=True)) & set(words(text))
            gains = {word: EXACT_WORD_BONUS * idf(stem(word)) for word in words(query, query=True)}
            score += sum(gains[word] for word in same)
            if (
                "+" in query or "#" in query or "-" in query
            ) and query.casefold() in text.casefold():
                score += sum(gains.values())
        scores.append(score)
    return scores


def bm25_of(texts, counted, gone=()):
    """BM25 of texts, of which the first ``counted`` are in a word file and some rows are gone."""
    file = WordCounts.of_texts([texts[:counted]])
    newer = WordCounts.of_texts([texts[counted:]], file.language)
    live_mask = ~np.isin(np.arange(len(texts)), gone)
    return Bm25([file, newer], lambda some: [texts[i] for i in some], live_mask)


@settings(max_examples=150)
@given(
    texts=TEXTS, query=st.lists(WORD, min_size=1, max_size=4).map(" ".join), share=st.floats(0, 1)
)
def test_scores_are_those_of_the_formula_however_many_rows_are_new(texts, query, share):
    counted = round(share * len(texts))
    bm25, language = bm25_of(texts, counted), main_language(texts[:counted])
    wanted = plain_bm25(texts, query, language)
    keys, scores = bm25.ask(query).rank(len(texts))
    order = sorted(range(len(texts)), key=lambda row: (-np.float32(wanted[row]), row))
    assert len(keys) == sum(score > 0 for score in wanted)
    assert scores == pytest.approx([wanted[row] for row in order][: len(keys)], rel=1e-5)
    assert bm25.ask(query).scores_of(np.arange(len(texts)))[keys] == pytest.approx(scores)


COMMON = st.sampled_from("tree cat the the the of of and and rain".split())


@settings(max_examples=200)
@given(
    texts=st.lists(st.lists(COMMON, min_size=1, max_size=9).map(" ".join), min_size=4, max_size=40),
    query=st.lists(COMMON, min_size=2, max_size=6).map(" ".join),
    k=st.integers(1, 4),
    share=st.floats(0, 1),
    data=st.data(),
)
def test_the_best_rows_are_those_of_all_rows_though_common_words_are_looked_up_in_few(
    texts, query, k, share, data
):
    bm25 = bm25_of(texts, round(share * len(texts)))
    allowed = data.draw(st.none() | st.sets(st.integers(0, len(texts) - 1), min_size=1))
    wanted = plain_bm25(
        texts, query, main_language(texts[: round(share * len(texts))]), written=False
    )
    order = sorted(
        (row for row in allowed or range(len(texts)) if wanted[row] > 0),
        key=lambda row: -wanted[row],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("promptcli.retrieval.bm25.JOIN_DEPTH", k)
        patch.setattr("promptcli.retrieval.bm25.EXACT_WORD_BONUS", 0.0)
        keys, scores = bm25.ask(query).rank(k, None if allowed is None else np.array([*allowed]))
    best = pytest.approx([wanted[row] for row in order[:k]], rel=1e-5)
    # rows that are equally good by the formula may differ in the last bit of a float32
    assert scores == best and [wanted[row] for row in keys] == best
    assert len({*keys}) == len(keys) and {*keys} <= {*order}
    assert np.lexsort((keys, -scores)).tolist() == [*range(len(keys))]


@settings(max_examples=50)
@given(texts=TEXTS, data=st.data())
def test_rows_that_are_gone_count_as_if_they_had_never_been(texts, data):
    gone = data.draw(st.sets(st.integers(0, len(texts) - 1), max_size=len(texts) - 1))
    left = [row for row in range(len(texts)) if row not in gone]
    some = bm25_of(texts, len(texts), list(gone)).ask("cats dog C++")
    fresh = Bm25.of_texts([texts[row] for row in left]).ask("cats dog C++")
    keys, scores = some.rank(20)
    wanted = fresh.rank(20)
    assert keys.tolist() == [left[row] for row in wanted[0]]
    assert scores == pytest.approx(wanted[1], rel=1e-5)
    assert some.match(some.rank(20)) == pytest.approx(fresh.match(wanted), rel=1e-5)


def test_only_allowed_rows_are_ranked_and_equal_ones_by_row():
    bm25 = Bm25.of_texts(["cat", "cat", "dog", "cat"])
    assert bm25.ask("cat").rank(2)[0].tolist() == [0, 1]
    assert bm25.ask("cat").rank(3, np.array([1, 2, 3]))[0].tolist() == [1, 3]
    assert bm25.ask("bird").rank(3)[0].tolist() == []


def test_a_name_with_signs_comes_before_its_letters():
    texts = ["Notes on C", "Notes on C++", "Notes on C#", "Vitamin C and C"]
    bm25 = Bm25.of_texts(texts)
    assert bm25.ask("C++").rank(1)[0].tolist() == [1] and bm25.ask("c#").rank(1)[0].tolist() == [2]


def test_a_file_of_words_is_read_as_it_was_written(tmp_path):
    blocks = [["cat dog", "dog dog"], [""]]
    WordCounts.of_texts(blocks, source=Source("v", 7)).write(tmp_path / "words")
    again = WordCounts.read(tmp_path / "words")
    assert again.lengths.tolist() == [2, 2, 1]
    assert [part.tolist() for part in again.rows_with("dog")] == [[0, 1], [1, 2]]
    assert [part.tolist() for part in again.rows_with("bird")] == [[], []]
    assert again.source == Source("v", 7)


@given(texts=st.lists(st.text(max_size=30), max_size=6))
def test_words_of_many_texts_are_those_of_each(texts):
    found, rows = words_of_each(texts)
    for row, text in enumerate(texts):
        of_row = [word for word, owner in zip(found, rows, strict=True) if owner == row]
        assert sorted(of_row) == sorted(words(text))


RANKING = st.lists(
    st.tuples(st.integers(0, 9), st.floats(0.0078125, 1, width=32)),
    unique_by=lambda each: each[0],
    max_size=8,
)


@given(near=RANKING, worded=RANKING, covered=st.floats(0, 1), strength=st.floats(0, 1))
def test_the_joined_ranking_is_the_weighted_mean(near, worded, covered, strength):
    by_cosine, by_words = (dict(each) for each in (near, worded))

    def ranking(scores):
        order = sorted(scores, key=lambda key: (-scores[key], key))
        values = np.array([scores[key] for key in order], np.float32)
        return Ranking(np.array(order, np.int64), values)

    match = Match(covered, strength)
    joined = join_rankings(
        ranking(by_cosine),
        ranking(by_words),
        10,
        match,
        lambda keys: np.full(len(keys), 0.005, np.float32),
        lambda keys: np.zeros(len(keys), np.float32),
    )
    keys = sorted(by_cosine.keys() | by_words.keys())
    cosines = {key: by_cosine.get(key, np.float32(0.005)) for key in keys}
    low, high = (each(cosines.values(), default=0) for each in (min, max))
    weight = weight_of_words(ranking(by_cosine)[1], match)
    most = max(by_words.values(), default=1)
    scores = {}
    for key in keys:
        scaled = (cosines[key] - low) / (high - low) if high > low else 0.0
        scores[key] = np.float32((1 - weight) * scaled + weight * by_words.get(key, 0) / most)
    assert [scores[key] for key in joined.keys] == pytest.approx(
        sorted(scores.values(), reverse=True), abs=1e-6
    )
    for key, fields in zip(joined.keys, joined.joined_fields(), strict=True):
        found_by, bm25, cosine_rank, bm25_rank = fields
        assert (cosine_rank is not None, bm25_rank is not None) == (
            key in by_cosine,
            key in by_words,
        )
        assert found_by in ("both", "meaning", "words") and bm25 == pytest.approx(
            by_words.get(key, 0)
        )
