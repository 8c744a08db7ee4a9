"""The commands of ``index`` as a user types them, on a fake encoder and on mini."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from promptcli.models import loading as encoders
from promptcli.retrieval.sentence_index import SentenceIndex
from tests.comparing import refused
from tests.fake_commands import embed
from tests.fake_encoder import FakeEncoder, vector

SENTENCES = [
    "A cat sleeps.",
    "A dog runs fast.",
    "Rain falls on the roof.",
    "The market opens at nine.",
]


@pytest.fixture
def fake(monkeypatch):
    """Make every encoder the returned fake one, which keeps what it was opened with."""
    encoder = FakeEncoder()
    encoder.opened = []

    def open_encoder(model, *, dtype="stored", **_):
        encoder.opened.append((model, dtype))
        return encoder

    monkeypatch.setattr(encoders, "open_encoder", open_encoder)
    return encoder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in SENTENCES))
    return path


@pytest.fixture
def built(run, fake, text, tmp_path):
    assert run("index", "build", text, "-o", tmp_path / "idx").code == 0
    fake.opened.clear()
    return tmp_path / "idx"


def lines(ran):
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


@pytest.fixture
def search(run):
    """Search an index and return the hits."""
    return lambda index, query, *options: lines(
        run("index", "search", index, query, "--json", *options)
    )


def embedded(run, text, name):
    assert run("embed", text, "-o", text.with_name(name)).code == 0
    return text.with_name(name)


# Build and search


def test_search_for_a_sentence_and_for_the_lines_of_a_file(
    run, search, built, text, tmp_path, monkeypatch
):
    found = search(built, SENTENCES[2], "-k", 3)
    names = ["query", "rank", "id", "text", "score"]
    ways = ["found_by", "bm25", "cosine_rank", "bm25_rank"]
    assert all(list(hit) == [*names, *ways] for hit in found)
    by_meaning = search(built, SENTENCES[2], "--by", "meaning")
    assert all(list(hit) == names for hit in by_meaning)
    assert [(hit["query"], hit["rank"]) for hit in found] == [
        (SENTENCES[2], rank) for rank in (1, 2, 3)
    ]
    assert [hit["text"] for hit in found] == [SENTENCES[hit["id"]] for hit in found]
    ran = run("index", "search", built, SENTENCES[2], "-k", 2)
    assert (
        ran.out.splitlines()[0].split(maxsplit=4) == ["1", "1.0000", "both", "2", SENTENCES[2]]
        and ran.err == ""
    )

    from_file = search(built, text, "-k", 1)
    assert [(hit["query"], hit["text"], hit["id"]) for hit in from_file] == [
        (line, line, row) for row, line in enumerate(SENTENCES)
    ]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    assert search(built, "-", "-k", 1) == from_file
    (tmp_path / "q.jsonl").write_text('{"question": "A cat sleeps.", "id": "q1"}\n')
    ran = run("index", "search", built, tmp_path / "q.jsonl", "--text-field", "question", "-k", 1)
    assert ran.out.splitlines()[0] == "query: A cat sleeps."

    assert [hit["id"] for hit in search(built, SENTENCES[0], "--min-score", 0.99, "-k", 1000)] == [
        0
    ]
    ran = run("index", "search", built, SENTENCES[0], "--min-score", 1.5)
    assert (ran.code, ran.out) == (
        0,
        "",
    ) and f"no row scores at least 1.5 for {SENTENCES[0]!r}\n" in ran.err
    ran = run("index", "search", built, SENTENCES[0], "--where", "id = 99")
    assert (ran.code, ran.out) == (0, "") and "no row meets the condition\n" in ran.err
    assert {hit["id"] for hit in search(built, "x", "--where", "id in (0, 3)")} == {0, 3}


def test_a_blank_line_of_a_file_of_queries_has_no_hits(run, built, tmp_path):
    queries = tmp_path / "queries.txt"
    queries.write_text(f"{SENTENCES[0]}\n\n \n{SENTENCES[1]}\n")
    ran = run("index", "search", built, queries, "--json", "-k", 1)
    assert [hit["query"] for hit in lines(ran)] == SENTENCES[:2]
    assert ran.err.count("a blank query has no hits") == 2


def test_the_encoder_is_made_again_from_the_index(run, built, fake):
    run("index", "search", built, "x")
    entry, dtype = fake.opened[0]
    assert (entry.recipe, entry.tensors, dtype) == (fake.recipe, {}, "float32")
    fake.fingerprint = "e" * 64
    said = refused(run("index", "search", built, "x"), 4)
    assert "fake has changed since the index was built with it; build the index again" in said


def test_blank_texts_are_left_out_cut_ones_noted_and_control_characters_not_printed(
    run, fake, search, tmp_path
):
    texts = ["red \x1b[31m\nnext", "", "word " * 20]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    ran = run("index", "build", tmp_path / "in.jsonl", "-o", tmp_path / "i")
    assert "blank" in ran.err and "sentences cut to" in ran.err
    assert (
        "blank"
        in run("index", "add", tmp_path / "i", tmp_path / "in.jsonl", "--allow-duplicates").err
    )
    found = search(tmp_path / "i", "x")
    assert len(found) == 4 and all(hit["text"].strip() for hit in found)
    ran = run("index", "search", tmp_path / "i", "x")
    assert "\x1b" not in ran.out and ran.out.count("\n") == 4


def test_a_very_long_text_is_printed_in_part_and_complete_in_json(run, fake, search, tmp_path):
    (tmp_path / "page.txt").write_text("word " * 2000 + "\n")
    run("index", "build", tmp_path / "page.txt", "-o", tmp_path / "i", "--rows", "lines")
    found = run("search", "x", tmp_path / "page.txt", "--rows", "lines")
    shown = [run("index", "search", tmp_path / "i", "x").out, found.out]
    assert all(
        len(out) < 1000 + len(f"0.0000  meaning  {tmp_path}/page.txt:1: ") + 10 and "…" in out
        for out in shown
    )
    assert len(search(tmp_path / "i", "x")[0]["text"]) > 9000


def test_build_says_how_many_rows_and_info_shows_the_recall(run, fake, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"sentence {number}\n" for number in range(300)))
    ran = run("index", "build", tmp_path / "in.txt", "-o", tmp_path / "i", "--factory", "HNSW16")
    assert (ran.out, ran.err.endswith("/i: 300 rows\n")) == ("", True)
    out = run("index", "info", tmp_path / "i").out
    assert "recall@10 " in out and "queries 300" in out
    document = run("index", "info", tmp_path / "i", "--json").json
    assert document["recall"]["at_10"] > 0.9 and document["factory"] == "HNSW16"


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_ids_of_a_file_are_unique_or_left_out(run, fake, search, name, tmp_path):
    rows = '{"id": 1, "text": "a"}\n{"id": 2, "text": "b"}\n{"id": "1", "text": "c"}\n'
    (tmp_path / name).write_text("id,text\n1,a\n2,b\n1,c\n" if name == "t.csv" else rows)
    refused(run("index", "build", tmp_path / name, "-o", tmp_path / "i"), 2, "'1'", "--id-field")
    assert not (tmp_path / "i").exists()
    assert run("index", "build", tmp_path / name, "-o", tmp_path / "i", "--id-field", "-").code == 0
    assert {hit["id"]: hit["text"] for hit in search(tmp_path / "i", "a")} == {
        0: "a",
        1: "b",
        2: "c",
    }
    (tmp_path / "more.csv").write_text("id,text\n2,B\n9,new\n")
    more = ("index", "add", tmp_path / "i", tmp_path / "more.csv")
    refused(run(*more, "--id-field", "id"), 2, "has the id '2'", "--replace")
    assert run(*more).code == 0, "rows of the index are numbered, and these go on"
    assert {hit["id"] for hit in search(tmp_path / "i", "a")} == {0, 1, 2, 3, 4}


# Refusals


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["build", "none.txt", "-o", "i"], 3, "none.txt"),
        (["build", ".", "-o", "i"], 2, "folder"),
        (["build", "blank.txt", "-o", "i"], 2, "blank"),
        (["build", "in.txt", "-o", "in.txt"], 2, "file"),
        (["build", "in.txt", "-o", "idx"], 2, "--force replaces it"),
        (["build", "bare.npy", "-o", "i"], 2, "no manifest"),
        (["build", "narrow.npy", "-o", "i", "-m", "mini"], 2, "width 5"),
        (["search", "none", "x"], 3, "index build"),
        (["search", "idx", " "], 2, "empty"),
        (["add", "idx", "in.txt", "--replace"], 2, "--id-field"),
        (["delete", "idx"], 2, "ID"),
    ],
)
def test_mistakes_are_one_line_with_their_code(run, built, here, arguments, code, said):
    Path("blank.txt").write_text("\n \n")
    for name, width in (("bare", 8), ("narrow", 5)):
        np.save(f"{name}.npy", np.ones((4, width), np.float32))
    assert said in refused(run("index", *arguments), code)
    assert not Path("i").exists() and len(SentenceIndex.open(built)) == 4


# Stored vectors


@pytest.mark.parametrize("name", ["v.parquet", "parts"])
def test_stored_vectors_are_not_encoded_again(run, fake, search, built, text, tmp_path, name):
    if name == "parts":
        embed(tmp_path / name, [str(text)], 3, encoder=fake)
    else:
        embedded(run, text, name)
    fake.opened.clear()
    assert run("index", "build", tmp_path / name, "-o", tmp_path / "i").code == 0
    assert fake.opened == [], "no encoder is needed"
    assert search(built, SENTENCES[1]) == search(tmp_path / "i", SENTENCES[1])
    refused(
        run("index", "add", built, tmp_path / name),
        2,
        "4 of 4 texts are in the index under other ids",
    )
    ran = run("index", "add", built, tmp_path / name, "--allow-duplicates")
    assert ran.code == 0 and "8 rows" in ran.err
    assert [hit["id"] for hit in search(built, SENTENCES[1], "-k", 2)] == [1, 5], (
        "row numbers go on"
    )


def test_vectors_without_texts_have_numbers(run, fake, search, text, tmp_path):
    matrix = np.stack([vector(line) for line in SENTENCES])
    matrix[2] = 0
    np.save(tmp_path / "bare.npy", matrix)
    ran = run("index", "build", tmp_path / "bare.npy", "-m", "mini", "-o", tmp_path / "i")
    assert (
        ran.code == 0 and SentenceIndex.open(tmp_path / "i").load_origin().fingerprint == "f" * 64
    )
    [hit] = search(tmp_path / "i", SENTENCES[1], "-k", 1)
    assert (hit["id"], hit["text"]) == (1, None)
    assert run("index", "search", tmp_path / "i", SENTENCES[1], "-k", 1).out.split() == [
        "1",
        "1.0000",
        "1",
    ]


def test_vectors_of_another_encoder_are_refused(run, built, fake, text):
    fake.fingerprint = "e" * 64
    stored = embedded(run, text, "other.parquet")
    fake.fingerprint = "f" * 64
    for arguments in (("add", built, stored), ("build", stored, "-m", "mini", "-o", "i")):
        refused(run("index", *arguments), 2, "e" * 12, "f" * 12)
    assert len(SentenceIndex.open(built)) == 4


# Changes


def test_add_upsert_delete_and_compact(run, fake, search, text, tmp_path):
    (tmp_path / "in.csv").write_text(
        "key,body\n" + "".join(f"k{row},{line}\n" for row, line in enumerate(SENTENCES))
    )
    keyed, options = tmp_path / "keyed", ("--text-field", "body", "--id-field", "key")
    assert run("index", "build", tmp_path / "in.csv", "-o", keyed, *options).code == 0
    (tmp_path / "new.csv").write_text("key,body\nk1,Birds sing.\nk9,Snow melts.\n")
    ran = run("index", "add", "--replace", keyed, tmp_path / "new.csv", *options)
    assert ran.code == 0
    assert "1 row of the index replaced" in ran.err and "keyed: 5 rows" in ran.err
    assert fake.opened[-1][0].recipe == fake.recipe
    assert "has texts" in refused(run("index", "add", keyed, embedded(run, text, "v.npy")), 2)
    refused(run("index", "search", keyed, text.parent / "v.npy"), 2, "holds vectors")
    ran = run("index", "delete", keyed, "k2", "k0", "k9")
    assert ran.code == 0 and "3 rows deleted" in ran.err
    assert "keyed: 2 rows" in run("index", "compact", keyed).err
    assert {(hit["id"], hit["text"]) for hit in search(keyed, "x")} == {
        ("k1", "Birds sing."),
        ("k3", SENTENCES[3]),
    }


# Folders of parts


def plain_parts(folder, sizes=(3, 0, 5), width=8, columns=("id", "text")):
    """Write Parquet files as another program would, two rows in a row group."""
    folder.mkdir()
    for number, size in enumerate(sizes):
        texts = [f"s{row}" for row in range(sum(sizes[:number]), sum(sizes[:number]) + size)]
        matrix = np.array([vector(text, width) for text in texts], np.float32)
        table = {
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), width)
        }
        named = {"id": [f"key {text}" for text in texts], "text": texts}
        table |= {name: pa.array(named[name], pa.string()) for name in columns}
        pq.write_table(pa.table(table), folder / f"part-{number}.parquet", row_group_size=2)
    return folder


def test_parts_of_another_program_need_the_name_of_their_encoder(run, fake, search, tmp_path):
    parts, bare = plain_parts(tmp_path / "parts"), plain_parts(tmp_path / "bare", columns=())
    refused(run("index", "build", parts, "-o", tmp_path / "i"), 2, "no manifest")
    for folder, query, expected in ((parts, "s4", ("key s4", "s4")), (bare, "s7", (7, None))):
        index = folder.with_suffix(".index")
        assert run("index", "build", folder, "-m", "mini", "-o", index).code == 0
        [hit] = search(index, query, "-k", 1)
        assert (hit["id"], hit["text"]) == expected


def test_parts_that_do_not_fit_together_are_one_line(run, fake, tmp_path):
    parts, empty = plain_parts(tmp_path / "parts"), plain_parts(tmp_path / "empty", sizes=(0,))
    other = plain_parts(tmp_path / "other", sizes=(2,), width=5)
    few = plain_parts(tmp_path / "few", sizes=(2,), columns=("id",))
    last, build = parts / "part-2.parquet", ("index", "build", "-m", "mini", "-o", tmp_path / "i")
    refused(run(*build, empty), 2, "no rows")
    refused(run(*build, other), 2, "width 5")
    wrong = [
        (last.read_bytes()[:-9], 4),
        *(((folder / "part-0.parquet").read_bytes(), 2) for folder in (other, few)),
    ]
    for damaged, code in wrong:
        last.write_bytes(damaged)
        refused(run(*build, parts), code, last.name)
    assert not (tmp_path / "i").exists()


# The real thing


def test_an_index_of_a_fitted_model_finds_its_numbers_again(run, search, text, tmp_path, home):
    from promptcli.models.entries import Registry

    assert run("fit", "-m", "first-last-tfidf", "--on", text, "--name", "white").code == 0
    assert (
        run(
            "index", "build", text, "-m", "white", "--set", "max-length=32", "-o", tmp_path / "i"
        ).code
        == 0
    )
    assert SentenceIndex.open(tmp_path / "i").load_origin().model == "white"
    [hit] = search(tmp_path / "i", SENTENCES[3], "-k", 1)
    assert hit["id"] == 3 and hit["score"] > 0.999
    assert SentenceIndex.open(tmp_path / "i").search(SENTENCES[3], k=1)[0].id == 3, (
        "the library finds the model, too"
    )
    Registry(home).remove("white")
    assert "white" in refused(run("index", "search", tmp_path / "i", "x"), 3)


# Passages, and a sync that asks


NOTES = "# Boats\n\nThe ferry leaves\nat six.\n\n# Fish\n\nIt is dear.\n"


def test_hits_show_file_lines_and_heading(run, search, here):
    Path("notes.md").write_text(NOTES)
    text = "Boats\nThe ferry leaves at six."
    assert run("index", "build", "notes.md", "-o", "idx", "-m", "static-avg").code == 0
    assert run("index", "search", "idx", text, "-k", 1).out == (
        "   1   1.0000  both     notes.md:3-4  Boats: The ferry leaves at six.\n"
    )
    [hit] = search("idx", text, "-k", 1)
    place = {"file": "notes.md", "line": 3, "end_line": 4, "heading": "Boats"}
    assert (hit["id"], hit["text"], hit["columns"]) == ("notes.md:3-4", text, place)
    in_files = ("search", text, "notes.md", "-k", 1, "-m", "static-avg")
    assert run(*in_files).out == "1.0000  both     notes.md:3-4: Boats: The ferry leaves at six.\n"
    [line] = lines(run(*in_files, "--json"))
    assert line.pop("bm25") > 0
    assert line == place | {
        "score": 1.0,
        "text": "The ferry leaves at six.",
        "before": [],
        "after": [],
        "found_by": "both",
        "cosine_rank": 1,
        "bm25_rank": 1,
    }
    ran = run("search", "It is dear.", "notes.md", "-k", 1, "--rows", "lines", "--context", 1)
    assert ran.out == "        notes.md-7-\n1.0000  both     notes.md:8: It is dear.\n\n"
    refused(run("search", text, "notes.md", "--rows", "pages"), 2, "pages", "passages")


def test_a_sync_that_removes_most_of_an_index_asks_or_needs_yes(run, fake, here, monkeypatch):
    Path("a.txt").write_text("\n".join(SENTENCES))
    Path("b.txt").write_text("Birds sing.\nSnow melts.\n")
    assert run("index", "sync", "idx", "a.txt").code == 0
    sync = ("index", "sync", "idx", "b.txt")
    said = refused(run(*sync), 2, "4 of 4 rows of idx would be removed", "--yes", "--dry-run")
    assert "`" not in said and len(SentenceIndex.open(here / "idx")) == 4
    ran = run(*sync, "--dry-run")
    assert (
        ran.out.splitlines()[0] == "+ b.txt:1  Birds sing."
        and ran.out.splitlines()[-1] == f"- a.txt:4  {SENTENCES[3]}"
    )
    assert (
        "4 removed" in ran.err
        and "nothing was changed" in ran.err
        and len(SentenceIndex.open(here / "idx")) == 4
    )
    assert lines(run(*sync, "--dry-run", "--json"))[0] == {
        "change": "added",
        "id": "b.txt:1",
        "text": "Birds sing.",
    }
    asked = list[str]()
    for answer, code in ((False, 2), (True, 0)):
        monkeypatch.setattr(
            "promptcli.cli.console.confirm",
            lambda question, answer=answer: asked.append(question) or answer,
        )
        assert run(*sync).code == code
    assert asked[0].startswith("4 of 4 rows") and len(SentenceIndex.open(here / "idx")) == 2
    assert run("index", "sync", "idx", "a.txt", "--yes").code == 0


def test_a_search_after_a_sync_takes_the_given_model_and_new_columns(run, here):
    Path("t.csv").write_text("id,text\n1,A cat sleeps.\n2,A dog runs fast.\n")
    assert run("index", "sync", "idx", "t.csv", "-m", "mini-static").code == 0
    Path("t.csv").write_text("id,text,year\n1,A cat sleeps.,2020\n2,Rain falls.,2021\n")
    ran = run("index", "search", "idx", "cat", "--sync", "--show", "year", "-m", "static-avg")
    assert ran.code == 0 and "year: 2020" in ran.out
    assert "the index has another model" in ran.err
    assert SentenceIndex.open(here / "idx").load_origin().name == "static-avg"
    refused(run("index", "search", "idx", "cat", "-m", "mini-static"), 2, "index migrate")


def test_a_file_in_the_place_of_the_index(run, built, text, monkeypatch):
    monkeypatch.chdir(text.parent)
    refused(run("index", "search", "in.txt", "x"), 3, "promptcli search")
    refused(run("index", "search", "nowhere", "a long query " * 400), 3, "nowhere")


def test_queries_may_be_a_column_of_a_table(run, built, text):
    table = text.with_name("q.csv")
    table.write_text("id,question\n1,A cat sleeps.\n2,A dog runs fast.\n")
    found = lines(run("index", "search", built, f"{table}:question", "-k", 1, "--json"))
    assert [hit["text"] for hit in found] == SENTENCES[:2]


def test_a_sync_prints_counts_and_quietly_nothing(run, fake, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("A cat.\nA dog.\n")
    ran = run("index", "sync", tmp_path / "i", file, "-m", "mini-static", "-q")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    file.write_text("A cat.\nA cow.\nRain.\n")
    counts = run("index", "sync", tmp_path / "i", file, "--json").json
    assert (counts["rows"], counts["added"], counts["changed"], counts["removed"]) == (3, 1, 1, 0)
    assert counts["files"]["changed"] == 1 and counts["left_out"] == []
    assert run("index", "info", tmp_path / "i", "-q").out
    ran = run("index", "compact", tmp_path / "i", "-q")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
