"""VectorIndex against a plain matrix product, and its folder against kills, damage and other processes."""

import errno
import itertools
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from promptcli.index.factory import Effort
from promptcli.index.recall import NEIGHBOURS, Truth
from promptcli.index.rows import ArrayRows, Hit, named_rows, unit_rows
from promptcli.index.stored import Origin, StoredIndex, change, check, load, read_manifest, save
from promptcli.index.vector_index import VectorIndex
from tests import processes
from tests.embed_fakes import FakeEncoder
from tests.killing import killed_at_every_step

ORIGIN = Origin("a" * 64, {"backbone": "mini-bert"}, None, {"dtype": "float32"})


class Encoder(FakeEncoder):
    def tensors(self):
        return {}


def vectors(n, d=16, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def built(n=50, d=16, factory="Flat", seed=0, texts=True):
    return VectorIndex.build(
        ArrayRows(vectors(n, d, seed), range(n), [f"text {row}" for row in range(n)] if texts else None), factory
    )


def by_product(rows, query, k):
    """Return the k best rows and cosines by the plain formula, in float64."""
    rows, query = rows.astype(np.float64), query.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
    cosines = rows @ query / np.where(lengths > 0, lengths, 1)
    order = np.lexsort((np.arange(len(rows)), -cosines))[:k]
    return order, cosines[order]


# Search


@pytest.mark.parametrize("k", [1, 10, 50])
def test_exact_search_is_the_plain_formula(k):
    index, queries = built(), vectors(7, seed=1)
    for query, hits in zip(queries, index.search(queries, k), strict=True):
        rows, cosines = by_product(vectors(50), query, k)
        assert [hit.id for hit in hits] == rows.tolist()
        np.testing.assert_allclose([hit.score for hit in hits], cosines, atol=1e-6)
        assert [hit.rank for hit in hits] == list(range(1, k + 1))
        assert [hit.text for hit in hits] == [f"text {row}" for row in rows]


def test_scale_of_vectors_and_queries_does_not_matter():
    scales = np.float32(10) ** np.random.default_rng(2).integers(-30, 30, size=(50, 1)).astype(np.float32)
    scaled = VectorIndex.build(ArrayRows(vectors(50) * scales, range(50), None))
    plain = built(texts=False)
    for left, right in zip(
        scaled.search(vectors(5, seed=1) * np.float32(1e-30), 50), plain.search(vectors(5, seed=1), 50), strict=True
    ):
        assert [hit.id for hit in left] == [hit.id for hit in right]
        np.testing.assert_allclose([hit.score for hit in left], [hit.score for hit in right], atol=1e-6)


@pytest.mark.parametrize("factory", ["Flat", "IVF1,Flat", "SQ8", "PCA8,Flat"])
def test_k_beyond_n_gives_n_and_never_minus_one(factory):
    hits = built(factory=factory).search(vectors(3, seed=1), 1000)
    assert [len(answers) for answers in hits] == [50, 50, 50]
    assert all({hit.id for hit in answers} == set(range(50)) for answers in hits)


def test_a_list_that_ends_early_has_no_minus_one():
    index = built(400, factory="IVF8,Flat")
    answers = index.search(vectors(20, seed=1), 400, nprobe=1)
    assert all(0 < len(hits) < 400 for hits in answers), "one list of eight does not hold all rows"
    assert all(hit.id >= 0 for hits in answers for hit in hits)


def test_equal_rows_stand_in_their_order_whatever_the_batch():
    distinct = vectors(3, 64)
    rows = np.tile(distinct, (400, 1))  # 400 copies of each: far more than any margin
    index = VectorIndex.build(ArrayRows(rows, range(1200), None))
    queries = np.concatenate([distinct, vectors(60, 64, seed=1)])
    together = index.search(queries, 30)
    for number in range(3):
        assert [hit.id for hit in together[number]] == list(range(number, 90, 3))
        assert len({hit.score for hit in together[number]}) == 1
    for query, hits in zip(queries, together, strict=True):
        assert index.search(query[None], 30)[0] == hits


@settings(deadline=None, max_examples=60)
@given(
    hnp.arrays(np.float32, (12, 4), elements=st.integers(-2, 2).map(float)),
    hnp.arrays(np.float32, (3, 4), elements=st.integers(-2, 2).map(float)),
    st.integers(1, 14),
)
def test_small_integers_with_many_ties_and_zeros(rows, queries, k):
    index = VectorIndex.build(ArrayRows(rows, range(12), None))
    assert index.zero_rows == np.flatnonzero(~rows.any(axis=1)).tolist()
    for query, hits in zip(queries, index.search(queries, k), strict=True):
        _, cosines = by_product(rows, query, k)
        np.testing.assert_allclose([hit.score for hit in hits], cosines, atol=1e-6)
        for before, after in itertools.pairwise(hits):
            assert before.score > after.score or (before.score == after.score and before.id < after.id)


def test_a_zero_row_scores_zero():
    rows = vectors(4)
    rows[2] = 0
    hits = VectorIndex.build(ArrayRows(rows, range(4), None)).search(vectors(1, seed=1), 4)[0]
    assert next(hit.score for hit in hits if hit.id == 2) == 0.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_by_row(value):
    rows = vectors(9)
    rows[[3, 5], 1] = value
    with pytest.raises(UsageError, match=r"2 rows \(3, 5\)"):
        VectorIndex.build(ArrayRows(rows, range(9), None))
    index = built(9)
    with pytest.raises(UsageError, match=r"2 rows \(3, 5\)"):
        index.add(ArrayRows(rows, range(9), ["x"] * 9))
    assert index.rows == 9
    with pytest.raises(UsageError, match=r"2 queries \(3, 5\)"):
        index.search(rows, 1)


def test_wrong_shapes_are_refused():
    index = built()
    for queries in (vectors(1, 15), vectors(2)[0]):
        with pytest.raises(UsageError, match="do not fit"):
            index.search(queries, 1)
    for k in (0, -1):
        with pytest.raises(UsageError, match="at least 1"):
            index.search(vectors(1), k)
    with pytest.raises(UsageError, match="width 15"):
        index.add(ArrayRows(vectors(1, 15), [0], ["x"]))
    for ids, texts in ((range(2), None), (range(3), ["x"])):
        with pytest.raises(UsageError, match="do not belong together"):
            VectorIndex.build(ArrayRows(vectors(3), ids, texts))
    with pytest.raises(UsageError, match="at least one row"):
        VectorIndex.build(ArrayRows(vectors(0), [], None))


def test_the_callers_matrix_is_left_alone():
    rows = vectors(5)
    before = rows.copy()
    VectorIndex.build(ArrayRows(rows, range(5), None)).search(rows, 2)
    assert (rows == before).all()


def test_named_rows_and_unit_rows():
    assert named_rows([3]) == "row 3"
    assert named_rows(range(7)) == "7 rows (0, 1, 2, 3, 4, ...)"
    units, zeros = unit_rows(np.array([[3, 4], [0, 0], [1e-38, 0], [3e38, 3e38]], np.float32))
    np.testing.assert_allclose(units, [[0.6, 0.8], [0, 0], [1, 0], [2**-0.5, 2**-0.5]], rtol=1e-6)
    assert zeros == [1]


# Adding


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF1,Flat", "SQ8"])
def test_adding_is_building_from_all_rows(factory):
    index = built(40, factory=factory)
    index.add(ArrayRows(vectors(20, seed=3), range(20), [f"text {row}" for row in range(40, 60)]))
    both = np.concatenate([vectors(40), vectors(20, seed=3)])
    hits = index.search(both, 1)
    assert [answers[0].id for answers in hits] == list(range(60)), "row numbers go on"
    assert [answers[0].text for answers in hits] == [f"text {row}" for row in range(60)]


def test_ids_of_both_kinds_become_texts():
    index = VectorIndex.build(ArrayRows(vectors(2), range(2), None))
    index.add(ArrayRows(vectors(2, seed=1), ["x", "y"], None))
    index.add(ArrayRows(vectors(2, seed=2), range(2), None))
    queries = np.concatenate([vectors(2), vectors(2, seed=1), vectors(2, seed=2)])
    assert [hits[0].id for hits in index.search(queries, 1)] == ["0", "1", "x", "y", "4", "5"]
    mixed = VectorIndex.build(ArrayRows(vectors(2), [0, ""], None))  # what a JSONL file with a blank line gives
    assert {hit.id for hit in mixed.search(vectors(1), 2)[0]} == {"0", ""}


def test_texts_on_one_side_only_are_refused():
    with pytest.raises(UsageError, match="has texts"):
        built(3).add(ArrayRows(vectors(1), [0], None))
    with pytest.raises(UsageError, match="has no texts"):
        built(3, texts=False).add(ArrayRows(vectors(1), [0], ["x"]))


def test_zero_rows_of_an_addition_are_counted_from_the_first_row():
    index = built(5)
    index.add(ArrayRows(np.zeros((2, 16), np.float32), range(2), ["", ""]))
    assert index.zero_rows == [5, 6]


# Factories and recall


@pytest.mark.parametrize(
    "factory", ["Foo", "", "LSH", "PQ7", "IVF,Flat", "IVF0,Flat", "PQ4x0", "HNSW1", "ü", "HNSW8,PQ4"]
)
def test_a_factory_faiss_does_not_make_is_one_line(factory, capfd):
    with pytest.raises(UsageError, match=r"factory.*e\.g\. Flat") as raised:
        built(factory=factory)
    assert "\n" not in str(raised.value) and ".cpp" not in str(raised.value) and len(str(raised.value)) < 300
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("factory", ["IDMap,Flat", "PCA32,Flat"])
def test_a_factory_that_cannot_take_the_rows_is_one_line(factory, capfd):
    with pytest.raises(UsageError, match="does not index") as raised:
        built(factory=factory)
    assert "\n" not in str(raised.value) and ".cpp" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("factory", "needed"),
    [
        ("IVF64,Flat", 39 * 64),
        ("PQ4", 9984),
        ("IVF2,PQ4", 9984),
        ("OPQ4,PQ4x4", 9984),
        ("RQ2x8", 9984),
        ("IVF2,PQ4x4fs,RFlat", 624),
        ("IVF16(PQ4x4),Flat", 624),
    ],
)
def test_too_few_vectors_to_train_on_are_said_with_the_number_needed(factory, needed, capfd):
    with pytest.raises(UsageError, match=f"needs {needed} vectors"):
        built(100, factory=factory)
    assert capfd.readouterr() == ("", ""), "nothing from FAISS itself"


