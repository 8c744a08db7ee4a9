"""Search of texts and files without an index that is kept."""

import json
from pathlib import Path

import pandas
import pytest

import promptcli as pc
from tests.comparing import refusal

NOTE = """---
title: The house
tags: [garden, water]
day: 2024-05-01
---
# Neighbours

Anna feeds the cat while we are away. She has worked on the lighthouse for thirty years and knows
every ship by the sound of its horn.

# Water

The pump in the cellar has to be drained before the first frost.
"""


@pytest.fixture
def folder(here):
    Path("house.md").write_text(NOTE)
    Path("t.csv").write_text("text,year,lang\nA cat sleeps.,2020,en\nRain falls.,2021,de\n")
    return here


def test_a_list_of_texts_is_texts(folder):
    assert [hit.text for hit in pc.search("rain", ["It rains.", "Sun."], k=1)] == ["It rains."]
    frame = pandas.DataFrame({"body": ["It rains.", "house.md"]})
    assert pc.search("rain", frame["body"], k=1)[0].id == 0
    assert pc.search("house", ["house.md"])[0].text == "house.md"  # not the file
    [hit] = pc.search("rain", ["Sun.", "It rains."], where="id < 1")
    assert hit.text == "Sun."
    with refusal("no such column: nosuch"):
        pc.search("rain", ["It rains."], where="nosuch = 1")


def test_files_that_are_skipped_are_named(folder, notes):
    Path("bin.txt").write_bytes(b"A caf\xe9.\n")
    Path("map.png").write_bytes(b"\x89PNG")
    synced = pc.SentenceIndex.sync("i", ["*.txt", "*.png", "t.csv"], model="mini-static")
    assert "that cannot be read as text or tables: bin.txt" in notes.text
    text, picture = synced.left_out
    assert text.file == "bin.txt" and text.reason.startswith("line 1: is not UTF-8")
    assert picture.file == "map.png" and picture.reason.startswith("is an image")


@pytest.mark.parametrize(
    ("argument", "message"),
    [({"by": "foo"}, "unknown ranking 'foo'"), ({"k": 0}, "from 1"), ({"where": "a;"}, "';'")],
)
def test_arguments_are_checked_before_files_are_read(argument, message):
    with refusal(message):
        pc.search("rain", "absent.txt", **argument)


def test_generators_are_lists(folder):
    names = ["t.csv", "house.md"]
    found = pc.search("Rain falls.", (Path(name) for name in names), k=1)
    assert found[0].file == "t.csv"
    assert pc.search("rain", (text for text in ["It rains.", "Sun."]), k=1)[0].id == 0


def test_files_are_searched_as_an_index_of_them_is(folder):
    lines = pc.search(
        "who looks after the cat", [Path("house.md"), Path("t.csv")], model="mini-static"
    )
    index = pc.SentenceIndex.sync("i", ["house.md", "t.csv"], model="mini-static").index
    hits = index.search("who looks after the cat")
    assert [(line.file, line.score, line.found_by) for line in lines] == [
        (hit.file, hit.score, hit.found_by) for hit in hits
    ]
    texts = pc.search("cat", ["A cat sleeps.", "Rain falls."], by="words")
    table = pc.search("cat", "t.csv", by="words")
    assert [hit.score for hit in texts] == [line.score for line in table]


def test_hits_have_places_and_headings(folder):
    [hit] = pc.search("who feeds the cat", "house.md", 1)
    assert (hit.file, hit.id) == ("house.md", "house.md:8-9")
    place = {"file": "house.md", "line": 8, "end_line": 9, "heading": "The house > Neighbours"}
    assert place.items() <= hit.columns.items() and hit.columns["tags"] == "garden, water"
    assert hit.text.startswith("The house > Neighbours\nAnna feeds the cat")


@pytest.mark.parametrize(
    ("where", "lines"),
    [
        ("year = 2021", ["Rain falls."]),
        ('lang = "en" or year > 2020', ["A cat sleeps.", "Rain falls."]),
        (
            'file like "%.md" and heading like "%Water"',
            ["The house > Water\nThe pump in the cellar has to be drained before the first frost."],
        ),
        ('day > "2024-04" and line < 9', None),
        ("year > 3000", []),
    ],
)
def test_a_condition_chooses_rows_of_files(folder, where, lines):
    found = pc.search("cat", [Path("house.md"), Path("t.csv")], where=where)
    assert len(found) == 1 if lines is None else sorted(line.text for line in found) == lines


