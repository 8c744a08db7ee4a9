"""An index as a folder: what is in it, changes by several processes, kills, full disks."""

import contextlib
import errno
import json
import os
import resource
import subprocess
import sys
from dataclasses import asdict, replace

import faiss
import numpy as np
import pyarrow as pa
import pytest

from promptcli.embedding import embed
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
from promptcli.index import add_to_index, build_index, search_index
from promptcli.index.array_rows import ArrayRows
from promptcli.index.stored import (
    StoredIndex,
    change,
    check_target,
    create,
    load,
    read_manifest,
    save,
)
from promptcli.index.vector_index import VectorIndex
from promptcli.storage.folders import StoredFile
from promptcli.storage.locks import hold
from tests import processes
from tests.index.test_changes import ORIGIN
from tests.index.test_index import built, vectors
from tests.killing import killed_at_every_step


def stored(seed=0, n=50, factory="Flat"):
    return StoredIndex(built(n, factory, seed), ORIGIN, "2026-01-01T00:00:00+00:00")


def add(folder, names, seed=1):
    with change(folder) as held:
        held.index.add(ArrayRows(vectors(len(names), seed=seed), names, ["new"] * len(names)))


def test_no_torch_for_an_index(tmp_path):
    save(tmp_path / "idx", stored())
    read = f"from promptcli.index.stored import load; load(pathlib.Path({str(tmp_path / 'idx')!r}))"
    code = f"import pathlib, sys; {read}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("factory", "texts"), [("Flat", True), ("HNSW8", False), ("IVF1,SQ8", True)]
)
def test_a_stored_index_answers_as_before_and_is_read_by_faiss_and_arrow(tmp_path, factory, texts):
    folder, index = tmp_path / "deep" / "idx", built(factory=factory, texts=texts)
    index.add(
        ArrayRows(vectors(3, seed=9), ["a", "b", "ü"], ["x", "y\n", "日本"] if texts else None)
    )
    manifest = save(folder, StoredIndex(index, ORIGIN, "now"))
    again = load(folder)
    assert (again.origin, again.created, again.index.recall) == (ORIGIN, "now", index.recall)
    assert again.index.search(vectors(4, seed=1), 20) == index.search(vectors(4, seed=1), 20)
    assert manifest == read_manifest(folder) and json.loads(
        (folder / "index.json").read_text()
    ) == asdict(manifest)
    assert (manifest.rows, manifest.dim, manifest.factory, manifest.fingerprint) == (
        53,
        16,
        factory,
        "a" * 64,
    )
    counts, ids = [], []
    for segment in manifest.segments:
        counts.append(faiss.read_index(str(folder / f"{segment}.faiss")).ntotal)
        with pa.ipc.open_file(folder / f"{segment}.arrow") as file:
            ids += file.read_all().column("id").to_pylist()
    assert sum(counts) == 53 and [*map(str, ids)] == [*map(str, range(50)), "a", "b", "ü"]


def test_a_file_that_is_cut_short_is_named(tmp_path):
    save(tmp_path / "idx", stored())
    (tmp_path / "idx" / "segment-1.arrow").write_bytes(b"")
    with pytest.raises(CheckFailedError, match=r"segment-1\.arrow.*promptcli index build"):
        load(tmp_path / "idx")


@pytest.mark.parametrize("name", ["../other/segment-1", "/private/segment-1", "linked/segment-1"])
def test_no_name_in_a_manifest_leads_out_of_the_folder(name, tmp_path):
    folder = tmp_path / "idx"
    manifest = save(folder, stored())
    save(tmp_path / "other", stored())
    (folder / "linked").symlink_to(tmp_path / "other")
    listed = {**manifest.files, f"{name}.faiss": StoredFile(1), f"{name}.arrow": StoredFile(1)}
    for files, message in ((listed, "leads out of it"), (manifest.files, "its files have no")):
        changed = replace(manifest, segments=[name], files=files)
        (folder / "index.json").write_text(json.dumps(asdict(changed)))
        with pytest.raises(CheckFailedError, match=message):
            load(folder)


