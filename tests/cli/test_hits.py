"""Hits as folded lines, CSV and with columns beside them."""

import csv
import io
import json

import pytest
from rich.console import Console

import promptcli as pc
from promptcli.cli import console

#: The fields of a hit that tell its places in the two rankings.
WAYS = ["found_by", "bm25", "cosine_rank", "bm25_rank"]
TABLE = """text,year,lang
A cat sleeps on the sofa while it rains outside and nobody is at home,2020,en
"A dog barks, twice.",2021,de
Prices fell in May.,,en
"""


@pytest.fixture
def table(here):
    (here / "t.csv").write_text(TABLE)
    (here / "notes.md").write_text("# Pets\n\nA kitten is asleep.\n")
    return here


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("width", [80, 60, 30])
def test_a_narrow_terminal_breaks_no_word(width, capsys, monkeypatch):
    monkeypatch.setattr(console, "out", Console(force_terminal=True, width=width))
    text = "several words that are longer than the line of a narrow terminal, 漢字漢字漢字 too"
    for label in ("0.1234  a.txt:1: ", ""):
        console.print_marked(label, text)
        lines = capsys.readouterr().out.splitlines()
        assert all(Console(width=200).measure(line).maximum <= width for line in lines)
        words = " ".join(lines).split()
        assert [word for word in words if word in text.split()] == text.split()


def test_hits_of_files_as_csv_and_with_columns(run, table):
    found = rows(run("search", "a cat", "t.csv", "notes.md", "--format", "csv").out)
    place = ["file", "line", "end_line", "score", "heading", "text"]
    assert list(found[0]) == [*place, *WAYS]
    by_meaning = run("search", "a cat", "t.csv", "--format", "csv", "--by", "meaning").out
    assert list(rows(by_meaning)[0]) == place
    assert {row["text"] for row in found} >= {"A dog barks, twice.", "A kitten is asleep."}
    shown = run("search", "a dog", ".", "--show", "year, lang", "--format", "csv")
    (dog,) = [row for row in rows(shown.out) if "dog" in row["text"]]
    assert (dog["year"], dog["lang"]) == ("2021", "de")
    assert "[year: 2021, lang: de]" in run("search", "a dog", "t.csv", "--show", "year,lang").out
    hits = run("search", "a dog", "t.csv", "--show", "lang", "--where", "year = 2021", "--json").out
    assert json.loads(hits)["columns"] == {"lang": "de"}
    assert "columns" not in json.loads(run("search", "dog", "t.csv", "-k", 1, "--json").out)
    ran = run("search", "a dog", "t.csv", "--show", "nosuch")
    assert ran.code == 0 and "nosuch" in ran.err


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_text_of_several_lines_is_one_cell_of_the_csv(end, run, table):
    (table / "t.csv").write_bytes(f'text,n{end}"A cat{end}sleeps",1{end}A dog,2{end}'.encode())
    found = rows(run("search", "a cat", "t.csv", "--format", "csv").out)
    assert {" ".join(row["text"].split()) for row in found} == {"A cat sleeps", "A dog"}
    run("index", "build", "t.csv", "-o", "i", "-m", "mini-static")
    hits = rows(run("index", "search", "i", "a cat", "--format", "csv").out)
    assert {" ".join(row["text"].split()) for row in hits} == {"A cat sleeps", "A dog"}


def test_hits_of_files_and_of_added_rows_have_the_same_fields(run, table):
    pc.SentenceIndex.sync("i", ["notes.md"], model="mini-static")
    pc.SentenceIndex.open("i").add(["A dog barks."])
    found = rows(run("index", "search", "i", "a kitten", "--format", "csv").out)
    assert [(row["id"], row["stale"]) for row in found] == [("notes.md:3", ""), ("1", "")]


def test_hits_and_groups_of_an_index_as_csv_and_with_columns(run, table):
    (table / "t.csv").write_text(TABLE + '"A dog barks, twice.",2021,fr\n')
    run("index", "build", "t.csv", "-o", "i", "-m", "mini-static")
    ran = run("index", "search", "i", "a dog", "--format", "csv", "--show", "lang,year", "-k", 3)
    found = rows(ran.out)
    assert list(found[0]) == [
        "query",
        "rank",
        "id",
        "text",
        "score",
        *WAYS,
        "lang",
        "year",
    ]
    assert {row["found_by"] for row in found} <= {"both", "meaning", "words"}
    assert {row["lang"] for row in found} >= {"de", "fr"} and len(found) == 3
    assert "[lang: de]" in run("index", "search", "i", "a dog", "--show", "lang").out
    groups = rows(run("index", "dups", "i", "--threshold", 1, "--format", "csv").out)
    assert [row["text"] for row in groups] == 2 * ["A dog barks, twice."]
    assert groups[0]["cluster"] == "1" and float(groups[0]["lowest"]) == 1
    for words in (("search", "i", "a dog"), ("dups", "i")):
        ran = run("index", *words, "--show", "nosuch")
        assert ran.code == 2 and "lang" in ran.err
        assert run("index", *words, "--format", "xml").code == 2
        assert run("index", *words, "--format", "csv", "--json").code == 2
