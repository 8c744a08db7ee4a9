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
from promptcli.evaluation.lexical import (
    LEXICAL_FILES,
    NO_MATCH,
    JoinedRanking,
    Lexical,
    Match,
    QueryWords,
    join_rankings,
    stand_out,
    ways_of,
    weight_of_words,
)
from promptcli.evaluation.words import stemmer_of, words, words_of_each
from promptcli.index import compact_index
from promptcli.index.array_rows import ArrayRows
from promptcli.index.stored import StoredIndex, change, load, save
from promptcli.index.vector_index import VectorIndex
from promptcli.models.language_choice import main_language
from tests.index.test_changes import ORIGIN
from tests.index.test_index import vectors

WORDS = "cat dog X-200 ß Größe naps 7 don't cat,cat Dog. mat a the".split()


def random_texts(n, seed=0):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(1, 9))) for _ in range(n)]


def tokens(text):
    return re.findall(r"\w+", text.casefold().replace("ö", "o"))


def bm25(texts, query, k1=1.5, b=0.75):
    """BM25 of stems, and a tenth of the rarity for each word as it is written."""
    stem = stemmer_of(main_language(texts))
    documents = [[*map(stem, tokens(text))] for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document, text in zip(documents, texts, strict=True):
        score = 0.0
        written = set()
        for word in tokens(query):
            count = document.count(stem(word))
            within = sum(stem(word) in other for other in documents)
            rarity = math.log(1 + (len(documents) - within + 0.5) / (within + 0.5))
            score += rarity * count / (count + k1 * (1 - b + b * len(document) / mean))
            if word in tokens(text) and word not in written:
                written.add(word)
                score += 0.1 * rarity
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


@pytest.mark.parametrize("query", ["x-200", "a cat on the mat", "größe 7 7", "nothing", "!"])
def test_texts_that_are_read_once_score_as_those_of_an_index(query):
    texts = random_texts(60)
    asked = Lexical.build(texts, np.arange(60)).ask(query)
    read = QueryWords(query, main_language(texts))
    parts = [read.count(texts[:25]), read.count([]), read.count(texts[25:])]
    counts, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    scores = read.scores(counts, lengths) + read.gains(texts)
    assert scores == pytest.approx(bm25(texts, query), abs=1e-5)
    assert scores == pytest.approx(asked.scores_of(np.arange(60)), abs=1e-5)
    for row in (0, 7):
        expected = asked.match((np.array([row]), scores[[row]]))
        assert read.match(counts[row], scores[row]) == pytest.approx(expected)
        assert all(0 <= share <= 1 for share in expected)


def test_a_text_covers_the_share_of_the_querys_rarity_that_it_has():
    kept = Lexical.build(["one two", "two three", "two three"], np.arange(3))
    rarity = {word: math.log(1 + (3 - n + 0.5) / (n + 0.5)) for word, n in COUNTED.items()}

    def covered(query, row):
        return kept.ask(query).match((np.array([row]), np.ones(1))).covered

    assert covered("one TWO two", 0) == covered("two three", 2) == covered("threes", 1) == 1
    whole = rarity["two"] + rarity["three"] + rarity["absent"]
    assert covered("two three absent", 0) == pytest.approx(rarity["two"] / whole)
    assert covered("absent", 0) == covered("", 0) == 0


COUNTED = {"one": 1, "two": 3, "three": 2, "absent": 0}


def plainly_joined(cosines, bm25, match, nearest):
    """Rows -> joined score, from rows -> cosine and rows -> BM25; ``nearest``: cosines, sorted."""
    partial = 0.5 * match.strength**2
    if nearest[0] > nearest[-1]:
        tenth = nearest[(len(nearest) - 1) // 10]
        away = (nearest[0] - tenth) / (nearest[0] - nearest[-1])
        partial -= 3 * max(0, away - 0.5)
    weight = max(0, 0.8 * match.covered + (1 - match.covered) * partial)
    low, high = min(cosines.values()), max(cosines.values())
    best = max(bm25.values())
    return {
        row: (1 - weight) * ((cosine - low) / (high - low) if high > low else 0)
        + weight * (bm25[row] / best if best else 0)
        for row, cosine in cosines.items()
    }


@pytest.mark.parametrize("match", [NO_MATCH, Match(0.4, 0.6), Match(1, 1)])
@pytest.mark.parametrize(
    ("by_vectors", "by_words"),
    [
        ({5: 0.9, 3: 0.5, 9: -0.25}, {9: 4.0, 1: 2.0}),
        ({2: 0.5, 1: 0.5, 4: 0.5}, {8: 3.0, 7: 3.0}),  # equal scores: by row
        ({2: 0.5, 1: 0.5}, {2: 3.0, 1: 3.0}),
        ({5: 0.9, 3: 0.5}, {}),  # no word is known: by cosine
        ({3: 0.1}, {3: 2.0}),
    ],
)
def test_joined_scores_are_weighted_sums(by_vectors, by_words, match):
    rankings = [
        (np.array([*each], np.int64), np.array([*each.values()], np.float32))
        for each in (by_vectors, by_words)
    ]
    rows = sorted({*by_vectors, *by_words})
    cosines = {row: by_vectors.get(row, -0.5 + row / 100) for row in rows}
    bm25 = {row: by_words.get(row, row / 100 if by_words else 0) for row in rows}
    others = (
        lambda asked, given=given: np.array([given[row] for row in asked.tolist()])
        for given in (cosines, bm25)
    )
    sums = plainly_joined(cosines, bm25, match, [*by_vectors.values()])
    answers = join_rankings(*rankings, 9, match, *others)
    expected = sorted(sums, key=lambda row: (-round(sums[row], 6), row))
    assert answers.rows.tolist() == expected
    assert answers.cosines == pytest.approx([cosines[row] for row in expected])
    assert answers.bm25 == pytest.approx([bm25[row] for row in expected])
    for ranks, given in ((answers.cosine_ranks, by_vectors), (answers.bm25_ranks, by_words)):
        places = {row: place for place, row in enumerate(given, 1)}
        assert ranks.tolist() == [places.get(row, 0) for row in expected]


def test_rankings_without_rows_join_to_none():
    none = np.empty(0, np.int64), np.empty(0, np.float32)
    assert [len(column) for column in join_rankings(none, none, 3, NO_MATCH, len, len)] == 5 * [0]


def test_what_found_a_row_is_the_one_way_that_has_it_among_as_many():
    ranks = np.array([1, 2, 9, 0, 7, 0]), np.array([1, 8, 2, 3, 7, 0])
    ways = ways_of(
        JoinedRanking(np.arange(6), np.zeros(6, np.float32), np.ones(6, np.float32), *ranks)
    )
    assert list(ways) == [
        ("both", 1, 1, 1),
        ("meaning", 1, 2, 8),
        ("words", 1, 9, 2),
        ("words", 1, None, 3),
        ("both", 1, 7, 7),
        ("both", 1, None, None),
    ]


def build(texts, seed=0):
    rows = ArrayRows(
        vectors(len(texts), seed=seed), [f"r{row}" for row in range(len(texts))], texts
    )
    return VectorIndex.build(rows, lexical=True)


def test_both_rankings_are_joined_and_obey_filters():
    texts, query = random_texts(300), vectors(1, seed=5)
    index = build(texts)
    for options in ({}, {"where": "not id in ('r3', 'r7')"}, {"where": "id like 'r%0'"}):
        for asked in ("X-200 cat", "absent"):
            [by_vectors] = index.search(query, 300, **options)
            [by_words] = index.search(None, 300, words=[asked], **options)
            compared = {hit.id: hit for hit in (*by_vectors[:100], *by_words[:100])}
            cosines = {hit.id: hit.score for hit in by_vectors if hit.id in compared}
            scores = {hit.id: hit.score for hit in by_words}
            sums = plainly_joined(
                cosines,
                {name: scores.get(name, 0) for name in cosines},
                index.words.ask(asked).match(
                    ([int(hit.id[1:]) for hit in by_words], [hit.score for hit in by_words])
                ),
                [hit.score for hit in by_vectors[:100]],
            )
            hits, other = index.search(
                np.concatenate([query, -query]), 10, words=[asked, "dog"], **options
            )
            expected = sorted(sums, key=lambda name: (-np.float32(sums[name]), int(name[1:])))[:10]
            assert [hit.id for hit in hits] == expected and hits != other
            for hit in hits:
                assert hit.score == pytest.approx(cosines[hit.id], abs=1e-6)
                assert hit.bm25 == pytest.approx(scores.get(hit.id, 0), abs=1e-6)
            assert index.search(query, 10, words=[asked], **options) == [hits]


@pytest.mark.parametrize("factory", ["HNSW8", "IVF4,SQ8", "IVF4,PQ4x4fs,Refine(SQfp16)"])
def test_rows_that_words_alone_find_have_their_cosine_in_every_kind_of_index(factory):
    texts = [*random_texts(700), "a zebra"]
    rows = ArrayRows(vectors(701), range(701), texts)
    index = VectorIndex.build(rows, factory, lexical=True)
    units = rows.vectors / np.linalg.norm(rows.vectors, axis=1, keepdims=True)
    [[hit]] = index.search(-units[-1:], 1, words=["zebra"])
    assert (hit.id, hit.found_by, hit.cosine_rank) == (700, "words", None)
    assert hit.score == pytest.approx(-1, abs=2e-2)


def test_a_row_with_the_one_rare_word_of_a_query_comes_first():
    texts = [*random_texts(400), "KX-4831 is here, among many other words that nobody asked for"]
    index = build(texts)
    farthest = -index.vectors(np.array([400]))
    [[hit, *_]] = index.search(farthest, 10, words=["kx 4831"])
    assert (hit.id, hit.found_by, hit.bm25_rank) == ("r400", "words", 1)


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
        ("cafe", {2, 3}),
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


FORMS = {
    "German": (
        "Die Rechnung ist nicht bezahlt und liegt bei uns.",
        {"Rechnungen": 1, "rechnung": 1, "bezahlte": 1, "Zahl": 0, "lag": 0},
    ),
    "German ": (
        "Herr Müller hat die Straße für das Büro gesperrt.",
        {"Mueller": 1, "Muller": 1, "STRASSE": 1, "Straßen": 1, "buero": 1},
    ),
    "French": (
        "Les étudiants ont fermé la réservation avec leur carte.",
        {"etudiant": 1, "étudiante": 1, "réservations": 1, "fermer": 1},
    ),
    "Portuguese": (
        "A informação não está no coração da página.",
        {"informacao": 1, "informações": 1, "informacoes": 1, "corações": 1, "paginas": 1},
    ),
    "Russian": (
        "Мы оплатили счёт за новые книги в договоре.",
        {"счета": 1, "счет": 1, "книга": 1, "договор": 1, "новый": 1},
    ),
    "English": (
        "The engines were running while she looked at the résumé of Rogers in mt5_small.",
        {"engine": 1, "runs": 1, "resume": 1, "Roger": 1, "mt5_smalls": 0, "mt5_small": 1},
    ),
}


def test_words_of_many_texts_are_those_of_each():
    signs = "".join(map(chr, range(128)))
    texts = [
        "A cat, 2 cats",
        "",
        "Le CAFÉ, 2 fois",
        signs,
        " ",
        "猫在 x_1",
        "a",
        "no\x1cone\ntwo",
        "",
    ]
    for given in (texts, texts[:2], texts[2:3], [""], []):
        found, rows = words_of_each(given)
        of_rows = [[] for _ in given]
        for word, row in zip(found, rows.tolist(), strict=True):
            of_rows[row].append(word)
        assert list(map(sorted, of_rows)) == [sorted(words(text)) for text in given]


@pytest.mark.parametrize("language", FORMS)
def test_the_forms_of_a_word_find_one_another(language):
    text, forms = FORMS[language]
    found = Lexical.build([text, "..."], np.arange(2))
    for query, expected in forms.items():
        assert len(found.rank(query, 5, None)[0]) == expected, query
        read = QueryWords(query, main_language([text]))
        assert read.count([text])[0].any() == bool(expected), query


def test_a_word_as_it_is_written_comes_before_its_other_forms():
    texts = ["Simmon lives by the creek", "Simmons lives by the creek", "a rose by the creek"]
    found = Lexical.build(texts, np.arange(3))
    for query, first in (("Simmons", 1), ("simmon", 0)):
        assert found.rank(query, 5, None)[0].tolist() == [first, 1 - first]


def test_codes_have_no_stems_and_scripts_their_own():
    stem = stemmer_of("English")
    assert [stem(word) for word in words("KX-4831s parses_all 猫 книги runs ΛΌΓΟΣ")] == [
        *("kx", "4831s", "parses_all", "猫", "книг", "run", stem("λογος"))
    ]


@pytest.mark.parametrize(
    ("cosines", "away"),
    [
        ([0.9, *[0.1] * 9], 0),  # of ten rows a tenth is the nearest itself
        ([0.9, *[0.2] * 9, *[0.1] * 91], 0.875),  # the tenth of a hundred
        ([0.5, 0.5, 0.5], 0),
        ([0.5], 0),
        ([], 0),
    ],
)
def test_the_nearest_stands_out_of_a_tenth_of_the_rows(cosines, away):
    assert stand_out(np.array(cosines[:100], np.float32)) == pytest.approx(away)


def test_words_count_less_where_they_miss_and_vectors_stand_out():
    near = np.array([0.9, *[0.2] * 50], np.float32)
    far = np.linspace(0.9, 0.2, 51, dtype=np.float32)
    some, strong, all_words = Match(0.5, 0.5), Match(0.5, 1), Match(1, 0.6)
    assert weight_of_words(far, all_words) == weight_of_words(near, all_words) == 0.8
    assert weight_of_words(far, NO_MATCH) == weight_of_words(near, NO_MATCH) == 0
    assert 0.4 < weight_of_words(far, some) < weight_of_words(far, strong) < 0.8
    assert weight_of_words(near, strong) < weight_of_words(far, some)


def test_an_index_whose_words_another_version_counted_is_searched_by_meaning(tmp_path, caplog):
    caplog.set_level("INFO", "promptcli")
    encoder, folder, file = pc.load("static-avg"), tmp_path / "idx", tmp_path / "a.txt"
    file.write_text("Model X-200 is loud.\nThe engine makes a lot of noise.\n")

    def make_old():
        document = json.loads((folder / "index.json").read_text())
        document["word_rule"] -= 1
        document.pop("word_language", None)
        (folder / "index.json").write_text(json.dumps(document))
        caplog.clear()

    pc.sync_index(folder, [file], encoder)
    make_old()
    assert len(list(pc.search_index(folder, ["loud", "engines"], model=encoder))) == 2
    assert caplog.text.count("another version") == 1
    assert f"`promptcli index compact {folder} --lexical`" in caplog.text
    for by in ("both", "words"):
        with pytest.raises(UsageError, match="--lexical"):
            list(pc.search_index(folder, ["x"], model=encoder, by=by))
    for count_again in (
        lambda: compact_index(folder),
        lambda: compact_index(folder, lexical=True),
        lambda: pc.sync_index(folder, [file]),
    ):
        make_old()
        count_again()
        [(_, [hit, *_])] = pc.search_index(folder, "engines", by="words")
        assert hit.text == "The engine makes a lot of noise."
        assert "another version" not in caplog.text


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("Model X-200 is loud.\nThe engine makes a lot of noise.\nA cat sleeps.\n")
    return file


def test_words_are_counted_unless_told_not_to(file, tmp_path, caplog):
    caplog.set_level("INFO", "promptcli")
    encoder = pc.load("static-avg")
    assert pc.build_index(file, tmp_path / "built", encoder).lexical
    assert not pc.build_index(file, tmp_path / "plain", encoder, lexical=False).lexical
    assert pc.sync_index(tmp_path / "synced", [file], encoder).lexical
    assert not pc.sync_index(tmp_path / "plainly", [file], encoder, lexical=False).lexical
    assert not pc.sync_index(tmp_path / "plainly", [file]).lexical  # as it is
    assert pc.sync_index(tmp_path / "plainly", [file], lexical=True).lexical
    for folder in ("built", "synced", "plainly"):
        for by in ({"by": "words"}, {"lexical": True}):
            [(_, hits)] = pc.search_index(tmp_path / folder, "x-200", **by)
            assert [hit.text for hit in hits] == ["Model X-200 is loud."]
        for by in ({}, {"by": "both"}, {"hybrid": True}):
            [(_, hits)] = pc.search_index(tmp_path / folder, ["x-200 noise"], model=encoder, **by)
            assert len(hits) == 3 and hits[-1].text == "A cat sleeps." and hits[0].found_by
    embedded = pc.embed(file, tmp_path / "v.npy", model=encoder)
    assert embedded and not pc.build_index(tmp_path / "v.npy", tmp_path / "bare").lexical
    with pytest.raises(UsageError, match="have none"):
        pc.build_index(tmp_path / "v.npy", tmp_path / "worded", lexical=True)
    caplog.clear()
    [(_, hits)] = pc.search_index(tmp_path / "bare", ["x"], model=encoder)
    assert hits[0].found_by is None and "no words" not in caplog.text


def test_an_index_without_words_is_searched_by_meaning_and_says_what_to_type(
    file, tmp_path, caplog
):
    caplog.set_level("INFO", "promptcli")
    encoder, folder = pc.load("static-avg"), tmp_path / "plain"
    pc.build_index(file, folder, encoder, lexical=False)
    by_meaning = list(pc.search_index(folder, ["loud", "cat"], model=encoder))
    assert caplog.text.count(f"`promptcli index compact {folder} --lexical`") == 1
    caplog.clear()
    assert list(pc.search_index(folder, ["loud", "cat"], model=encoder, by="meaning")) == by_meaning
    assert "--lexical" not in caplog.text
    for options in ({"hybrid": True}, {"lexical": True}, {"by": "both"}):
        with pytest.raises(UsageError, match=r"no BM25.*--lexical"):
            list(pc.search_index(folder, ["x"], **options))
    assert compact_index(folder, lexical=True).lexical
    [(_, [hit])] = pc.search_index(folder, ["x-200"], k=1, model=encoder)
    assert hit.text == "Model X-200 is loud." and hit.bm25 > 0
    assert compact_index(folder).lexical and not compact_index(folder, lexical=False).lexical


def test_one_way_to_rank_is_given(file, tmp_path):
    pc.build_index(file, tmp_path / "idx", pc.load("static-avg"))
    for options in ({"hybrid": True, "lexical": True}, {"by": "meaning", "lexical": True}):
        with pytest.raises(UsageError, match="give one"):
            list(pc.search_index(tmp_path / "idx", ["x"], **options))
    with pytest.raises(UsageError, match="unknown by 'word'; valid: both, meaning, words"):
        list(pc.search_index(tmp_path / "idx", ["x"], by="word"))


def test_the_least_score_is_a_cosine_unless_words_alone_rank(file, tmp_path):
    encoder = pc.load("static-avg")
    pc.build_index(file, tmp_path / "idx", encoder)
    [(_, hits)] = pc.search_index(tmp_path / "idx", ["A cat sleeps."], model=encoder, min_score=1)
    assert [hit.text for hit in hits] == ["A cat sleeps."]
    [(_, [hit])] = pc.search_index(tmp_path / "idx", ["x-200"], by="words")
    for least, found in ((hit.score, [hit]), (hit.score + 1, [])):
        [(_, hits)] = pc.search_index(tmp_path / "idx", ["x-200"], by="words", min_score=least)
        assert hits == found


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
        by = {"hybrid": "both", "lexical": "words"}[ranking]
        [same] = pc.evaluate(encoder, [f"retrieval:{tmp_path / 'r.parquet'}"], by=by)
        assert (same.task, same.value) == (score.task, score.value)
        found = index.search(units, 10, words=list(queries))
        places = [
            next((place for place, hit in enumerate(hits, 2) if hit.id == wanted), math.inf)
            for hits, wanted in zip(found, queries.values(), strict=True)
        ]
        assert score.by_example == pytest.approx([1 / np.log2(place) for place in places])
        assert 0 < score.value < 100
    with pytest.raises(UsageError, match="retrieval:FILE"):
        pc.evaluate(encoder, ["demo:dev"], by="both")


def test_an_index_in_memory_counts_words_too(tmp_path):
    texts = ["Model X-200 is loud.", "The engines make a lot of noise.", "A cat sleeps."]
    encoder = pc.load("static-avg")
    index = pc.SentenceIndex.build(texts, encoder)
    assert [hit.text for hit in index.search("x-200", by="words")] == texts[:1]
    assert [[hit.text for hit in hits] for hits in index.search(["engine"], by="words")] == [
        texts[1:2]
    ]
    assert index.search("x-200", k=1, by="both")[0].text == texts[0]
    assert index.search("x-200")[0].found_by is None
    index.save(tmp_path / "idx")
    [(_, [hit, *_])] = pc.search_index(tmp_path / "idx", "x-200", model=encoder)
    assert hit.text == texts[0] and hit.bm25 > 0
    plain = pc.SentenceIndex.build(texts, encoder, lexical=False)
    with pytest.raises(UsageError, match="--lexical"):
        plain.search("x", by="both")
    with pytest.raises(UsageError, match="unknown by 'word'"):
        index.search("x", by="word")
