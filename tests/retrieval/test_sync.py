"""Indexes of files: changed rows are encoded, deleted rows go, and stale hits are marked."""

import os
import subprocess

import pytest

import promptcli as pc
from promptcli.retrieval import sync as syncing
from promptcli.retrieval.file_search import search
from promptcli.retrieval.sync import TooManyRemovalsError, sync
from tests.comparing import refusal

NOTE = (
    "# House\n\nAnna feeds the cat while we are away.\n\n## Water\n\nThe pump has to be drained.\n"
)


@pytest.fixture
def folder(here):
    (here / "notes").mkdir()
    (here / "notes/house.md").write_text(NOTE)
    (here / "notes/lines.txt").write_text(
        "The ferry crosses twice a day.\nBread is baked at five.\n"
    )
    return here


def synced(*files, **options):
    return sync("i", list(files) or None, model="mini-static", **options)


def counts(result):
    rows = result.rows
    return rows.added, rows.changed, rows.renamed, rows.removed, rows.unchanged


def answer(query, **options):
    return pc.SentenceIndex.open("i").search(query, 1, **options)[0]


def encoded_texts(monkeypatch):
    seen = []
    plain = syncing.encode_rows

    def encode(documents, blocks):
        for rows in plain(documents, blocks):
            seen.extend(rows.texts)
            yield rows

    monkeypatch.setattr(syncing, "encode_rows", encode)
    return seen


def test_only_what_is_new_is_encoded(folder, monkeypatch):
    assert counts(synced("notes")) == (4, 0, 0, 0, 0)
    seen = encoded_texts(monkeypatch)
    assert counts(synced("notes")) == (0, 0, 0, 0, 4) and not seen
    (folder / "notes/lines.txt").write_text("Bread is baked at five.\nA storm is coming.\n")
    result = synced()
    assert counts(result) == (1, 0, 1, 1, 2)
    assert seen == ["A storm is coming."]
    assert answer("bread").id == "notes/lines.txt:1" and answer("storm").id == "notes/lines.txt:2"
    os.rename("notes/lines.txt", "notes/other.txt")
    result = synced()
    assert counts(result) == (0, 0, 2, 0, 2) and vars(result.files) == {
        "added": 0,
        "changed": 0,
        "renamed": 1,
        "removed": 0,
        "unchanged": 1,
    }
    assert answer("bread").id == "notes/other.txt:1" and len(seen) == 1
    (folder / "notes/other.txt").unlink()
    assert counts(synced(yes=True)) == (0, 0, 0, 2, 2)


def test_a_sync_is_an_index_built_afresh_whatever_was_edited(folder):
    synced("notes")
    house = folder / "notes/house.md"
    for text in (NOTE.replace("cat", "dog"), NOTE + "\n## New\n\nMore.\n", NOTE[:50], NOTE):
        house.write_text(text)
        synced(yes=True)
        fresh = sync("fresh", ["notes"], model="mini-static").index
        ours = pc.SentenceIndex.open("i")
        for query in ("cat", "pump", "ferry"):
            wanted = {(hit.id, hit.text, hit.score) for hit in fresh.search(query, 9)}
            assert {(hit.id, hit.text, hit.score) for hit in ours.search(query, 9)} == wanted
        subprocess.run(["rm", "-r", "fresh"], check=True)


def test_what_another_process_has_changed_meanwhile_is_not_synced(folder, monkeypatch):
    synced("notes")
    (folder / "notes/lines.txt").write_text("A storm is coming.\n")
    plain = syncing._Changes.compare

    def compare(work):
        plain(work)
        monkeypatch.undo()
        monkeypatch.chdir(folder)
        synced()

    monkeypatch.setattr(syncing._Changes, "compare", compare)
    with refusal("another process", pc.PromptcliError):
        synced(yes=True)
    assert counts(synced()) == (0, 0, 0, 0, 3)


def test_hits_of_changed_and_missing_files_are_marked(folder, monkeypatch):
    monkeypatch.setattr(syncing, "_TIMESTAMP_RESOLUTION_NS", 0)
    synced("notes")
    assert pc.SentenceIndex.open("i").stale_files() == {} and answer("pump").stale is None
    os.utime("notes/house.md", (1, 1))  # another time, the same bytes
    assert answer("pump").stale is None
    (folder / "notes/house.md").write_text(NOTE.replace("pump", "Pump"))
    (folder / "notes/lines.txt").unlink()
    index = pc.SentenceIndex.open("i")
    assert index.stale_files() == {"notes/house.md": "changed", "notes/lines.txt": "gone"}
    assert answer("pump").stale == "changed" and answer("ferry").stale == "gone"
    synced(yes=True)
    assert answer("pump").stale is None and index.stale_files() == {}