def test_a_missing_index_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "no/where", "file", "empty", "/"):
        with pytest.raises(NotFoundError, match="promptcli index build"):
            load(tmp_path / name)
        with pytest.raises(NotFoundError), change(tmp_path / name):
            pass
    assert sorted(os.listdir(tmp_path)) == ["empty", "file"] and not os.listdir(tmp_path / "empty")


def test_no_file_of_the_user_is_replaced(tmp_path):
    folder = tmp_path / "idx"
    folder.mkdir()
    save(folder, stored())  # an empty folder is free
    with pytest.raises(UsageError, match="`force`"):
        save(folder, stored(1))
    save(folder, stored(1), force=True)
    assert load(folder).index.search(vectors(1), 5) == stored(1).index.search(vectors(1), 5)
    (folder / "notes.txt").write_text("mine")
    for write in (lambda: save(folder, stored(2), force=True), lambda: add(folder, ["x"])):
        with pytest.raises(UsageError, match=r"notes\.txt"):
            write()
    assert (folder / "notes.txt").read_text() == "mine"
    for target in (folder / "notes.txt", tmp_path / ("x" * 255)):
        with pytest.raises(UsageError):
            check_target(target, force=True)


def test_a_link_to_a_folder_is_followed_and_nothing_stays_beside_it(tmp_path):
    save(tmp_path / "idx", stored())
    (tmp_path / "link").symlink_to(tmp_path / "idx")
    save(tmp_path / "link", stored(1), force=True)
    add(tmp_path / "link", ["x"])
    assert (tmp_path / "link").is_symlink() and load(tmp_path / "idx").index.rows == 51
    assert set(os.listdir(tmp_path)) <= {"home", "idx", "link"}


def test_small_additions_are_joined_and_large_segments_are_linked(tmp_path):
    folder = tmp_path / "idx"
    save(folder, stored(n=3000))
    large = (folder / "segment-1.faiss").stat().st_ino
    for number in range(12):
        add(folder, [f"{number}-{row}" for row in range(3)], seed=number)
    manifest = read_manifest(folder)
    assert [len(segment) for segment in load(folder).index.segments] == [3000, 36]
    assert (folder / f"{manifest.segments[0]}.faiss").stat().st_ino == large, "not written again"
    assert (
        set(os.listdir(folder)) == {"index.json", ".lock", *manifest.files}
        and len(manifest.files) == 5
    )


def test_an_index_of_which_all_was_deleted_takes_rows_again_and_row_numbers_go_on(tmp_path):
    folder, index = tmp_path / "idx", VectorIndex.build(ArrayRows(vectors(5), range(5), None))
    index.delete(range(5))
    assert index.search(vectors(1), 3) == [[]]
    save(folder, StoredIndex(index, ORIGIN, "now"))
    with change(folder) as held:
        held.index.compact()
    with change(folder) as held:
        assert held.index.rows == 0 and held.index.search(vectors(1), 3) == [[]]
        held.index.add(ArrayRows(vectors(2), range(2), None))
    assert load(folder).index.search(vectors(1), 3)[0][0].id == 5, (
        "the numbers before were given once"
    )


def test_a_reader_goes_on_with_the_index_that_it_opened(tmp_path):
    save(tmp_path / "idx", stored(n=200))
    reader = load(tmp_path / "idx").index
    expected = reader.search(vectors(3, seed=1), 5)
    with change(tmp_path / "idx") as held:
        held.index.delete(range(150))
        held.index.compact()
    assert reader.rows == 200 and reader.search(vectors(3, seed=1), 5) == expected
    save(tmp_path / "copy", StoredIndex(reader, ORIGIN, "now"))
    assert load(tmp_path / "copy").index.rows == 200 and load(tmp_path / "idx").index.rows == 50