def test_long_rows_show_their_best_part(folder):
    Path("long.txt").write_text(
        " ".join(["The river was cold."] * 300 + ["A lamp shone."]) + "\nShort.\n"
    )
    [line] = pc.search("a lamp shone", "long.txt", k=1, model="mini", split=True, rows="lines")
    assert (
        line.columns["line"] == 1 and line.text.endswith("A lamp shone.") and len(line.text) < 5000
    )


@pytest.mark.parametrize(
    ("query", "texts", "message"),
    [
        (None, ["A cat."], "query: must be text, got NoneType"),
        (["cat"], ["A cat."], "query: must be text, got list"),
        ("cat", None, "texts are NoneType, not texts or paths in a list"),
    ],
)
def test_what_is_no_text_is_refused(query, texts, message):
    with refusal(message):
        pc.search(query, texts)


def test_what_cannot_be_searched_is_said(folder):
    for query, files in ((" ", "house.md"), ("cat", "none.md"), ("cat", "empty.txt")):
        Path("empty.txt").write_text("\n\n")
        with pytest.raises(pc.PromptcliError):
            pc.search(query, files)
    Path("sub").mkdir()
    Path("sub/bytes.bin").write_bytes(b"\0\1\2" * 100)
    Path("sub/a.txt").write_text("A cat.\n")
    assert [line.file for line in pc.search("cat", "sub")] == ["sub/a.txt"]
    with pytest.raises(pc.UsageError):
        pc.search("cat", "sub/bytes.bin")


def test_the_ids_of_a_table_are_its_column(folder):
    Path("t.csv").write_text("id,text\na,A cat sleeps.\n7,Rain falls.\n")
    [line] = pc.search("rain", ["t.csv", Path("house.md")], where="id = '7'")
    assert (line.file, line.id, line.columns["id"]) == ("t.csv", "t.csv:2", "7")
    with refusal("holds text; compare it with a text in quotes"):
        pc.search("rain", "t.csv", where="id = 7")
    assert pc.search("pump", [Path("house.md")], where="id like 'house.md:%'")
    index = pc.SentenceIndex.sync("i", ["t.csv"], model="mini-static").index
    assert [hit.id for hit in index.search("rain", where="id = 't.csv:2'")] == ["t.csv:2"]


def test_lists_within_json_are_named_by_a_path(folder):
    chat = {"messages": [{"content": "A cat sleeps."}, {"content": "Rain falls."}]}
    Path("chat.json").write_text(json.dumps(chat))
    [hit] = pc.search("rain", "chat.json:messages[].content", 1)
    assert hit.id == "chat.json:messages[].content:2"
    synced = pc.SentenceIndex.sync("i", ["chat.json:messages[].content"], model="mini-static")
    assert len(synced.index) == 2


def test_a_hit_has_the_number_that_its_row_has_in_the_file(folder):
    Path("t.csv").write_text("id,text\na,A cat sleeps.\nbroken\n7,Rain falls.\n")
    assert pc.search("rain", "t.csv", 1, skip_bad=True)[0].id == "t.csv:3"
    index = pc.SentenceIndex.build("t.csv", "mini-static", id_field="-", skip_bad=True)
    assert index.search("rain", 1)[0].id == 2


def test_a_column_of_ids_beside_a_named_column_of_texts(folder):
    Path("u.csv").write_text(
        "Nr,Betreff,Beschreibung\n47,Papier,The printer jams.\n48,Konto,Locked out.\n"
    )
    index = pc.SentenceIndex.build("u.csv:Beschreibung", "mini-static", id_field="Nr")
    assert index.search("printer", 1)[0].id == "47"
    synced = pc.SentenceIndex.sync("i", ["u.csv:Beschreibung"], model="mini-static", id_field="Nr")
    assert synced.index.search("printer", 1)[0].id == "47"