def test_enough_vectors_train_without_noise(capfd):
    index = built(39 * 16, factory="IVF4,PQ4x4")
    assert index.rows == 624 and capfd.readouterr() == ("", "")


def test_exact_index_has_no_recall_and_an_approximate_one_has():
    assert built().recall is None
    assert built(factory="L2norm,Flat").recall.at_10 == 1.0
    rough = built(2000, factory="PQ4x4").recall
    assert 0 < rough.at_10 < 0.9 and (rough.queries, rough.rows) == (1000, 2000)


def test_recall_is_the_plain_definition():
    index, rows = built(1500, factory="PQ4x4"), unit_rows(vectors(1500))[0]
    found = 0
    asked = ArrayRows(rows, range(1500), None).sample(1000)[0]
    for row in asked:
        others = [hit.id for hit in index.search(rows[row][None], 11)[0] if hit.id != row][:10]
        nearest = [other for other in by_product(rows, rows[row], 11)[0].tolist() if other != row][:10]
        found += len(set(others) & set(nearest))
    assert index.recall.at_10 == pytest.approx(found / (10 * len(asked)), abs=1e-3)


@pytest.mark.parametrize("block", [7, 60])
def test_recall_counts_equal_neighbours_and_small_indexes(block):
    units = unit_rows(np.repeat(vectors(2), 30, axis=0))[0]
    truth = Truth(np.array([0]), units[:1])
    for start in range(0, 60, block):
        truth.add(units[start : start + block])

    def of(rows):
        return truth.recall(lambda queries, k, effort: [(np.array(rows), None)], Effort()).at_10

    assert truth.rows == 60 and of(range(15, 15 + NEIGHBOURS)) == 1.0, "any equal neighbour will do"
    assert of(range(30, 45)) == 0.0
    assert of([1, 2, 3, 40]) == pytest.approx(0.3)
    assert built(1, factory="HNSW8").recall.at_10 == 1.0
    assert built(2, factory="HNSW8").recall.at_10 == 1.0


