"""Rows that an index has already: blank ones of vectors, the same table again, and a sync that
empties an index.
"""

import json

import pytest

import promptcli as pc
from promptcli.data.vectors import manifest_path
from promptcli.errors import UsageError
from promptcli.index.stored import load, read_manifest
from promptcli.index.sync import MostRowsError

TEXTS = ["A cat sleeps.", "Prices fell in May.", "Two dogs play.", "Stocks lost."]


@pytest.fixture(scope="module")
def encoder():
    return pc.load("static-avg")


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"k{number},{text},{number}" for number, text in enumerate(TEXTS)]
    (tmp_path / "table.csv").write_text("\n".join(["key,body,year", *rows, ""]))
    return tmp_path / "table.csv"


def ids(index):
    held = load(index).index
    return [
        name
        for name, gone in zip(held.labels.column("id").to_pylist(), held.masked, strict=True)
        if not gone
    ]


@pytest.mark.parametrize("kind", ["txt", "csv", "npy", "parquet", "jsonl"])
def test_blank_rows_are_left_out_by_every_way(kind, encoder, tmp_path):
    texts = ["", "", TEXTS[0], " ", TEXTS[1], TEXTS[2], ""]
    file = tmp_path / ("in.csv" if kind == "csv" else "in.txt")
    file.write_text(
        "\n".join(["text,year", *(f"{text},1" for text in texts)] if kind == "csv" else texts)
        + "\n"
    )
    if kind in ("npy", "parquet", "jsonl"):
        pc.embed(file, tmp_path / f"v.{kind}", encoder)
        file = tmp_path / f"v.{kind}"
    pc.build_index(file, tmp_path / "idx", encoder, rows="lines")
    assert ids(tmp_path / "idx") == [2, 4, 5]
    [(_, hits)] = pc.search_index(tmp_path / "idx", ["A cat"], 9, model=encoder)
    assert {hit.id for hit in hits} == {2, 4, 5}