def test_a_change_at_once_with_the_same_size_is_seen(folder):
    synced("notes")
    (folder / "notes/lines.txt").write_text(
        "The ferry crosses twice a day.\nBread is baked at nine.\n"
    )
    os.utime("notes/lines.txt", ns=(1, os.stat("notes/house.md").st_mtime_ns))
    assert counts(synced())[1] == 1


def test_most_rows_go_only_if_that_is_agreed(folder):
    synced("notes")
    (folder / "notes/house.md").unlink()
    (folder / "notes/lines.txt").write_text("One line.\n")
    with pytest.raises(TooManyRemovalsError, match="would be removed"):
        synced()
    assert len(pc.SentenceIndex.open("i")) == 4
    dry = synced(dry_run=True)
    assert [text for _, text in dry.added] == ["One line."] and len(dry.removed) == 4
    assert len(pc.SentenceIndex.open("i")) == 4
    assert len(synced(yes=True).index) == 1


def test_tables_their_columns_and_ids(folder):
    (folder / "t.csv").write_text("key,text,year\nk1,A cat sleeps.,2020\nk2,Rain falls.,2021\n")
    synced("t.csv", id_field="key")
    assert answer("rain").id == "k2" and answer("rain", where="year = 2020").id == "k1"
    (folder / "t.csv").write_text("key,text,year\nk1,A cat sleeps.,2024\nk2,Rain falls.,2021\n")
    assert counts(synced()) == (0, 0, 1, 0, 1)
    assert answer("cat").columns["year"] == 2024
    (folder / "u.csv").write_text("key,text\nk1,Snow.\n")
    with refusal("id"):
        synced("t.csv", "u.csv")
    assert len(pc.SentenceIndex.open("i")) == 2


def test_another_model_and_other_rows(folder, notes):
    synced("notes")
    sync("i", model="mini", dry_run=True)
    assert "all 4 rows are encoded again" in notes.text
    assert pc.SentenceIndex.open("i").info().name == "mini-static"
    sync("i", model="mini")
    assert pc.SentenceIndex.open("i").info().name == "mini"
    assert counts(sync("i", rows="lines", yes=True))[0] > 0
    pc.SentenceIndex.build(["A cat."], "mini-static", output="built")
    with refusal("do not come from"):
        sync("built", ["notes"])
    with pytest.raises(pc.NotFoundError):
        sync("none")
    os.chdir("notes")
    with refusal("run sync there"):
        sync("../i")


def test_what_is_ignored_is_not_read_unless_it_is_asked_for(folder):
    (folder / ".git").mkdir()
    for name, text in {
        ".gitignore": "build/\n*.log\n!keep.log\n/notes/only.txt\n",
        "notes/.ignore": "draft*\n",
        "notes/draft.txt": "draft",
        "notes/only.txt": "only",
        "notes/a.log": "log",
        "notes/keep.log": "keep",
        "notes/build/x.txt": "built",
        "notes/deep/only.txt": "deep",
        "notes/.hidden.txt": "hidden",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(f"{text} text of a file\n")
    pc.SentenceIndex.build(["inner index"], "mini-static", output="notes/inner")
    pc.embed("notes/lines.txt", "notes/vectors.jsonl", "mini-static")
    pc.embed_parts("notes/lines.txt", "notes/parts", 1, "mini-static")

    def files(**options):
        return {line.file.removeprefix("notes/") for line in search("text", "notes", 99, **options)}

    mine = {"house.md", "lines.txt"}
    assert files() == mine | {"keep.log", "deep/only.txt"}
    assert files(exclude=["deep", "*.md"]) == {"lines.txt", "keep.log"}
    everything = {"draft.txt", "only.txt", "a.log", "build/x.txt", "keep.log", "deep/only.txt"}
    assert files(ignore=False) == mine | everything
    assert {line.file for line in search("text", "notes/a.log")} == {"notes/a.log"}
