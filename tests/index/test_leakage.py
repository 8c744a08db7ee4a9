"""Rows of one set that stand in another: files, vectors and indexes."""

import csv
import io
import json

import numpy as np
import pytest

import promptcli as pc
from promptcli.data.demo import SENTENCES_FILE
from promptcli.data.vectors.precision import unit
from promptcli.errors import UsageError
from promptcli.index.array_rows import ArrayRows
from promptcli.index.leakage import ComparedRows, NearRows, TextSet, normalise
from promptcli.index.vector_index import VectorIndex

TRAIN = ["A cat sleeps.", "Prices fell in May.", "Two dogs play.", "Das Café ist groß."]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("\n".join(TRAIN), encoding="utf-8")
    return tmp_path


def by_text(train, test):
    """Return kind, row and source row of what stands in a file by its text."""
    leaks = pc.find_leaks(train, test, threshold=1)
    return [(leak.kind, leak.id, leak.source.id) for leak in leaks.found]


def demo_lines(count):
    return SENTENCES_FILE.read_text(encoding="utf-8").splitlines()[:count]


@pytest.mark.parametrize(
    "text",
    [
        "a CAT sleeps.",
        "  A cat\tsleeps. \u3000",
        "\ufeffA cat sleeps.",
        "A ca\u00adt sleeps.",
        "Ａ ｃａｔ ｓｌｅｅｐｓ.",
        "A cat\u00a0sleeps.",
    ],
)
def test_case_spaces_and_forms_of_characters_do_not_count(text):
    assert normalise(text) == normalise(TRAIN[0]) == "a cat sleeps."


def test_unicode_forms_are_one_text_and_other_texts_stay_apart():
    assert normalise("Das Cafe\u0301 ist GROSS.") == normalise(TRAIN[3])
    assert len({normalise(text) for text in ("C++", "C", "C#", "résumé", "resume", "")}) == 6


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_rows_by_text_whatever_the_file_looks_like(place, encoding, end):
    rows = ["New.", TRAIN[2], "", "  ", "das cafe\u0301 ist gross.", TRAIN[2], "a cat  sleeps."]
    (place / "test.txt").write_bytes(end.join(rows).encode(encoding))
    assert by_text("train.txt", "test.txt") == [
        ("exact", 1, 2),
        ("normalised", 4, 3),
        ("exact", 5, 2),
        ("normalised", 6, 0),
    ]
    leaks = pc.find_leaks("train.txt", "test.txt", threshold=1)
    assert (leaks.rows, leaks.source_rows, leaks.threshold) == (5, 4, None)
    assert leaks.counts == {"exact": 2, "normalised": 2, "near": 0} and leaks.share == 0.8


def test_the_first_row_with_the_same_text_is_named_before_one_that_is_alike(place):
    (place / "train.txt").write_text("a cat\nA cat\nA cat\n")
    (place / "test.txt").write_text("A cat\nA CAT\n")
    assert by_text("train.txt", "test.txt") == [("exact", 0, 1), ("normalised", 1, 0)]


def test_every_sentence_of_pairs_and_triplets_is_a_row(place):
    (place / "train.csv").write_text(
        'id,anchor,positive,negative\n7,A cat,"A kitten, asleep",\n8,A dog,A puppy,Prices fell\n'
    )
    (place / "test.tsv").write_text(
        "sentence1\tsentence2\tscore\nA kitten, asleep\tSnow\t4.5\nRain\tprices FELL\t0.5\n"
    )
    assert by_text("train.csv", "test.tsv") == [
        ("exact", "0:sentence1", "0:positive"),
        ("normalised", "1:sentence2", "1:negative"),
    ]
    assert by_text("train.csv:positive", "test.tsv:sentence1") == [("exact", 0, 0)]
    (place / "lines.jsonl").write_text('{"id": "q1", "text": "a dog"}\n')
    assert by_text("train.csv", "lines.jsonl") == [("normalised", "q1", "1:anchor")]


def test_without_a_row_in_common_nothing_is_found_and_blank_files_are_no_error(place, run):
    (place / "test.txt").write_text("Snow melts.\n")
    (place / "blank.txt").write_text("\n \n")
    assert by_text("train.txt", "test.txt") == by_text("blank.txt", "test.txt") == []
    leaks = pc.find_leaks("train.txt", "blank.txt")
    assert (leaks.rows, leaks.share, leaks.found) == (0, 0, [])
    assert run("dups", "blank.txt", "--against", "train.txt", "--check").code == 0
    (place / "empty.txt").write_text("")
    for words in (("train.txt", "--against", "empty.txt"), ("empty.txt", "--against", "train.txt")):
        ran = run("dups", *words)
        assert ran.code == 2 and "empty.txt" in ran.err


