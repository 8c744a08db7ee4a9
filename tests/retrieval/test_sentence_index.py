"""An index in memory and in a folder: its rows, its answers beside brute force, its files."""

import contextlib
import functools
import os
import signal
import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import promptcli as pc
from promptcli.errors import CheckFailedError
from promptcli.retrieval import sentence_index, snapshot
from promptcli.retrieval.array_files import FAISS_FILE, WORDS_FILE
from promptcli.retrieval.new_rows import unit_rows
from promptcli.retrieval.ranking import exact_scores
from promptcli.retrieval.store import Store
from tests.comparing import refusal
from tests.processes import Program

TEXTS = ["A cat sleeps.", "Two dogs play in the snow.", "The market opens at nine.", "Rain falls."]
WORDS_OF = "cat dog rain snow market river bread engine lamp stone".split()


static = functools.cache(lambda: pc.load("mini-static"))


@pytest.fixture(scope="module")
def encoder():
    return static()


@pytest.fixture
def derive_all(monkeypatch):
    """Make derived files of few rows, too."""
    monkeypatch.setattr(snapshot, "MIN_DERIVED_ROWS", 3)


def built(folder=None, texts=TEXTS, **options):
    return pc.SentenceIndex.build(texts, static(), output=folder, **options)


def brute_force(encoder, rows, query, k):
    """The ids of the k nearest of ``rows``, (order, id, text), by a plain loop."""
    [unit] = unit_rows(encoder.encode([query]))
    scored = []
    for order, name, text in rows:
        [row] = unit_rows(encoder.encode([text]))
        scored.append((-float(exact_scores(row[None], unit)[0]), order, name))
    return [name for _, _, name in sorted(scored)[:k]]


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["add", "replace", "delete", "compact", "reopen"]),
        st.integers(0, 11),
        st.sampled_from(WORDS_OF),
        st.sampled_from(WORDS_OF),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=40)
@given(changes=CHANGES, few=st.sampled_from([0, 2, 1000]), in_folder=st.booleans())
def test_any_changes_leave_the_answers_of_brute_force(
    tmp_path_factory, encoder, changes, few, in_folder
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "MIN_DERIVED_ROWS", few)
        folder = tmp_path_factory.mktemp("any") / "index" if in_folder else None
        index = built(folder, ["cat rain"], ids=["first"])
        rows = {"first": (0, "cat rain")}
        for order, (kind, number, one, two) in enumerate(changes, 1):
            name, text = f"id {number}", f"{one} {two}"
            if kind == "delete" and name in rows:
                assert index.delete([name]) == 1
                del rows[name]
            elif kind == "compact":
                index.compact()
            elif kind == "reopen" and folder is not None:
                index = pc.SentenceIndex.open(folder, encoder)
            elif kind in ("add", "replace") and (kind == "replace" or name not in rows):
                replaced = index.add([text], [name], replace=kind == "replace")
                assert replaced == (name in rows)
                rows[name] = (order, text)
        listed = [(order, name, text) for name, (order, text) in rows.items()]
        assert len(index) == len(rows)
        fresh = built(
            None, [text for _, _, text in sorted(listed)], ids=[i for _, i, _ in sorted(listed)]
        )
        for query in ("cat", "snow and bread", "river stone"):
            wanted = brute_force(encoder, listed, query, 5)
            assert [hit.id for hit in index.search(query, 5, by="meaning")] == wanted
            for by in ("words", "both"):
                ours, theirs = index.search(query, 9, by=by), fresh.search(query, 9, by=by)
                assert [hit.id for hit in ours] == [hit.id for hit in theirs]
                assert [hit.score for hit in ours] == pytest.approx([hit.score for hit in theirs])


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF2,Flat", "SQ8"])
def test_every_factory_scores_by_the_vectors(tmp_path, factory):
    texts = [f"{one} {two} {three}" for one in WORDS_OF for two in WORDS_OF for three in "ab"]
    index = built(tmp_path / "i", texts, factory=factory)
    exact = built(None, texts)
    assert (tmp_path / "i" / FAISS_FILE).is_file() == (factory != "Flat")
    for query in ("cat bread", "a lamp of stone"):
        ours, theirs = (each.search(query, 5, by="meaning") for each in (index, exact))
        scores = {hit.id: hit.score for hit in exact.search(query, 200, by="meaning")}
        assert all(scores[hit.id] == hit.score for hit in ours)
        assert ours[0].score == theirs[0].score
        if factory == "Flat":
            assert ours == theirs