def test_a_kill_at_any_step_leaves_the_old_index_or_the_new(tmp_path):
    def finish(folder):
        save(folder / "idx", stored(2), force=True)
        assert os.listdir(folder) == ["idx"], "a killed process's rest"

    rows = killed_at_every_step(
        tmp_path,
        lambda folder: save(folder / "idx", stored()),
        lambda folder: add(folder / "idx", range(10)),
        lambda folder: load(folder / "idx").index.rows,
        finish,
        least=5,
    )
    assert rows == sorted(rows) and set(rows) == {50, 60}


@pytest.mark.parametrize("room", [1000, 20_000])
def test_a_full_disk_is_reported_and_leaves_the_old_index(tmp_path, room):
    save(tmp_path / "idx", stored())
    texts = [np.random.default_rng(row).bytes(1000).hex() for row in range(60)]
    large = StoredIndex(VectorIndex.build(ArrayRows(vectors(60), range(60), texts)), ORIGIN, "now")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # the larger has room for all but the texts
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(OSError) as raised:
            save(tmp_path / "idx", large, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG
    assert load(tmp_path / "idx").index.rows == 50 and set(os.listdir(tmp_path)) <= {"home", "idx"}


def _add_one(folder, letter, number):
    add(folder, [f"{letter}{number}"], seed=number)


def test_two_processes_at_once_lose_nothing(tmp_path):
    save(tmp_path / "idx", stored())
    processes.at_once(tmp_path / "idx", (_add_one, 5), (_add_one, 5))
    found = {hit.id for hit in load(tmp_path / "idx").index.search(vectors(1), 100)[0]}
    assert found - set(map(str, range(50))) == {
        f"{letter}{number}" for letter in "ab" for number in range(5)
    }


def test_models_that_differ_are_named(tmp_path):
    (tmp_path / "rows.txt").write_text("a dog runs\na cat sleeps\n")
    embed(tmp_path / "rows.txt", tmp_path / "rows.npy", model="mini")
    build_index(tmp_path / "rows.txt", tmp_path / "index", model="mini-static")
    with pytest.raises(
        UsageError, match=r"rows\.npy was made with mini, and the index with mini-static; embed"
    ):
        add_to_index(tmp_path / "index", tmp_path / "rows.npy")
    with pytest.raises(
        UsageError, match="built with mini-static, not with mini; leave out `model`, or build"
    ):
        list(search_index(tmp_path / "index", "a dog", model="mini"))
    with pytest.raises(
        UsageError, match=r"rows\.npy was made with mini, not with mini-static; leave out `model`"
    ):
        build_index(tmp_path / "rows.npy", tmp_path / "other", model="mini-static")


@pytest.mark.parametrize("force", [False, True])
def test_a_running_build_outlives_another_build_and_a_change_of_that_index(force, tmp_path):
    folder, refused = (
        tmp_path / "idx",
        pytest.raises(UsageError, match="another process made or changed"),
    )
    with contextlib.nullcontext() if force else refused:
        with create(folder, force=force) as writer:
            save(folder, stored(seed=1, n=10))
            add(folder, ["a row"])
            assert writer.finish(stored()).rows == 50
    assert read_manifest(folder).rows == (50 if force else 11) and os.listdir(tmp_path) == ["idx"]
    add(folder, ["another"])


def test_a_running_change_is_waited_for_before_a_new_index_takes_the_place(tmp_path, monkeypatch):
    """A build that began before there was an index must not end inside a change of one: the change
    would undo it.
    """
    folder = tmp_path / "idx"
    monkeypatch.setattr(hold.__wrapped__, "__kwdefaults__", {"patience": 0.05})
    with (
        contextlib.ExitStack() as changing,
        pytest.raises(PromptcliError, match="another process has held the lock"),
    ):
        with create(folder, force=True) as writer:
            save(folder, stored(seed=1, n=10))
            add(folder, ["a row"])
            changing.enter_context(change(folder))
            writer.finish(stored())
    assert read_manifest(folder).rows == 11
