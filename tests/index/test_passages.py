"""Passages of texts in searches and indexes: what a hit shows, and old indexes by lines."""

import pytest

import promptcli as pc
from promptcli.embedding.passages import passages_of
from promptcli.errors import UsageError
from promptcli.index.basics import INDEX_MANIFEST
from promptcli.index.stored import load, read_manifest
from tests.embedding.test_passages import PROSE, wrapped

NOTES = (
    f"# Harbour\n\n{wrapped(PROSE)}\n\n## Cats\n\nA cat sleeps on the\nwarm sand.\n\n##"
    " Prices\n\nFish is dear.\n"
)


@pytest.fixture(scope="module")
def encoder():
    return pc.load("static-avg")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text(NOTES)
    (tmp_path / "notes" / "list.txt").write_text("Two dogs play.\nStocks lost.\n")
    (tmp_path / "notes" / "table.csv").write_text("text,year\nA dog barks.,1\n")
    return tmp_path


def test_a_search_answers_with_a_passage_its_lines_and_its_heading(folder, encoder, caplog):
    caplog.set_level("INFO", logger="promptcli")
    lines = pc.search("A cat sleeps on warm sand.", ["notes"], k=9, model=encoder, context=1)
    best = lines[0]
    assert (best.file, best.line, best.end_line, best.heading) == (
        "notes/a.md",
        12,
        13,
        "Harbour > Cats",
    )
    assert (best.text, best.before, best.after) == ("A cat sleeps on the warm sand.", ("",), ("",))
    assert {(line.file, line.line) for line in lines if line.file != "notes/a.md"} == {
        ("notes/list.txt", 1),
        ("notes/list.txt", 2),
        ("notes/table.csv", 1),
    }
    found = pc.search("A cat", ["notes"], model=encoder, where='heading like "%Prices"')
    assert [(line.line, line.text) for line in found] == [(17, "Fish is dear.")]
    assert "searched 7 rows" in caplog.text
    by_line = pc.search("warm sand", ["notes/a.md"], k=1, model=encoder, rows="lines")
    assert by_line[0].text == "warm sand."
    with pytest.raises(UsageError, match="unknown rows 'pages'; valid: auto, passages, lines"):
        pc.search("A cat", ["notes"], model=encoder, rows="pages")


@pytest.mark.parametrize("way", ["build", "sync", "stdin"])
def test_an_index_holds_passages_with_their_place(way, folder, encoder):
    if way == "sync":
        pc.sync_index("idx", ["notes/a.md"], encoder)
    else:
        file = "notes/a.md" if way == "build" else (folder / "notes" / "a.md").open("rb")
        pc.build_index(file, "idx", encoder, rows="passages")
    name = "-" if way == "stdin" else "notes/a.md"
    [(_, [hit])] = pc.search_index("idx", ["A cat sleeps on warm sand."], 1, model=encoder)
    if way == "stdin":  # plain text, so that its headings are those of no Markdown
        assert hit.id.startswith("-:") and hit.columns["end_line"] >= 13
        return
    assert (hit.id, hit.text) == (f"{name}:12-13", "Harbour > Cats\nA cat sleeps on the warm sand.")
    assert hit.columns == {"file": name, "line": 12, "end_line": 13, "heading": "Harbour > Cats"}
    [(_, hits)] = pc.search_index("idx", ["x"], 9, model=encoder, where='heading = "Harbour"')
    assert len(hits) > 1 and all(hit.text.startswith("Harbour\n") for hit in hits)
    assert read_manifest("idx").reading.rows == ("auto" if way == "sync" else "passages")


def test_a_sentence_a_line_stays_a_row_with_its_number(folder, encoder):
    pc.build_index("notes/list.txt", "idx", encoder)
    [(_, hits)] = pc.search_index("idx", ["dogs"], 9, model=encoder)
    assert {(hit.id, hit.text) for hit in hits} == {(0, "Two dogs play."), (1, "Stocks lost.")}
    pc.add_to_index("idx", "notes/a.md", encoder)
    [(_, hits)] = pc.search_index("idx", ["A cat sleeps on warm sand."], 1, model=encoder)
    assert hits[0].id == "notes/a.md:12-13"
    with pytest.raises(UsageError, match=r"the index has the id 'notes/a\.md"):
        pc.add_to_index("idx", "notes/a.md", encoder, allow_duplicates=True)