def test_a_copy_of_the_query_scores_one():
    texts = [f"line {number} of a text" for number in range(15)]
    index = built(None, texts)
    for text in texts:
        assert [hit.text for hit in index.search(text, min_score=1)] == [text]


@pytest.mark.parametrize("factory", ["IVF2,Flat", "NSG16", "PCA100,Flat"])
def test_every_row_is_compared_if_they_are_too_few_for_the_factory(tmp_path, factory):
    texts = [f"The {one} and the {other}." for one in WORDS_OF for other in WORDS_OF] * 2
    index = built(tmp_path / "i", texts, factory=factory)
    assert index.info().factory == factory
    index.delete(list(range(10, 200)))
    index.compact()
    again = pc.SentenceIndex.open(tmp_path / "i")
    exact = built(None, texts[:10])
    assert again.info().factory == "Flat" and again.search("snow", 5) == exact.search("snow", 5)
    index.add(texts)
    index.compact()
    assert again.info().factory == factory


def test_equal_rows_are_in_the_order_of_rows_on_both_sides_of_the_derived_files(derive_all):
    index = built(None, ["cat", "dog"] * 5)
    index.add(["cat", "dog"])
    assert [hit.id for hit in index.search("cat", 6)] == [0, 2, 4, 6, 8, 10]
    index.delete([2])
    assert [hit.id for hit in index.search("cat", 5)] == [0, 4, 6, 8, 10]


def test_ids_are_numbers_that_go_on_and_are_never_given_again():
    index = built()
    index.add(["One more."])
    index.delete([4])
    index.add(["Another."])
    assert [hit.id for hit in index.search("another", 1)] == [5]
    with refusal("id '1'"):
        index.add(["A copy."], ["1"])
    with refusal("lacks 1 id: 'none'"):
        index.delete([0, "none"])
    assert len(index) == 5
    with refusal("twice"):
        index.add(["x", "y"], ["same", "same"])
    with refusal("twice"):
        built(None, ["x", "y"], ids=["same", "same"])
    with refusal("needs ids"):
        index.add(["x"], replace=True)


def test_blank_rows_are_left_out_and_keep_their_numbers():
    index = built(None, ["A cat.", " ", "A dog."])
    assert [hit.id for hit in index.search("dog", 1)] == [2] and len(index) == 2
    with refusal("blank"):
        built(None, ["", " "])


def test_columns_come_back_with_their_types():
    columns = {
        "year": [2020, 2021.5, None, 2023],
        "day": ["2024-05-31", "2024-06-01T10:00", "", None],
        "paid": [True, False, None, True],
        "name": ["x", "y", "z", "7"],
    }
    index = built(columns=columns)
    assert index.info().columns == {
        "year": "number",
        "day": "date",
        "paid": "truth",
        "name": "text",
    }
    hits = {hit.id: hit.columns for hit in index.search("cat", 4)}
    assert hits[0] == {"year": 2020, "day": "2024-05-31", "paid": True, "name": "x"}
    assert hits[1] == {"year": 2021.5, "day": "2024-06-01 10:00:00", "paid": False, "name": "y"}
    assert hits[2] == {"name": "z"}
    index.add(["Snow."], columns={"year": ["unknown"], "more": [1]})
    assert index.info().columns["year"] == "text" and index.info().columns["more"] == "number"
    assert {hit.id: hit.columns for hit in index.search("cat", 5)}[0]["year"] == "2020"