def test_more_lists_are_searched_while_recall_is_low():
    index = built(2000, factory="IVF32,Flat")
    assert index.effort.nprobe > 1 and index.recall.at_10 >= 0.95


# The folder


def test_no_torch_for_an_index_and_no_faiss_for_its_manifest(tmp_path):
    save(tmp_path / "idx", stored())
    code = (
        "import sys; from pathlib import Path; from promptcli.index.stored import load, read_manifest;"
        f" folder = Path({str(tmp_path / 'idx')!r}); read_manifest(folder); assert 'faiss' not in sys.modules;"
        " load(folder); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def part(folder, name):
    """Return the file of a part."""
    stem, suffix = name.split(".")
    (path,) = folder.glob(f"{stem}-*.{suffix}")
    return path


def stored(fill=0, n=50, factory="Flat"):
    return StoredIndex(built(n, factory=factory, seed=fill), ORIGIN, "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF1,SQ8"])
@pytest.mark.parametrize("texts", [True, False])
def test_a_stored_index_answers_as_before(tmp_path, factory, texts):
    index = built(factory=factory, texts=texts)
    index.add(ArrayRows(vectors(3, seed=9), ["a", "b", "ü"], ["x", "y\n", "日本"] if texts else None))
    manifest = save(tmp_path / "deep" / "idx", StoredIndex(index, ORIGIN, "now"))
    again = load(tmp_path / "deep" / "idx")
    assert (again.origin, again.created, again.index.recall) == (ORIGIN, "now", index.recall)
    assert again.index.search(vectors(4, seed=1), 20) == index.search(vectors(4, seed=1), 20)
    assert again.index.factory == factory
    assert manifest == read_manifest(tmp_path / "deep" / "idx")
    assert any((tmp_path / "deep" / "idx").glob("texts-*.arrow")) == texts