def test_runs_of_blank_rows_go_over_windows_and_blocks(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("promptcli.embedding.writing.WINDOW", 2)
    monkeypatch.setattr("promptcli.index.array_rows.BLOCK", 2)
    (tmp_path / "in.txt").write_text("a\n\n\n\nb\n\n")
    report = pc.embed(tmp_path / "in.txt", tmp_path / "v.npy", encoder).report
    assert (report.blank, report.blank_rows) == (4, [[1, 4], [5, 6]])
    pc.build_index(tmp_path / "v.npy", tmp_path / "idx")
    assert ids(tmp_path / "idx") == [0, 4]


def test_an_older_manifest_that_does_not_name_them_is_told(encoder, tmp_path, caplog):
    caplog.set_level("INFO", logger="promptcli")
    (tmp_path / "in.txt").write_text("a\n\nb\n")
    pc.embed(tmp_path / "in.txt", tmp_path / "v.npy", encoder)
    manifest = json.loads(manifest_path(tmp_path / "v.npy").read_text())
    del manifest["report"]["blank_rows"]
    manifest_path(tmp_path / "v.npy").write_text(json.dumps(manifest))
    assert pc.build_index(tmp_path / "v.npy", tmp_path / "idx").rows == 3
    assert "1 row had a blank text, but which is not known; embed it again" in caplog.text


def test_the_columns_of_a_build_are_those_of_an_add(table, encoder):
    pc.build_index(table, "idx", encoder, text_field="body", id_field="key")
    assert read_manifest("idx").reading.id_field == "key"
    with pytest.raises(UsageError, match="the index has the id 'k0'"):
        pc.add_to_index("idx", table, encoder)
    pc.add_to_index("idx", table, encoder, replace=True)
    assert sorted(ids("idx")) == ["k0", "k1", "k2", "k3"]
    (table.parent / "more.csv").write_text("body,key,text\nBirds sing.,k9,other\n")
    pc.add_to_index("idx", "more.csv", encoder)
    [(_, [hit])] = pc.search_index("idx", ["Birds sing."], 1, model=encoder)
    assert (hit.id, hit.text) == ("k9", "Birds sing.")


def test_a_file_without_the_columns_of_the_index_is_told_and_a_text_has_none(
    table, encoder, caplog
):
    caplog.set_level("INFO", logger="promptcli")
    pc.build_index(table, "idx", encoder, text_field="body", id_field="key")
    (table.parent / "more.csv").write_text("text,id\nBirds sing.,b1\n")
    pc.add_to_index("idx", "more.csv", encoder)
    assert "more.csv: no column 'key', the id of the index so far" in caplog.text
    (table.parent / "lines.txt").write_text("Snow melts.\nRain falls.\n")
    pc.add_to_index("idx", "lines.txt", encoder)
    assert len(ids("idx")) == 7 and "b1" in ids("idx")


@pytest.mark.parametrize("vectors", [False, True])
def test_texts_under_other_ids_are_counted_and_refused(vectors, table, encoder):
    pc.build_index(table, "idx", encoder, text_field="body", id_field="key")
    (table.parent / "more.csv").write_text(
        f"text,id\n{TEXTS[2]},1\nBirds sing.,2\n{TEXTS[0]},3\n ,4\n ,5\n"
    )
    file = "more.csv"
    if vectors:
        pc.embed("more.csv", "more.parquet", encoder)
        file = "more.parquet"
    before = ids("idx")
    with pytest.raises(
        UsageError, match=r"2 of 5 texts are in the index under other ids, e\.g\. 'Two dogs play"
    ):
        pc.add_to_index("idx", file, encoder)
    assert ids("idx") == before
    pc.add_to_index("idx", file, encoder, allow_duplicates=True)
    assert ids("idx") == [*before, "1", "2", "3"]


def test_repeated_texts_are_not_encoded(table, encoder, monkeypatch):
    pc.build_index(table, "idx", encoder, text_field="body", id_field="key")
    (table.parent / "again.txt").write_text("\n".join(TEXTS))
    monkeypatch.setattr(
        type(encoder), "encode_windows", lambda self, windows, **options: (1 / 0 for _ in windows)
    )
    with pytest.raises(UsageError, match="4 of 4 texts"):
        pc.add_to_index("idx", "again.txt", encoder)


# Syncs


def test_more_than_half_of_an_index_goes_only_when_it_is_said(table, encoder):
    folder = table.parent
    (folder / "a.txt").write_text("\n".join(TEXTS))
    (folder / "b.txt").write_text("Birds sing.\nSnow melts.\nRain falls.\n")
    pc.sync_index("idx", ["a.txt"], encoder)
    before = ids("idx")
    with pytest.raises(
        MostRowsError,
        match=r"4 of 4 rows of idx would be removed, 4 of them from a\.txt\. Agree with `yes`",
    ):
        pc.sync_index("idx", ["b.txt"])
    with pytest.raises(MostRowsError):
        pc.sync_index("idx", ["b.txt"], "mini-static")
    assert ids("idx") == before
    changes = pc.sync_changes("idx", ["b.txt"])
    assert changes.added[0] == ("b.txt:1", "Birds sing.") and changes.removed[0] == (
        "a.txt:1",
        TEXTS[0],
    )
    assert (len(changes.added), len(changes.removed), changes.kept, ids("idx")) == (3, 4, 0, before)
    assert pc.sync_index("idx", ["b.txt"], yes=True).rows == 3


def test_edited_moved_and_renamed_rows_do_not_go(table, encoder):
    folder = table.parent
    (folder / "a.txt").write_text("\n".join(TEXTS))
    pc.sync_index("idx", ["a.txt"], encoder)
    (folder / "a.txt").write_text("\n".join(f"{text} Really." for text in TEXTS))
    assert pc.sync_index("idx", ["a.txt"]).rows == 4
    (folder / "a.txt").rename(folder / "b.txt")
    assert pc.sync_index("idx", ["b.txt"]).rows == 4
    (folder / "b.txt").write_text(f"{TEXTS[0]} Really.\n")
    with pytest.raises(MostRowsError, match="3 of 4 rows"):
        pc.sync_index("idx", ["b.txt"])
    (folder / "b.txt").write_text("\n".join(f"{text} Really." for text in TEXTS[:2]))
    assert pc.sync_index("idx", ["b.txt"]).rows == 2, "that is half of it"


def test_a_sync_takes_the_columns_of_tables_and_remembers_them(table, encoder):
    pc.sync_index("idx", [table.name], encoder, text_field="body", id_field="key")
    assert ids("idx") == ["k0", "k1", "k2", "k3"]
    table.write_text(table.read_text().replace("Stocks lost.", "Stocks won."))
    pc.sync_index("idx", [table.name])
    [(_, [hit])] = pc.search_index("idx", ["Stocks won."], 1, model=encoder)
    assert (hit.id, hit.text, hit.columns) == ("k3", "Stocks won.", {"year": 3})
    pc.sync_index("idx", [table.name], id_field="-")
    assert ids("idx") == ["table.csv:1", "table.csv:2", "table.csv:3", "table.csv:4"]
    table.write_text("key,body\nk1,a\nk1,b\n")
    with pytest.raises(UsageError, match="the id 'k1' is given twice"):
        pc.sync_index("idx", [table.name], id_field="key", yes=True)
