"""BM25 and its joining with vectors, against plain loops; stored, changed and refused."""

import json
import math
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import promptcli as pc
from promptcli.errors import CheckFailedError, UsageError
from promptcli.evaluation.lexical import LEXICAL_FILES, Lexical, join_rankings
from promptcli.index.array_rows import ArrayRows
from promptcli.index.stored import StoredIndex, change, load, save
from promptcli.index.vector_index import VectorIndex
from tests.index.test_changes import ORIGIN
from tests.index.test_index import vectors

pytest.importorskip("bm25s")
WORDS = "cat dog X-200 ß Größe naps 7 don't cat,cat Dog. mat a the".split()


def random_texts(n, seed=0):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(1, 9))) for _ in range(n)]


def bm25(texts, query, k1=1.5, b=0.75):
    documents = [re.findall(r"\w+", text.lower()) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for word in re.findall(r"\w+", query.lower()):
            count, within = document.count(word), sum(word in other for other in documents)
            rarity = math.log(1 + (len(documents) - within + 0.5) / (within + 0.5))
            score += rarity * count / (count + k1 * (1 - b + b * len(document) / mean))
        scores.append(score)
    return scores


def ranked(scores, k):
    return [
        row
        for row in np.lexsort((np.arange(len(scores)), -np.round(scores, 5)))[:k]
        if scores[row] > 0
    ]


@pytest.mark.parametrize("query", ["x-200", "a cat on the mat", "größe 7", "nothing"])
def test_scores_are_those_of_bm25(query):
    texts = random_texts(60)
    rows, scores = Lexical.build(texts, np.arange(60)).rank(query, 20, None)
    expected = bm25(texts, query)
    assert scores == pytest.approx([expected[row] for row in rows], abs=1e-5)
    assert sorted(scores, reverse=True) == list(scores) and len(rows) == min(
        20, np.count_nonzero(expected)
    )
    assert (
        all(expected[row] <= scores[-1] + 1e-5 for row in set(range(60)) - set(rows.tolist()))
        if len(rows)
        else True
    )


def plainly_joined(by_vectors, by_words):
    """Rows -> score, from rows -> cosine and rows -> BM25."""
    lowest, best = min(by_vectors.values(), default=1), max(by_words.values(), default=1)
    return {
        row: 0.6 * by_vectors.get(row, lowest) + 0.4 * by_words.get(row, 0) / best
        for row in {*by_vectors, *by_words}
    }


@pytest.mark.parametrize(
    ("by_vectors", "by_words"),
    [
        ({5: 0.9, 3: 0.5, 9: -0.25}, {9: 4.0, 1: 2.0}),
        ({2: 0.5, 1: 0.5, 4: 0.5}, {8: 3.0, 7: 3.0}),  # equal scores: by row
        ({5: 0.9, 3: 0.5}, {}),  # no word is known: by cosine
        ({}, {3: 2.0, 5: 1.0}),
        ({}, {}),
    ],
)
def test_joined_scores_are_weighted_sums(by_vectors, by_words):
    rankings = [
        (np.array([*each], np.int64), np.array([*each.values()], np.float32))
        for each in (by_vectors, by_words)
    ]
    sums = plainly_joined(by_vectors, by_words)
    for k in (1, 3, 9):
        rows, scores = join_rankings(*rankings, k)
        assert rows.tolist() == sorted(sums, key=lambda row: (-round(sums[row], 6), row))[:k]
        assert scores == pytest.approx([sums[row] for row in rows])


def build(texts, seed=0):
    rows = ArrayRows(
        vectors(len(texts), seed=seed), [f"r{row}" for row in range(len(texts))], texts
    )
    return VectorIndex.build(rows, lexical=True)


def test_hybrid_joins_both_rankings_and_obeys_filters():
    texts, query = random_texts(300), vectors(1, seed=5)
    index = build(texts)
    for options in ({}, {"where": "not id in ('r3', 'r7')"}, {"where": "id like 'r%0'"}):
        for words in ("X-200 cat", "absent"):
            both = [
                index.search(query, 100, **options)[0],
                index.search(None, 100, words=[words], **options)[0],
            ]
            sums = plainly_joined(*({hit.id: hit.score for hit in hits} for hits in both))
            hits, other = index.search(
                np.concatenate([query, -query]), 10, words=[words, "dog"], **options
            )
            expected = sorted(sums, key=lambda name: (-np.float32(sums[name]), int(name[1:])))[:10]
            assert [hit.id for hit in hits] == expected and hits != other
            assert [hit.score for hit in hits] == pytest.approx([sums[name] for name in expected])
            assert index.search(query, 10, words=[words], **options) == [hits]


def test_a_changed_index_has_the_words_of_its_rows(tmp_path):
    texts = random_texts(50)
    save(tmp_path / "idx", StoredIndex(build(texts), ORIGIN, "now"))
    with change(tmp_path / "idx") as held:
        held.index.delete([f"r{row}" for row in range(20)])
        held.index.add(ArrayRows(vectors(1, seed=9), ["new"], ["a zebra"]))
    index, kept = load(tmp_path / "idx").index, [*texts[20:], "a zebra"]
    for query in ("zebra", "cat naps", "absent"):
        [hits] = index.search(None, 100, words=[query])
        expected = bm25(kept, query)
        names = [*(f"r{row}" for row in range(20, 50)), "new"]
        assert {hit.id for hit in hits} == {
            name for name, score in zip(names, expected, strict=True) if score > 0
        }
        assert [hit.score for hit in hits] == pytest.approx(
            sorted(filter(None, expected), reverse=True), abs=1e-5
        )


@pytest.mark.parametrize("file", sorted(LEXICAL_FILES.values()))
@pytest.mark.parametrize("damage", ["zeros", "cut", "other"])
def test_damaged_words_are_one_line(file, damage, tmp_path):
    folder = tmp_path / "idx"
    save(folder, StoredIndex(build(random_texts(50)), ORIGIN, "now"))
    content = (folder / file).read_bytes()
    damaged = {
        "zeros": bytes(len(content)),
        "cut": content[: len(content) // 2],
        "other": b"[1, 2]",
    }[damage]
    (folder / file).write_bytes(damaged)
    manifest = json.loads((folder / "index.json").read_text())
    manifest["files"][file]["size"] = len(damaged)
    (folder / "index.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckFailedError, match="damaged"):
        load(folder).index.search(None, 5, words=["cat naps"])


def test_texts_without_words_have_no_answers():
    assert build(["!", "?", ""]).search(None, 5, words=["cat", "!"]) == [[], []]


SCRIPTS = [
    "बिल्ली सोफ़े पर सो रही है",
    "दिल्ली बहुत बड़ा शहर है",
    "Le caf\u00e9 est ferm\u00e9.",
    "Le cafe\u0301 de la gare est ouvert.",
    "猫在沙发上睡觉。",
    "狗在公园里跑。",
    "แมวนอนบนโซฟา",
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd לכולם",
    "GPT4を使うコンピューター",
    "میخواهم بنویسم",
    "كِتَابٌ جديد",
    "Die Straße, ＡＢＣ１２",
]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("बिल्ली", {0}),
        ("caf\u00e9", {2, 3}),
        ("CAFE\u0301", {2, 3}),
        ("cafe", set()),
        ("沙发", {4}),
        ("猫", {4}),
        ("在公园", {5}),
        ("แมว", {6}),
        ("שלום", {7}),
        ("\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", {7}),
        ("コンピューター gpt4", {8}),
        ("می\u200cخواهم", {9}),
        ("كتاب", {10}),
        ("STRASSE", {11}),
        ("abc12", {11}),
    ],
)
def test_words_of_every_script_are_found(query, rows):
    found, scores = Lexical.build(SCRIPTS, np.arange(len(SCRIPTS))).rank(query, 20, None)
    assert {
        row for row, score in zip(found.tolist(), scores, strict=True) if score >= 0.3 * max(scores)
    } == rows


def test_an_index_whose_words_another_version_counted_is_refused(tmp_path):
    folder = tmp_path / "idx"
    save(folder, StoredIndex(build(SCRIPTS), ORIGIN, "now"))
    document = json.loads((folder / "index.json").read_text())
    document["word_rule"] += 1
    (folder / "index.json").write_text(json.dumps(document))
    with pytest.raises(CheckFailedError, match="another version; build it again"):
        load(folder)


def test_stored_searched_and_refused(tmp_path, monkeypatch):
    file, encoder = tmp_path / "a.txt", pc.load("static-avg")
    file.write_text("Model X-200 is loud.\nThe engine makes a lot of noise.\nA cat sleeps.\n")
    pc.build_index(file, tmp_path / "plain", encoder)
    for options in ({"hybrid": True}, {"lexical": True}):
        with pytest.raises(UsageError, match=r"no BM25.*--lexical"):
            list(pc.search_index(tmp_path / "plain", ["x"], **options))
    pc.build_index(file, tmp_path / "idx", encoder, lexical=True)
    pc.sync_index(tmp_path / "synced", [file], encoder)
    assert pc.sync_index(tmp_path / "synced", [file], encoder, lexical=True).lexical
    for folder in ("idx", "synced"):
        [(_, hits)] = pc.search_index(tmp_path / folder, "x-200", lexical=True)
        assert [hit.text for hit in hits] == ["Model X-200 is loud."]
        [(_, hits)] = pc.search_index(
            tmp_path / folder, ["x-200 noise"], model=encoder, hybrid=True
        )
        assert len(hits) == 3 and hits[-1].text == "A cat sleeps."
    with pytest.raises(UsageError, match="give one"):
        list(pc.search_index(tmp_path / "idx", ["x"], hybrid=True, lexical=True))
    monkeypatch.setitem(__import__("sys").modules, "bm25s", None)
    for call in (
        lambda: pc.build_index(file, tmp_path / "new", encoder, lexical=True),
        lambda: list(pc.search_index(tmp_path / "idx", ["x"], lexical=True)),
        lambda: pc.add_to_index(tmp_path / "idx", file),
    ):
        with pytest.raises(UsageError, match=r"\[lexical\]"):
            call()
    # vectors need no bm25s
    [(_, [hit])] = pc.search_index(tmp_path / "idx", ["loud"], k=1, model=encoder)
    assert hit.text == "Model X-200 is loud."


def test_eval_ranks_documents_as_an_index_does(tmp_path):
    documents = list(
        dict.fromkeys(f"{text} {number % 40}" for number, text in enumerate(random_texts(200)))
    )
    queries = {
        f"{text}?": documents[number] for number, text in enumerate(random_texts(20, seed=1))
    }
    rows = [*queries.items(), *(("", document) for document in documents)]
    table = pa.table({"query": [row[0] for row in rows], "document": [row[1] for row in rows]})
    pq.write_table(
        table.append_column("grade", pa.array([float(bool(row[0])) for row in rows])),
        tmp_path / "r.parquet",
    )
    encoder = pc.load("mini-static")
    index = VectorIndex.build(
        ArrayRows(encoder.encode(documents), documents, documents), lexical=True
    )
    queried = encoder.encode(list(queries))
    for ranking, units in (("hybrid", queried), ("lexical", None)):
        [score] = pc.evaluate(encoder, [f"{ranking}:{tmp_path / 'r.parquet'}"])
        found = index.search(units, 10, words=list(queries))
        places = [
            next((place for place, hit in enumerate(hits, 2) if hit.id == wanted), math.inf)
            for hits, wanted in zip(found, queries.values(), strict=True)
        ]
        assert score.by_example == pytest.approx([1 / np.log2(place) for place in places])
        assert 0 < score.value < 100