@pytest.mark.parametrize("factory", [None, "HNSW8"])
def test_what_is_derived_is_made_again(tmp_path, derive_all, notes, factory):
    folder = tmp_path / "i"
    index = built(folder, TEXTS * 3, factory=factory)
    wanted = index.search("snow", 5)
    names = (FAISS_FILE, WORDS_FILE) if factory else (WORDS_FILE,)
    for name in names:
        content = (folder / name).read_bytes()
        for damaged in (b"", content[:-30], b"x" * 100, content[:50] + content[70:], None):
            if damaged is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(damaged)
            again = pc.SentenceIndex.open(folder)
            assert again.search("snow", 5) == wanted
            assert (folder / name).is_file() and "rebuilt" in notes.text
    built(tmp_path / "j", [*TEXTS[::-1]] * 3, factory=factory)
    for name in names:  # of another index
        (folder / name).write_bytes((tmp_path / "j" / name).read_bytes())
    assert pc.SentenceIndex.open(folder).search("snow", 5) == wanted


def test_an_open_index_shows_what_others_change(tmp_path, derive_all):
    one = built(tmp_path / "i")
    other = pc.SentenceIndex.open(tmp_path / "i")
    assert other.search("snow", 1)[0].id == 1
    one.add([f"Snow number {number}." for number in range(20)])
    assert len(other) == 24 and other.search("snow number 19", 1)[0].id == 23
    one.delete([23])
    one.compact()
    assert other.search("snow number 19", 1)[0].id != 23
    built(tmp_path / "i", ["Only this."], force=True)
    assert [hit.text for hit in other.search("snow", 3)] == ["Only this."]
    with refusal("holds an index"):
        built(tmp_path / "i")


def test_migrate_keeps_ids_and_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    index = built(tmp_path / "i", columns={"n": [1, 2, 3, 4]})
    before = index.search("snow", 4)
    calls = []
    monkeypatch.setattr("promptcli.retrieval.store._ROWS_PER_BLOCK", 2)
    monkeypatch.setattr("promptcli.retrieval.new_rows.WINDOW", 2)
    mini = pc.load("mini")
    plain = type(mini).encode

    def stop_at_second(self, texts, *args, **options):
        calls.append(list(texts))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(self, texts, *args, **options)

    monkeypatch.setattr(type(mini), "encode", stop_at_second)
    with pytest.raises(KeyboardInterrupt):
        index.migrate(mini)
    assert index.search("snow", 4) == before  # the old ones answer
    pc.SentenceIndex.open(tmp_path / "i").migrate(mini)
    assert calls[2:] == [TEXTS[2:]]
    fresh = pc.SentenceIndex.build(TEXTS, mini, columns={"n": [1, 2, 3, 4]})
    assert index.search("snow", 4) == fresh.search("snow", 4)
    assert index.info().name == "mini"


def test_a_migration_begins_again_if_its_vectors_were_deleted(tmp_path, monkeypatch):
    index = built(tmp_path / "i")
    mini = pc.load("mini")
    with monkeypatch.context() as patch:
        patch.setattr(index.store, "delete_leftovers", None)
        with pytest.raises(TypeError):  # the last transaction fails, and takes the vectors along
            index.migrate(mini)
    assert len([*(tmp_path / "i").glob("vectors-*")]) == 1
    again = pc.SentenceIndex.open(tmp_path / "i")
    again.migrate(mini)
    fresh = pc.SentenceIndex.build(TEXTS, mini)
    assert again.search("snow", 4) == fresh.search("snow", 4)


def test_a_search_during_a_migration_by_another_process_is_refused(tmp_path, monkeypatch):
    built(tmp_path / "i")
    index, other = (pc.SentenceIndex.open(tmp_path / "i") for _ in range(2))
    plain = type(static()).encode

    def encode(self, texts, *args, **options):
        monkeypatch.undo()
        other.migrate("mini")
        return plain(self, texts, *args, **options)

    monkeypatch.setattr(type(static()), "encode", encode)
    with refusal("another model; search again", pc.PromptcliError):
        index.search("snow")
    assert index.search("snow", 4) == other.search("snow", 4)