def test_manifest_says_what_is_in_the_folder(tmp_path):
    import faiss
    import pyarrow as pa

    from promptcli.storage.files import sha256

    folder = tmp_path / "idx"
    manifest = save(folder, stored(factory="HNSW8"))
    assert json.loads((folder / "index.json").read_text()) == asdict(manifest)
    names = [part(folder, name).name for name in ("index.faiss", "ids.arrow", "texts.arrow")]
    assert manifest.sha256 == {name: sha256(folder / name) for name in names}
    assert (manifest.rows, manifest.dim, manifest.factory) == (50, 16, "HNSW8")
    assert manifest.fingerprint == "a" * 64 and manifest.recall.queries == 50
    assert faiss.read_index(str(folder / names[0])).ntotal == 50, "anyone's FAISS reads it"
    with pa.ipc.open_file(folder / names[1]) as file:
        assert file.read_all().column("id").to_pylist() == list(range(50))
    assert [asdict(one) for one in manifest.segments] == [
        {"rows": 50, "index": names[0], "ids": names[1], "texts": names[2]}
    ]


@pytest.mark.parametrize("name", ["index.faiss", "ids.arrow", "texts.arrow"])
def test_a_truncated_altered_or_missing_file_is_named(tmp_path, name):
    save(tmp_path / "idx", stored())
    path = part(tmp_path / "idx", name)
    name = path.name
    whole = path.read_bytes()
    middle = len(whole) // 2
    for content in (whole[:-1], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], b""):
        path.write_bytes(content)
        for read in (load, read_manifest):
            with pytest.raises(CheckFailedError, match=f"{name}.*promptcli index build") as raised:
                read(tmp_path / "idx")
            assert "\n" not in str(raised.value)
    path.unlink()
    with pytest.raises(CheckFailedError, match=f"{name}.*missing"):
        load(tmp_path / "idx")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema_version": 1', "\x00"])
def test_a_damaged_manifest_is_named(tmp_path, content):
    save(tmp_path / "idx", stored())
    (tmp_path / "idx" / "index.json").write_text(content)
    with pytest.raises(CheckFailedError, match=r"index\.json"):
        load(tmp_path / "idx")


def test_another_version_is_said(tmp_path):
    save(tmp_path / "idx", stored())
    path = tmp_path / "idx" / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    with pytest.raises(CheckFailedError, match="version 99"):
        load(tmp_path / "idx")