def test_several_passages_of_one_line_have_ids_of_their_own(folder, encoder):
    (folder / "long.md").write_text(f"{PROSE} {PROSE}\n")
    pc.sync_index("idx", ["long.md"], encoder)
    ids = load("idx").index.labels.column("id").to_pylist()
    assert ids[:3] == ["long.md:1", "long.md:1#2", "long.md:1#3"]
    pc.build_index("long.md", "built", encoder)
    assert load("built").index.labels.column("id").to_pylist() == ids


def test_an_index_made_by_lines_stays_one_unless_its_rows_are_asked_for_otherwise(folder, encoder):
    pc.sync_index("idx", ["notes"], encoder, rows="lines")
    rows = load("idx").index.rows
    before = (folder / "idx" / INDEX_MANIFEST).read_bytes()
    assert pc.sync_index("idx", ["notes"]).rows == rows
    assert (folder / "idx" / INDEX_MANIFEST).read_bytes() == before
    with (folder / "notes" / "a.md").open("a") as file:
        file.write("\nA new line.\n")
    assert pc.sync_index("idx", ["notes"]).rows == rows + 1, "its lines are still its rows"
    pc.sync_index("idx", ["notes"], rows="auto")
    [(_, [hit])] = pc.search_index("idx", ["A cat sleeps on warm sand."], 1)
    assert hit.id == "notes/a.md:12-13" and load("idx").index.rows < rows


def test_an_edited_paragraph_encodes_its_passages_alone(folder, encoder, caplog):
    caplog.set_level("INFO", logger="promptcli")
    pc.sync_index("idx", ["notes"], encoder)
    rows = load("idx").index.rows
    (folder / "notes" / "a.md").write_text(f"A new first paragraph.\n\n{NOTES}")
    pc.sync_index("idx", ["notes"])
    moved = rows - 3  # all passages of a.md
    assert (
        f"rows: {moved:,} renamed (same text, new path or columns), 1 added, 0 removed, 3 unchanged"
        in caplog.text
    )
    [(_, [hit])] = pc.search_index("idx", ["A cat sleeps on warm sand."], 1)
    assert hit.id == "notes/a.md:14-15" and hit.columns["line"] == 14


def test_embed_keeps_a_line_a_row_and_says_that_a_file_looks_wrapped(folder, encoder, caplog):
    caplog.set_level("INFO", logger="promptcli")
    (folder / "wrapped.txt").write_text(wrapped(PROSE))
    made = pc.embed("wrapped.txt", "w.npy", encoder)
    assert made.report.rows == len(wrapped(PROSE).split("\n"))
    assert "wrapped.txt looks wrapped: each line is a row" in caplog.text
    caplog.clear()
    pc.embed("notes/list.txt", "l.npy", encoder)
    assert "looks wrapped" not in caplog.text


def test_a_name_that_is_not_utf8_is_named_where_an_id_needs_it(folder, encoder, caplog):
    caplog.set_level("INFO", logger="promptcli")
    odd = folder / "notes" / "\udcff.md"
    odd.write_text("A dog barks.\n")
    pc.sync_index("idx", ["notes"], encoder)
    assert "skipped 1 file" in caplog.text and "\\xff.md" in caplog.text
    with pytest.raises(UsageError, match=r"\\xff\.md: its name is not UTF-8; rename it"):
        pc.sync_index("idx", [odd], encoder, yes=True)
    [found] = pc.search("A dog barks.", [odd], model=encoder, where="line = 1")
    assert found.text == "A dog barks."
    pc.build_index(odd, "built", encoder)
    [(_, [hit])] = pc.search_index("built", ["dog"], 1, model=encoder)
    assert hit.id.endswith("\\xff.md:1")


def test_lines_of_a_synced_text_say_where_they_stand(encoder, tmp_path):
    (tmp_path / "app.log").write_text("a cat\na dog\n")
    pc.sync_index(tmp_path / "idx", [tmp_path / "app.log"], encoder)
    [(_, hits)] = pc.search_index(
        tmp_path / "idx", ["a cat"], model=encoder, where='file like "%.log" and line = 1'
    )
    assert [hit.text for hit in hits] == ["a cat"]


def test_a_very_long_line_is_cut_at_ends_of_sentences(encoder):
    words = ["rain", "falls", "on", "the", "harbour", "while", "boats", "wait"]
    sentences = [" ".join(words[: 3 + number % 6]).capitalize() + "." for number in range(1500)]
    text = " ".join(sentences)
    found = list(passages_of([text], [text], "a.txt", encoder))
    assert len(text) > 34_000
    assert all(passage.body.rstrip().endswith(".") for passage in found)
