"""Indexes that mirror files: against fresh ones, what is encoded, and what is refused."""

import shutil

import pytest

import promptcli as pc
from promptcli.errors import NotFoundError, PromptcliError, UsageError
from promptcli.index import sync
from promptcli.index.changes import Counts
from promptcli.index.stored import load

LINES = [
    "A cat sleeps.",
    "",
    "Prices fell in May.",
    "  The kitten is asleep.  ",
    "Two dogs play.",
    "Stocks lost.",
]


@pytest.fixture(scope="module")
def encoder():
    return pc.load("static-avg")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    (tmp_path / "notes" / "a.md").write_text("\n".join(LINES), encoding="utf-8")
    (tmp_path / "notes" / "deep" / "table.csv").write_text(
        "text,year\nA dog barks.,1\nA cat naps.,2\n"
    )
    (tmp_path / "notes" / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\xff\xfe")
    return tmp_path


def answers(index, encoder):
    return sorted(
        (hit.id, hit.text, round(hit.score, 5))
        for hit in index.search(encoder.encode(["A cat"]), 100)[0]
    )


def change_files(notes):
    """Move every line of a file, change one, remove a file and write another."""
    lines = ["A new line.", *LINES[:4], "Two dogs played.", "Stocks lost."]
    (notes / "a.md").write_text("\n".join(lines), encoding="utf-8")
    (notes / "deep" / "table.csv").unlink()
    (notes / "b.txt").write_text("A dog barks.\nAnother file.\n", encoding="utf-8")


def test_a_changed_folder_gives_the_index_of_a_fresh_build(folder, encoder, caplog, monkeypatch):
    caplog.set_level("INFO", logger="promptcli")
    monkeypatch.chdir(folder)
    assert pc.sync_index("idx", ["notes"], encoder, rows="lines").rows == 7
    assert "skipped 1 file that cannot be read as text or tables: notes/picture.png" in caplog.text
    assert "7 rows added" in caplog.text
    before = {path: path.read_bytes() for path in (folder / "idx").iterdir()}
    pc.sync_index("idx", ["notes"])
    assert {path: path.read_bytes() for path in (folder / "idx").iterdir()} == before
    change_files(folder / "notes")
    encoded, batches = list[str](), sync._batches
    monkeypatch.setattr(
        sync, "_batches", lambda rows: encoded.extend(text for _, text, _ in rows) or batches(rows)
    )
    pc.sync_index("idx", ["notes"], encoder)
    assert encoded == ["A new line.", "Two dogs played.", "Another file."]
    assert (
        "rows: 5 renamed (same text, new path or columns), 3 added, 2 removed, 0 unchanged"
        in caplog.text
    )
    pc.sync_index("fresh", ["notes"], encoder, rows="lines")
    synced = answers(load(folder / "idx").index, encoder)
    assert synced == answers(load(folder / "fresh").index, encoder)
    places = [f"notes/a.md:{line}" for line in (1, 2, 4, 5, 6, 7)] + [
        "notes/b.txt:1",
        "notes/b.txt:2",
    ]
    assert [name for name, *_ in synced] == places


def test_another_model_encodes_all_again_and_the_index_may_lie_in_the_folder(folder, encoder):
    notes = folder / "notes"
    first = pc.sync_index(notes / "idx", [notes], encoder, rows="lines")
    again = pc.sync_index(notes / "idx", [notes], "mini-static")
    assert (first.rows, again.rows) == (7, 7) and first.fingerprint != again.fingerprint
    texts = [text for _, text, _ in answers(load(notes / "idx").index, pc.load("mini-static"))]
    assert sorted(texts) == sorted(
        [*filter(None, map(str.strip, LINES)), "A dog barks.", "A cat naps."]
    )


@pytest.mark.parametrize(
    ("index", "names", "error", "said"),
    [
        ("new", ["none"], NotFoundError, "none"),
        ("new", ["notes/picture.png"], UsageError, "an image"),
        ("new", ["pictures"], UsageError, "no line to index"),
        ("built", ["notes"], UsageError, "did not put there"),
    ],
)
def test_what_is_refused(index, names, error, said, folder, encoder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "pictures").mkdir()
    shutil.copy("notes/picture.png", "pictures")
    pc.build_index("notes/a.md", "built", encoder)
    with pytest.raises(PromptcliError, match=said) as raised:
        pc.sync_index(index, names, encoder)
    assert raised.type is error and not (folder / "new").exists()


def test_a_file_that_changes_while_it_is_read_is_refused(folder, encoder, monkeypatch):
    from promptcli.index.file_rows import Reader

    read = Reader.read

    def reading(self, file, unreadable):
        rows = read(self, file, unreadable)
        with open(file, "a") as appended:
            appended.write("\nmore")
        return rows

    monkeypatch.setattr(Reader, "read", reading)
    with pytest.raises(UsageError, match=r"a\.md is being written to"):
        pc.sync_index(folder / "idx", [folder / "notes"], encoder)


@pytest.mark.parametrize("synced", [False, True])
def test_an_index_that_another_process_makes_in_the_meantime_is_not_replaced(
    synced, folder, encoder, monkeypatch
):
    """A build of that name ends while ``sync`` encodes: the first index, or an added row."""
    monkeypatch.chdir(folder)
    other = pc.load("mini-static")
    if synced:
        pc.sync_index("idx", ["notes"], encoder)
        change_files(folder / "notes")
    batches = sync._batches

    def meanwhile(rows):
        monkeypatch.undo()
        monkeypatch.chdir(folder)
        pc.build_index("table.txt", "idx", other, force=synced)
        return batches(rows)

    (folder / "table.txt").write_text("built by hand\n")
    monkeypatch.setattr(sync, "_batches", meanwhile)
    with pytest.raises(UsageError, match="another process made or changed the index in idx"):
        pc.sync_index("idx", ["notes"], other if synced else encoder)
    assert load(folder / "idx").index.rows == 1 and not load(folder / "idx").synced


def test_a_sync_counts_rows_and_files(folder, encoder, monkeypatch):
    monkeypatch.chdir(folder)
    first = pc.sync_index("idx", ["notes"], encoder, rows="lines")
    assert vars(first.row_changes) == vars(Counts(added=7))
    assert vars(first.file_changes) == vars(Counts(added=2))
    (left_out,) = first.left_out
    assert left_out.file == "notes/picture.png" and left_out.reason
    assert pc.sync_index("idx", ["notes"]).row_changes == Counts(unchanged=7)
    change_files(folder / "notes")
    moved = pc.sync_index("idx", ["notes"], encoder)
    assert moved.row_changes == Counts(added=3, renamed=5, removed=2)
    assert moved.file_changes == Counts(added=1, changed=1, removed=1)
    (folder / "notes" / "b.txt").rename(folder / "notes" / "c.txt")
    (folder / "notes" / "empty.txt").write_text("")
    (folder / "notes" / "a.md").write_text("A new line.\nSnow.\nPrices fell in May.\n")
    report = pc.sync_index("idx", ["notes"], encoder, yes=True).report()
    assert report["files"] == vars(Counts(changed=1, renamed=1, unchanged=1))
    assert {name: report[name] for name in vars(Counts())} == vars(
        Counts(changed=1, renamed=3, removed=3, unchanged=1)
    )
    assert report["left_out"] == [vars(left_out)]


def test_rows_in_parts_and_with_own_ids_are_counted(folder, encoder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "keyed.csv").write_text("text,key\nA dog barks.,x#3\nA cat naps.,y\n")
    pc.sync_index("idx", ["keyed.csv"], encoder, id_field="key")
    (folder / "keyed.csv").write_text("text,key\nA dog howls.,x#3\nA cat naps.,z\n")
    changed = pc.sync_index("idx", ["keyed.csv"])
    assert (changed.row_changes, changed.file_changes) == (
        Counts(changed=1, renamed=1),
        Counts(changed=1),
    )
    (folder / "long.txt").write_text("Long words. " * 200)
    parts = pc.sync_index("parts", ["long.txt"], encoder, rows="lines", split=True)
    assert parts.row_changes == Counts(added=parts.rows) and parts.rows > 1
    (folder / "long.txt").write_text("Long words. " * 200 + "Short words.")
    assert pc.sync_index("parts", ["long.txt"]).file_changes == Counts(changed=1)


def test_a_file_is_read_once_and_linked_folders_are_not(folder, encoder, caplog, monkeypatch):
    caplog.set_level("INFO", logger="promptcli")
    monkeypatch.chdir(folder)
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "b.txt").write_text("Another file.\n")
    for name, target in (
        ("0-link.md", "a.md"),
        ("loop", "."),
        ("linked", "../elsewhere"),
        ("outside.txt", "../elsewhere/b.txt"),
        ("nowhere.txt", "none"),
    ):
        (folder / "notes" / name).symlink_to(target)
    synced = pc.sync_index("idx", ["notes", "notes/a.md"], encoder, rows="lines", verbose=True)
    ids = [name for name, *_ in answers(load(folder / "idx").index, encoder)]
    assert {name.partition(":")[0] for name in ids} == {
        "notes/a.md",
        "notes/deep/table.csv",
        "notes/outside.txt",
    }
    assert synced.rows == 8
    assert {each.file: each.reason.split()[0] for each in synced.left_out} == {
        "notes/0-link.md": "a",
        "notes/loop": "a",
        "notes/linked": "a",
        "notes/nowhere.txt": "a",
        "notes/picture.png": "an",
    }
    assert "2 links to folders" in caplog.text and "left out: notes/linked: a link" in caplog.text
    assert pc.sync_index("other", ["notes/linked"], encoder).rows == 1, "it was named"
    found = pc.search("A cat sleeps.", ["notes", "notes/**/*.md", "./notes/a.md"], k=20)
    assert len({(hit.line, hit.text) for hit in found}) == len(found)
    assert {hit.file for hit in found} >= {"./notes/a.md", "notes/outside.txt"}