@pytest.mark.parametrize("factory", [None, "HNSW8"])
def test_an_index_without_rows_takes_texts_or_vectors(tmp_path, derive_all, factory):
    index = built(tmp_path / "i", factory=factory)
    index.delete(list(range(4)))
    assert index.search("snow") == []
    index.add(TEXTS[1:2])
    assert [hit.found_by for hit in index.search("snow")] == ["both"]
    index.delete([4])
    index.compact()
    index.migrate("mini")
    index.migrate("mini-static")
    index.add(TEXTS)
    index.delete(list(range(5, 9)))
    np.save(tmp_path / "v.npy", np.eye(4, 256, dtype=np.float32))
    (tmp_path / "t.txt").write_text("\n".join(TEXTS))
    pc.embed(tmp_path / "t.txt", tmp_path / "made.npy", model="mini-static")
    index.add(tmp_path / "made.npy")
    assert not index.has_texts() and index.resolve_by() == "meaning"
    assert index.search("snow", 1)[0].id == 10
    vectors = pc.SentenceIndex.build(tmp_path / "v.npy", "mini-static")
    vectors.delete(list(range(4)))
    vectors.add(TEXTS)
    assert vectors.has_texts and vectors.search("snow", 1)[0].text == TEXTS[1]


def test_an_index_says_what_it_holds():
    index = built(columns={"year": [1, 2, 3, 4]})
    info = index.info()
    assert (info.rows, info.dim, info.factory, info.columns) == (4, 256, "Flat", {"year": "number"})
    with pytest.raises(pc.UsageError):
        index.add(["x"], columns={"year": [1, 2]})