def test_near_rows_of_files_with_the_threshold_that_is_said(place, run):
    lines = demo_lines(400)
    (place / "train.txt").write_text("\n".join(lines[:300]))
    near = f"{lines[5].rstrip('.')} today."
    (place / "test.txt").write_text("\n".join(["", *lines[300:], near, lines[7]]))
    ran = run("dups", "train.txt", "--against", "test.txt", "--json")
    made = json.loads(ran.out)
    assert f"--threshold {made['threshold']:g}" in ran.err and 0.5 < made["threshold"] < 1
    kinds = {(leak["id"], leak["kind"], leak["source_id"]) for leak in made["leaks"]}
    assert {(101, "near", 5), (102, "exact", 7)} <= kinds and len(kinds) <= 4
    [leak] = [leak for leak in made["leaks"] if leak["id"] == 101]
    assert leak["text"] == near and leak["source_text"] == lines[5]
    assert leak["rarity"] > 99 and leak["score"] > made["threshold"]
    assert made["found"] == len(made["leaks"]) == sum(made["kinds"].values())
    ran = run("dups", "train.txt", "--against", "test.txt", "--min-rarity", 99.99, "--json")
    often = json.loads(ran.out)
    assert all(leak["rarity"] in (None, 99.99) for leak in often["leaks"])
    assert often["threshold"] is None and "about 3 of 100 unrelated rows" in ran.err
    ran = run("dups", "train.txt", "--against", "test.txt", "--min-rarity", 50, "--json")
    assert "about 100 of 100 unrelated rows" in ran.err
    both = ("--threshold", made["threshold"], "--min-rarity", 90)
    ran = run("dups", "train.txt", "--against", "test.txt", *both, "--json")
    assert json.loads(ran.out)["leaks"] == made["leaks"]


def test_lines_csv_and_exit_codes(place, run):
    (place / "test.txt").write_text("a cat sleeps.\nSnow melts.\nTwo dogs play.\n")
    words = ("dups", "train.txt", "--against", "test.txt", "--threshold", 1)
    ran = run(*words)
    assert "normalised" in ran.out and "2 = 2" in ran.out and "66.67%" in ran.out
    assert ran.code == 0 and "2 of 3 rows of test.txt" in ran.err
    rows = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv").out)))
    assert [row["source_text"] for row in rows] == ["A cat sleeps.", "Two dogs play."]
    ran = run(*words, "--check", "--json")
    assert ran.code == 4 and json.loads(ran.out)["found"] == 2 and "2 of 3 rows" in ran.err
    assert run(*words, "--check").err.count("2 of 3 rows") == 1
    assert run(*words, "--json", "--format", "csv").code == 2
    (place / "test.txt").write_text("Snow melts.\n")
    assert run(*words, "--check").code == 0


def test_a_file_is_compared_with_itself_and_a_stream_once(place, run):
    ran = run("dups", "train.txt", "--against", "./train.txt", "--json")
    assert json.loads(ran.out)["kinds"] == {"exact": 4, "normalised": 0, "near": 0}
    assert "itself" in ran.err
    assert run("dups", "-", "--against", "-").code == 2
    stream = io.BytesIO("\n".join(TRAIN).encode())
    assert len(pc.find_leaks(stream, "train.txt").found) == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"threshold": 0}, "`threshold=0` is not allowed; valid: above 0 and at most 1"),
        ({"threshold": 1.5}, "`threshold=1.5` is not allowed; valid: above 0 and at most 1"),
        ({"min_rarity": 100}, "give a"),
        ({"min_rarity": -1}, "give a"),
    ],
)
def test_a_threshold_that_no_row_has_is_refused(wrong, message, place):
    with pytest.raises(UsageError, match=message):
        pc.find_leaks("train.txt", "train.txt", **wrong)


def test_a_threshold_that_no_row_has_is_named_as_it_is_typed(place, run):
    for command in ("dups train.txt --against train.txt", "index dups folder"):
        ran = run(*command.split(), "--threshold", "2")
        assert (ran.code, ran.out) == (2, "") and "--threshold 2.0 is not allowed" in ran.err


@pytest.mark.parametrize("count", [1, 2, 3, 49])
def test_few_rows_have_the_usual_threshold_and_no_rarity(count, place, run):
    lines = demo_lines(count + 1)
    (place / "train.txt").write_text("\n".join(lines[:count]))
    (place / "test.txt").write_text(f"{lines[0].rstrip('.')} today.\n{lines[count]}\n")
    ran = run("dups", "train.txt", "--against", "test.txt", "--json")
    assert json.loads(ran.out)["threshold"] == 0.95 and "0.95" in ran.err
    ran = run("dups", "train.txt", "--against", "test.txt", "--min-rarity", 90)
    assert ran.code == 2 and "too few" in ran.err
    pc.build_index("train.txt", "few", "mini-static", rows="lines")
    assert "0.95" in run("index", "dups", "few").err