def test_no_index_is_said(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "no/where", "file", "empty", "/"):
        with pytest.raises(NotFoundError, match="promptcli index build"):
            load(tmp_path / name)
        with pytest.raises(NotFoundError), change(tmp_path / name):
            pass
    assert sorted(os.listdir(tmp_path)) == ["empty", "file"]


def test_nothing_of_the_users_is_replaced(tmp_path):
    folder = tmp_path / "idx"
    folder.mkdir()
    check(folder, force=False)  # an empty folder is free
    save(folder, stored())
    with pytest.raises(UsageError, match="`force`"):
        save(folder, stored(1))
    save(folder, stored(1), force=True)
    assert load(folder).index.search(vectors(1), 5) == stored(1).index.search(vectors(1), 5)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        save(folder, stored(2), force=True)
    assert (folder / "notes.txt").read_text() == "mine"
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        check(tmp_path / "file", force=True)


def test_a_link_to_a_folder_is_followed(tmp_path):
    save(tmp_path / "idx", stored())
    (tmp_path / "link").symlink_to(tmp_path / "idx")
    save(tmp_path / "link", stored(1), force=True)
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "idx").index.search(vectors(1), 5) == stored(1).index.search(vectors(1), 5)


def test_a_change_that_fails_changes_nothing(tmp_path):
    save(tmp_path / "idx", stored())
    with pytest.raises(UsageError), change(tmp_path / "idx") as held:
        held.index.add(ArrayRows(vectors(1), [0], ["x"]))
        held.index.add(ArrayRows(vectors(1), [0], None))
    assert load(tmp_path / "idx").index.rows == 50
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) in (["idx"], ["home", "idx"])


@pytest.mark.parametrize("how", ["build", "add"])
def test_a_kill_at_any_step_leaves_the_old_index_or_the_new(tmp_path, how):
    def work(folder):
        if how == "build":
            save(folder, stored(1, n=60), force=True)
        else:
            with change(folder) as held:
                held.index.add(ArrayRows(vectors(10, seed=1), range(10), ["new"] * 10))

    def finish(folder):
        save(folder / "idx", stored(2), force=True)
        assert {path.name for path in folder.iterdir()} <= {"idx", ".idx.lock"}, "a killed process's rest"

    rows = killed_at_every_step(
        tmp_path / how,
        lambda folder: save(folder / "idx", stored()),
        lambda folder: work(folder / "idx"),
        lambda folder: load(folder / "idx").index.rows,
        finish,
        least=15,
    )
    assert rows == sorted(rows) and set(rows) == {50, 60}


def test_an_index_that_is_built_anew_while_it_is_opened_is_one_of_the_two(tmp_path, monkeypatch):
    """A reader has the old manifest when the parts that it names go."""
    from promptcli.index import stored as module

    save(tmp_path / "idx", stored())
    read = module._load

    def late(folder, manifest):
        monkeypatch.setattr(module, "_load", read)
        save(folder, stored(1, n=60), force=True)
        return read(folder, manifest)

    monkeypatch.setattr(module, "_load", late)
    opened = load(tmp_path / "idx").index
    query = vectors(60, seed=1)[:1]
    assert opened.rows == 60 and opened.search(query, 5) == stored(1, n=60).index.search(query, 5)


@pytest.mark.parametrize("room", [1000, 20_000])
def test_a_full_disk_is_said_and_leaves_the_old_index(tmp_path, room):
    import resource

    save(tmp_path / "idx", stored())
    texts = [np.random.default_rng(row).bytes(1000).hex() for row in range(60)]
    large = StoredIndex(VectorIndex.build(ArrayRows(vectors(60), range(60), texts)), ORIGIN, "now")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))  # the larger has room for all but the texts
    try:
        with pytest.raises(OSError) as raised:
            save(tmp_path / "idx", large, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG
    assert load(tmp_path / "idx").index.rows == 50
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "idx", ".idx.lock"}


def _add(folder, letter, number):
    with change(folder) as held:
        held.index.add(ArrayRows(vectors(1, seed=number), [f"{letter}{number}"], ["new"]))


def _read(folder, letter, number):
    assert load(folder).index.rows in range(50, 56)