def test_an_index_of_before_and_other_folders_are_refused(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "index.json").write_text("{}")
    with refusal("build it again"):
        pc.SentenceIndex.open(tmp_path / "old")
    with pytest.raises(pc.NotFoundError):
        pc.SentenceIndex.open(tmp_path / "none")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep")
    with refusal("other files"):
        built(tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "keep"


def test_an_index_may_have_no_words_or_parts_of_its_rows():
    plain = built(lexical=False)
    assert plain.resolve_by() == "meaning"
    with refusal("no words"):
        plain.search("cat", by="both")
    plain.compact(lexical=True)
    assert plain.search("cat")[0].found_by == "both"
    long = " ".join(["The river was cold."] * 300 + ["A lamp shone."])
    parts = built(None, [long, "The bread is warm."], split=True)
    assert len(parts) > 2
    hits = parts.search("a lamp shone", 2)
    assert str(hits[0].id).startswith("0#") and hits[1].id == 1
    assert parts.delete([0]) == 1 and len(parts) == 1


def test_whole_numbers_of_numpy_are_numbers():
    assert len(built().search("cat", np.int64(2))) == 2


def test_a_factory_that_is_refused_leaves_no_index(tmp_path, monkeypatch):
    for factory in ("HNSW0", "IVF64,Flat"):
        with refusal("factory"):
            built(tmp_path / "i", factory=factory)
        assert not (tmp_path / "i").exists()
    index = built(tmp_path / "i")
    with refusal("factory"):
        built(tmp_path / "i", TEXTS[:2], factory="IVF64,Flat", force=True)
    assert len(index) == 4
    monkeypatch.setattr(sentence_index, "encode_rows", lambda *_: iter([None]))
    with refusal("HNSW0"):  # before a row is encoded
        built(factory="HNSW0")
    with refusal("FAISS says: could not parse"):
        built(factory="foo")


def test_wrong_arguments_are_refused():
    with refusal("a folder must be a string or a Path, got None"):
        pc.SentenceIndex.open(None)
    index = built()
    for wrong in ({"k": 0}, {"k": "3"}, {"by": "luck"}, {"where": "year >"}):
        with pytest.raises(pc.UsageError):
            index.search("cat", **{"k": 3, **wrong})
    for factory in ("PQ0", "Nothing", "IVF4096,Flat", "HNSW1"):
        with refusal("factory") as refused:
            built(None, factory=factory)
        assert ".cpp" not in str(refused.value)
    with refusal("target_recall"):
        built(None, target_recall=0)
    assert index.search([]) == []


def test_an_index_of_a_file_of_vectors_knows_who_made_them(tmp_path):
    (tmp_path / "t.txt").write_text("\n".join([*TEXTS, ""]))
    for name in ("v.npy", "v.parquet"):
        pc.embed(tmp_path / "t.txt", tmp_path / name, model="mini-static")
        index = pc.SentenceIndex.build(tmp_path / name)
        by_texts = built()
        for ours, theirs in zip(
            index.search("snow", 4, by="meaning"),
            by_texts.search("snow", 4, by="meaning"),
            strict=True,
        ):
            assert (ours.id, ours.score) == (int(theirs.id), pytest.approx(theirs.score, abs=1e-6))
        with pytest.raises(pc.UsageError):
            pc.SentenceIndex.build(tmp_path / name, "mini")
    np.save(tmp_path / "bare.npy", np.eye(4, 256, dtype=np.float32))
    with refusal("model"):
        pc.SentenceIndex.build(tmp_path / "bare.npy")


def test_texts_and_ids_that_the_index_has_are_refused_before_anything_is_encoded(
    tmp_path, monkeypatch
):
    index = built(tmp_path / "i")
    (tmp_path / "more.txt").write_text("Rain falls.\nThe sun shines.\n")
    with monkeypatch.context() as patch:
        patch.setattr(sentence_index, "encode_rows", None)
        with refusal("1 of 2 texts"):
            index.add(tmp_path / "more.txt")
        with refusal("id '3'"):
            index.add(["The sun shines."], [3])
    assert len(index) == 4
    index.add(tmp_path / "more.txt", allow_duplicates=True)
    assert len(index) == 6
    names = ["with\0zero", *map(str, range(10, 9000))]
    index.add(["Snow melts."] * len(names), names)
    assert index.delete(names) == len(names)


def is_killed(change):
    """Kill a process while it changes an index."""
    process = Program(main=change)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def add_rows_and_die(folder):
    index = pc.SentenceIndex.open(folder)
    append = index.store.append
    index.store.append = lambda rows: kill(append(rows))
    index.add(["A new row."] * 3)


def test_a_killed_change_leaves_the_last_transaction(tmp_path):
    built(tmp_path / "i")
    assert is_killed(functools.partial(add_rows_and_die, tmp_path / "i"))
    index = pc.SentenceIndex.open(tmp_path / "i")
    assert len(index) == 4 and index.search("snow", 1)[0].id == 1
    index.add(["A new row."])
    assert len(index) == 5


def compact_and_die(folder):
    index = pc.SentenceIndex.open(folder)
    index.store.delete_leftovers = kill
    index.compact()


def test_gone_rows_leave_the_vectors_and_a_killed_process_leaves_nothing(tmp_path, derive_all):
    index = built(tmp_path / "i", TEXTS * 4)
    reader = pc.SentenceIndex.open(tmp_path / "i")

    def sizes():
        return [path.stat().st_size // 1024 for path in (tmp_path / "i").glob("vectors-*")]

    wanted = [hit.id for hit in reader.search("snow", 16) if hit.id not in (0, 1)]
    index.delete([0, 1])
    assert sizes() == [16]
    assert is_killed(functools.partial(compact_and_die, tmp_path / "i"))
    assert sorted(sizes()) == [14, 16]
    assert [hit.id for hit in reader.search("snow", 16)] == wanted
    index.compact()
    assert sizes() == [14]
    assert [hit.id for hit in reader.search("snow", 16)] == wanted
    index.delete(range(2, 8))  # more than a tenth
    assert sizes() == [8] and len(reader.search("snow", 16)) == 8
    with pytest.raises(KeyboardInterrupt), index.store.changing():
        index.store.rewrite("float32")
        raise KeyboardInterrupt
    assert sizes() == [8] and len(index.search("snow", 16)) == 8


def test_an_index_that_is_approximate_by_itself_keeps_half_precision(tmp_path, monkeypatch):
    texts = [
        f"{one} {two} {three} {four}"
        for one in WORDS_OF
        for two in WORDS_OF
        for three in WORDS_OF
        for four in "abc"
    ]
    exact = built(None, texts)
    monkeypatch.setattr("promptcli.retrieval.snapshot._MIN_APPROXIMATE_ROWS", 2900)
    index = built(tmp_path / "i", texts[:2800])
    assert [path.suffix for path in (tmp_path / "i").glob("vectors-*")] == [".float32"]
    index.add(texts[2800:])  # by itself it becomes approximate
    assert [path.suffix for path in (tmp_path / "i").glob("vectors-*")] == [".float16"]
    assert index.info().factory.startswith("IVF") and index.info().recall["at_10"] >= 0.95
    index.add([texts[-1]], ["again"])
    for query in ("cat bread", texts[-1]):
        scores = {hit.id: hit.score for hit in exact.search(query, 3000, by="meaning")}
        hits = pc.SentenceIndex.open(tmp_path / "i").search(query, 20, by="meaning")
        wanted = [scores[2999 if hit.id == "again" else hit.id] for hit in hits]
        assert [hit.score for hit in hits] == pytest.approx(wanted, abs=1e-4)
        assert {hit.score for hit in hits if hit.id in (2999, "again")} == {hits[0].score} or (
            query == "cat bread"
        )
    index.delete(list(range(200)))
    index.compact()
    assert [path.suffix for path in (tmp_path / "i").glob("vectors-*")] == [".float32"]


def add_one_by_one(folder, name):
    index = pc.SentenceIndex.open(folder)
    for number in range(15):
        index.add([f"Row {number} of {name}."], [f"{name} {number}"])


def test_two_writers_and_a_reader(tmp_path):
    built(tmp_path / "i")
    works = [functools.partial(add_one_by_one, tmp_path / "i", name) for name in ("one", "two")]
    writers = [Program(main=work) for work in works]
    index = pc.SentenceIndex.open(tmp_path / "i")
    while any(writer.poll() is None for writer in writers):
        hits = index.search("cat", 100, by="meaning")
        assert len({hit.id for hit in hits}) == len(hits) >= 4
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(index) == 34


def test_a_damaged_database_and_a_full_disk_are_told(tmp_path):
    index = built(tmp_path / "i", TEXTS * 200, ids=range(800))
    pages = index.store.scalar("PRAGMA page_count")
    index.store.sql.execute(f"PRAGMA max_page_count={pages + 1}")
    with pytest.raises(OSError, match="space"):
        index.add([f"{number} more" for number in range(2000)])
    assert len(index) == 800
    [vectors] = (tmp_path / "i").glob("vectors-*")
    content = vectors.read_bytes()
    for damaged in (content[:-5], b"", None):
        vectors.unlink()
        if damaged is not None:
            vectors.write_bytes(damaged)
        again = pc.SentenceIndex.open(tmp_path / "i")
        for _ in range(2):
            with refusal("build the index again", pc.PromptcliError):
                again.search("cat")
            assert not again.store.sql.in_transaction
        with refusal("build the index again", pc.PromptcliError):
            again.add(["x"])  # behind zeros
        if damaged is None:
            with refusal("build the index again", pc.PromptcliError):
                again.compact()
        assert len(again) == 800
        vectors.write_bytes(content)
    again.store.write_settings(vectors="../vectors-00000000.float32")  # of a stranger
    (tmp_path / "vectors-00000000.float32").write_bytes(content)
    with refusal("build the index again", pc.PromptcliError):
        pc.SentenceIndex.open(tmp_path / "i").add(["x"])
    path = tmp_path / "i" / "index.sqlite"
    path.write_bytes(b"not a database" * 1000)
    with refusal("damaged", pc.PromptcliError):
        Store.open(tmp_path / "i")


@pytest.mark.parametrize("damage", ["the file is empty", "a table is missing", "a page is lost"])
def test_damage_is_not_blamed_on_the_condition(damage, tmp_path):
    path = tmp_path / "i" / "index.sqlite"
    built(tmp_path / "i", columns={"n": range(len(TEXTS))})
    index = pc.SentenceIndex.open(tmp_path / "i")
    if damage == "the file is empty":
        path.write_bytes(b"")
    elif damage == "a table is missing":
        with contextlib.closing(sqlite3.connect(path)) as sql:
            sql.execute("DROP TABLE columns")
    else:
        with contextlib.closing(sqlite3.connect(path)) as sql:
            query = "SELECT rootpage FROM sqlite_master WHERE name='columns'"
            [page] = sql.execute(query).fetchone()
        with path.open("r+b") as file:
            file.seek((page - 1) * 4096)
            file.write(bytes(4096))
    for reopened in (index, index, None):
        with refusal("is damaged .*build the index again", CheckFailedError):
            (reopened or pc.SentenceIndex.open(tmp_path / "i")).search("cat", where="n > 1")


def test_ids_may_look_like_parts_in_an_index_without_parts(encoder, tmp_path):
    texts, ids = ["A cat sleeps.", "A cat is asleep."], ["issue#1", "issue#2"]
    with refusal("'issue#1' looks like a part of a row"):
        pc.SentenceIndex.build(texts, encoder, ids=ids, split=True)
    split = pc.SentenceIndex.build(["Rain falls."], encoder, split=True)
    table = tmp_path / "t.csv"
    table.write_text("id,text\nissue#1,A cat sleeps.\n")
    for rows in ({"sentences": texts, "ids": ids}, {"sentences": table}):
        with refusal("'issue#1' looks like a part of a row"):
            split.add(**rows)
    pc.embed(table, tmp_path / "v.parquet", "mini-static")
    with refusal("'issue#1' looks like a part of a row"):
        split.add(tmp_path / "v.parquet")
    assert not split.leaks(table).found  # which are only compared
    note = tmp_path / "f.md"
    note.write_text("A cat sleeps. " * 60)
    passages = pc.SentenceIndex.build(note, encoder, split=True, rows="passages")
    assert any(hit.id.endswith("f.md:1#2") for hit in passages.search("cat"))

    index = pc.SentenceIndex.build(texts, encoder, ids=ids)
    assert [hit.id for hit in index.search("A cat sleeps.")] == ["issue#1", "issue#2"]
    with refusal("list"):
        index.delete("issue#1")
    assert len(index) == 2


@pytest.mark.parametrize("columns", [["x"], [1], "x", 3])
def test_columns_that_are_no_table_are_refused(columns):
    with refusal("^columns: must be a dictionary of names and lists of values, or a DataFrame"):
        built(texts=TEXTS[:2], columns=columns)


def test_a_repeated_id_of_a_list_is_a_fault_of_its_ids():
    for ids in ([1, 1], [1, "1"]):
        with refusal("^ids: the id '1' is given twice"):
            built(texts=TEXTS[:2], ids=ids)
    index = built(texts=TEXTS[:2])
    with refusal("^ids: the id 'a' is given twice"):
        index.add(TEXTS[2:], ids=["a", "a"])
    assert len(index) == 2


def test_an_empty_query_is_refused_in_one_wording(tmp_path):
    (tmp_path / "t.txt").write_text("A cat sleeps.\n")
    said = "^query: is empty; give a few words, or a sentence$"
    for query in (" ", ["cat", ""]):
        with refusal(said):
            built().search(query)
    with refusal(said):
        pc.search(" ", tmp_path / "t.txt", model=static())


def test_a_column_that_becomes_text_is_noted(notes):
    index = built(texts=TEXTS[:2], columns={"year": [2020, 2021]})
    index.add(TEXTS[2:3], columns={"year": [2022]})
    assert "becomes text" not in notes.text
    index.add(TEXTS[3:], columns={"year": ["abc"]})
    assert "column 'year' becomes text: it held the type number before" in notes.text
    assert index.info().columns == {"year": "text"}