def test_a_stream_is_text_whatever_its_lines_hold(place):
    lines = ["one, two, three", "four, five", "one, two, three, four"]
    (place / "test.txt").write_text("\n".join(lines))
    leaks = pc.find_leaks(io.BytesIO("\n".join(lines).encode()), "test.txt", threshold=1)
    assert [(leak.id, leak.source.text) for leak in leaks.found] == [*enumerate(lines)]


# Indexes


@pytest.fixture
def index(place):
    lines = demo_lines(260)
    (place / "train.txt").write_text("\n".join(lines[:200]))
    (place / "test.txt").write_text(
        "\n".join([lines[3], lines[4].upper(), f"{lines[5].rstrip('.')} today.", *lines[200:]])
    )
    pc.build_index("train.txt", "train", "mini-static")
    return place


@pytest.mark.parametrize("kind", ["sentences", "index", "parquet", "npy"])
def test_a_file_vectors_and_an_index_are_compared_alike(kind, index, run):
    other = "test.txt"
    if kind == "index":
        pc.build_index("test.txt", "test", "mini-static", rows="lines")
        other = "test"
    elif kind != "sentences":
        pc.embed("test.txt", f"test.{kind}", "mini-static")
        other = f"test.{kind}"
    ran = run("index", "dups", "train", "--against", other, "--threshold", 0.95, "--json")
    made = json.loads(ran.out)
    found = {(leak["id"], leak["kind"], leak["source_id"]) for leak in made["leaks"]}
    if kind == "npy":  # it has no texts
        assert {(row, source) for row, _, source in found} == {(0, 3), (1, 4), (2, 5)}
        assert made["kinds"]["near"] == 3
    else:
        assert found == {(0, "exact", 3), (1, "normalised", 4), (2, "near", 5)}
    assert (made["rows"], made["source_rows"]) == (63, 200)
    ran = run("index", "dups", "train", "--against", other, "--threshold", 0.95, "--check")
    assert ran.code == 4 and "3 of 63 rows" in ran.err


def test_deleted_rows_of_an_index_are_no_source(index):
    pc.index.delete_from_index("train", ["3"])
    leaks = pc.find_index_leaks("train", "test.txt", threshold=1)
    assert [leak.id for leak in leaks.found] == [1] and leaks.source_rows == 199


def test_texts_alone_are_not_encoded(index, monkeypatch):
    encoder = pc.load("mini-static")
    monkeypatch.setattr(
        type(encoder), "encode_windows", lambda self, windows, **options: (1 / 0 for _ in windows)
    )
    assert len(pc.find_index_leaks("train", "test.txt", threshold=1).found) == 2
    assert len(pc.find_leaks("train.txt", "test.txt", threshold=1).found) == 2
    with pytest.raises(ZeroDivisionError):
        pc.find_leaks("train.txt", "test.txt")


def test_columns_of_the_index_are_shown_and_options_that_do_not_go_together_refused(place, run):
    (place / "t.csv").write_text("text,year\nA cat sleeps.,2020\n")
    pc.build_index("t.csv", "i", "mini-static")
    words = ("index", "dups", "i", "--against", "train.txt", "--threshold", 1)
    assert "[year: 2020]" in run(*words, "--show", "year").out
    near = ("index", "dups", "i", "--against", "n.txt", "--threshold", 0.9, "--show", "year")
    (place / "n.txt").write_text("Sleeps a cat.\n")
    assert "[year: 2020]" in run(*near).out
    assert run(*words, "--links", "chain").code == 2
    assert run("index", "dups", "i", "--min-rarity", 99).code == 2
    assert run("dups", "i", "--against", "train.txt").code == 2


def test_an_index_of_another_encoder_is_refused(index):
    pc.build_index("test.txt", "other", "static-avg", rows="lines")
    with pytest.raises(UsageError, match="static-avg"):
        pc.find_index_leaks("train", "other")


# Expectation


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_repeat_are_near_and_few_others(seed):
    generator = np.random.default_rng(seed)
    source = unit(generator.normal(size=(3000, 48)).astype(np.float32))
    others = generator.normal(size=(600, 48)).astype(np.float32)
    others[:60] = source[:60] + 0.025 * generator.normal(size=(60, 48))
    rows = ComparedRows(None)
    index = VectorIndex.build(ArrayRows(source, range(3000), None), "Flat")
    block = next(ArrayRows(unit(others), range(600), None).blocks())
    near = NearRows(rows, index, [*rows.vectors_without_equals([block])])
    near.add(near.propose_threshold(), None)
    found = rows.result(3000, None).found
    assert {(row, row) for row in range(60)} <= {(leak.id, leak.source.id) for leak in found}
    assert len(found) <= 66


def test_a_set_without_rows_has_no_text():
    import pyarrow as pa

    empty = TextSet(pa.chunked_array([], pa.int64()), pa.chunked_array([], pa.string()))
    assert empty.find(["a", ""]) == [None, None] and len(empty.distinct) == 0