@pytest.mark.parametrize("other", [(_add, 5), (_read, 20)])
def test_two_processes_at_once_lose_nothing(tmp_path, other):
    save(tmp_path / "idx", stored())
    processes.at_once(tmp_path / "idx", (_add, 5), other)
    found = {hit.id for hit in load(tmp_path / "idx").index.search(vectors(1), 100)[0]}
    letters = "ab" if other[0] is _add else "a"
    assert found - set(map(str, range(50))) == {f"{letter}{number}" for letter in letters for number in range(5)}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_index_that_may_only_be_read_is_read(tmp_path):
    save(tmp_path / "shared" / "idx", stored())
    (tmp_path / "shared").chmod(0o555)
    try:
        assert load(tmp_path / "shared" / "idx").index.rows == 50
    finally:
        (tmp_path / "shared").chmod(0o755)


def test_a_loaded_index_answers_at_once(tmp_path):
    save(tmp_path / "idx", StoredIndex(built(20_000, 64), ORIGIN, "now"))
    index = load(tmp_path / "idx").index
    query = vectors(1, 64, seed=1)
    index.search(query)
    took = []
    for _ in range(5):
        start = time.perf_counter()
        index.search(query, 10)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.1  # it is about a millisecond; the rest is for a busy machine
    assert isinstance(index.search(query)[0][0], Hit)


# What only looks whole


@pytest.mark.parametrize("name", ["index-", "ids-", "texts-"])
def test_a_file_cut_short_with_a_checksum_that_matches_is_one_line(tmp_path, name):
    from promptcli.storage.files import sha256

    folder = tmp_path / "idx"
    save(folder, stored())
    (path,) = folder.glob(f"{name}*")
    whole = path.read_bytes()
    for length in (0, 3, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        document = json.loads((folder / "index.json").read_text())
        document["sha256"][path.name] = sha256(path)
        (folder / "index.json").write_text(json.dumps(document))
        with pytest.raises(CheckFailedError, match="promptcli index build") as raised:
            load(folder)
        assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


def test_a_manifest_cut_anywhere_is_one_line(tmp_path):
    folder = tmp_path / "idx"
    save(folder, stored())
    whole = (folder / "index.json").read_text().rstrip()
    for length in range(0, len(whole), 7):
        (folder / "index.json").write_text(whole[:length])
        with pytest.raises(CheckFailedError, match=r"index\.json"):
            load(folder)


def test_a_name_that_no_index_can_have_is_refused_before_anything_is_made(tmp_path):
    for name in ("x" * 255, "new\nline"):
        with pytest.raises(UsageError, match="no name for an index"):
            save(tmp_path / "deep" / name, stored())
    assert not (tmp_path / "deep").exists()


# The library's index


def test_sentences_are_built_searched_saved_and_loaded(tmp_path):
    from promptcli.index.sentence_index import SentenceIndex

    encoder = Encoder()
    sentences = ["A cat sleeps.", "A dog runs fast.", "Rain falls on the roof."]
    index = SentenceIndex.build(sentences, encoder)
    hits = index.search("A dog runs fast.", k=2)
    assert (hits[0].text, hits[0].id, hits[0].rank) == (sentences[1], 1, 1) and hits[0].score == pytest.approx(1)
    assert [found[0].id for found in index.search(sentences, k=1)] == [0, 1, 2] and len(index) == 3
    index.add(["Snow melts."])
    index.save(tmp_path / "idx")
    with pytest.raises(UsageError, match="`force`"):
        index.save(tmp_path / "idx")
    again = SentenceIndex.load(tmp_path / "idx", encoder)
    assert again.search("Snow melts.", k=1)[0].id == 3
    other = Encoder()
    other.fingerprint = "e" * 64
    with pytest.raises(UsageError, match="e" * 12):
        SentenceIndex.load(tmp_path / "idx", other)
    named = SentenceIndex.build(sentences, encoder, ids=["a", "b", "c"], factory="HNSW8")
    assert named.search("Rain falls on the roof.", k=1)[0].id == "c"
    with pytest.raises(UsageError, match="do not belong together"):
        SentenceIndex.build(sentences, encoder, ids=[1])
    with pytest.raises(UsageError, match="list of sentences"):
        SentenceIndex.build("A cat sleeps.", encoder)
    with pytest.raises(UsageError):
        SentenceIndex.build([], encoder)
