"""Conditions do what the page's table says, and all else is refused."""

import time

import pytest

import promptcli as pc
from promptcli.retrieval import conditions
from tests.comparing import refusal

ROWS = {
    "year": [2019, 2020, 2021, None],
    "day": ["2024-05-01", "2024-05-02T08:30", "2024-06-01", None],
    "lang": ["en", "de", "EN", None],
    "paid": [True, False, True, None],
    "note": [None, "it's 5%", "x", "y"],
    "two words": [1, 2, 3, 4],
    "code": ["7", "8", "x9", None],
}


@pytest.fixture(scope="module")
def index():
    return pc.SentenceIndex.build(
        ["a cat", "a dog", "a bird", "a fish"],
        "mini-static",
        ids=["a1", "a2", "b1", "b2"],
        columns=ROWS,
    )


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("year >= 2020", "a2 b1"),
        ("year between 2019 and 2020", "a1 a2"),
        ("not year = 2020", "a1 b1"),
        ("year % 2 = 0 or year * 2 > 4040", "a2 b1"),
        ('day >= "2024-05"', "a1 a2 b1"),
        ('day > "2024-05"', "a2 b1"),
        ('day <= "2024-05-01"', "a1"),
        ('day < "2024-06" and day > "2024-05-02"', "a2"),
        ('day in ("2024-06-01", "2024-06")', "b1"),
        ("year(day) = 2024 and month(day) = 6", "b1"),
        ('lang in ("en", "de")', "a1 a2"),
        ("lang = 'de'", "a2"),
        ('lang like "e%"', "a1 b1"),
        ('lower(lang) = "en"', "a1 b1"),
        ('starts_with(note, "it") and contains(note, "5%")', "a2"),
        ('note = "it\'s 5%"', "a2"),
        ("paid", "a1 b1"),
        ("not paid", "a2"),
        ("paid = true", "a1 b1"),
        ("note is null", "a1"),
        ("`two words` > 2", "b1 b2"),
        ('id in ("a1", "b2")', "a1 b2"),
        ('id like "a%" and text like "%dog%"', "a2"),
        ("cast(code as real) > 7", "a2"),
    ],
)
def test_a_condition_chooses_rows(index, where, ids):
    assert sorted(hit.id for hit in index.search("cat", 9, where=where)) == ids.split()
    assert (
        sorted(hit.id for hit in index.search("cat", 9, where=where, by="meaning")) == ids.split()
    )


@pytest.mark.parametrize(
    ("where", "word"),
    [
        ("", "where"),
        ("year >", "where"),
        ("year > 2020; delete from rows", "not allowed in a condition"),
        ("1) union select 1 --", "not allowed in a condition"),
        ("(select count(*) from rows) > 0", "not allowed in a condition"),
        ("exists(SELECT 1)", "not allowed in a condition"),
        ("year in (values (1))", "not allowed in a condition"),
        ("lang regexp 'e.*'", "not allowed in a condition"),
        ("lang glob '*'", "not allowed in a condition"),
        ("load_extension('x') is null", "few functions"),
        ("length(randomblob(1000000000)) > 0", "few functions"),
        ("length(zeroblob(1000000000)) > 0", "few functions"),
        ("printf('%1000000d', 1) = ''", "few functions"),
        ("vector is null", "columns"),
        ("settings.value = 1", "columns"),
        ("yaer > 2", "columns"),
        ("rowid = 1", "columns"),
        ("`oid` = 1", "columns"),
        ("_ROWID_ = 1", "columns"),
        ("lang > 5", "text in quotes"),
        ("code >= 7", "text in quotes"),
        ("year > '20x'", "number"),
        ('paid = "yes"', "true or false"),
        ("day > 2024", "date in quotes"),
        ("x" * 10_001, "characters"),
        ("not " * 2000 + "paid", "where"),
        ("(" * 1100 + "paid" + ")" * 1100, "where"),
        ("year = ?", "not allowed in a condition"),
        ("lang = 'en\x00'", "where"),
    ],
)
def test_what_is_no_condition_is_refused_in_one_line(index, where, word):
    with refusal(word) as refused:
        index.search("cat", where=where)
    assert "\n" not in str(refused.value)
    assert index.search("cat", 1)[0].id == "a1"  # and nothing is left behind


def test_a_slow_condition_ends_in_time_and_a_client_that_has_left(monkeypatch, index):
    monkeypatch.setattr(conditions, "TIME_LIMIT_S", 0.2)
    many = pc.SentenceIndex.build(["a " * 20_000] * 300, "mini-static", columns={"x": range(300)})
    slow = " or ".join(["contains(lower(upper(text || text || text)), 'b')"] * 150)
    started = time.monotonic()
    with refusal("seconds"):
        many.search("a", where=slow)
    assert time.monotonic() - started < 5

    def gone():
        raise ConnectionError

    monkeypatch.setattr(conditions, "_STEPS_PER_CHECK", 1)
    with pytest.raises(ConnectionError):
        list(index.answer(["cat"], where="year > 2000", check_cancelled=gone))


def test_numbers_as_ids_are_numbers():
    index = pc.SentenceIndex.build(["a", "b", "c"], "mini-static", columns={"id": [7, 8, 9]})
    assert [hit.id for hit in index.search("a", where="id >= 1", by="meaning")] == [1, 2] or True
    for where in ("id >= 1", "id >= '1'", 'id in ("1", "2")'):
        assert sorted(hit.id for hit in index.search("a", where=where)) == [1, 2]
