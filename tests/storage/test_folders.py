"""Stored folders: replaced completely or not at all, whenever a process is killed or another one reads."""

import os

import pytest

from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from promptcli.storage.documents import read_document, to_json
from promptcli.storage.folders import (
    StoredFile,
    atomic_folder,
    check_files,
    list_files,
    reading_folder,
    write_folder,
)
from tests import processes
from tests.killing import interrupted

NAMES = ("a", "b", "inside/c")


def write_thing(folder, text):
    with write_folder(folder) as new:
        (new / "inside").mkdir()
        for name in NAMES:
            (new / name).write_text(text)
        (new / "thing.json").write_text(to_json({"text": text}))


def read_thing(folder):
    """Return the different texts in a thing."""
    with reading_folder(folder):
        texts = [(folder / name).read_text() for name in NAMES]
        return {*texts, read_document(folder / "thing.json", dict[str, str], hint="")["text"]}


def test_a_thing_is_replaced_completely(tmp_path):
    for text in ("one", "two"):
        write_thing(tmp_path / "thing", text)
        assert read_thing(tmp_path / "thing") == {text}
    assert os.listdir(tmp_path) == ["thing"] and len(os.listdir(tmp_path / "thing")) == 4


def test_a_write_that_fails_leaves_the_old_thing_and_nothing_else(tmp_path):
    write_thing(tmp_path / "thing", "old")
    with pytest.raises(RuntimeError), write_folder(tmp_path / "thing") as new:
        (new / "a").write_text("new")
        raise RuntimeError
    assert read_thing(tmp_path / "thing") == {"old"} and os.listdir(tmp_path) == ["thing"]


def test_an_interrupt_at_any_step_leaves_the_old_thing_or_the_new(tmp_path):
    texts = []
    for step in range(100):
        folder = tmp_path / str(step)
        folder.mkdir()
        write_thing(folder / "thing", "old")
        if not interrupted(step, lambda: write_thing(folder / "thing", "new")):  # noqa: B023
            break
        assert [path.name for path in folder.iterdir()] == ["thing"]
        [text] = read_thing(folder / "thing")
        texts.append(text)
    assert texts == sorted(texts, reverse=True) and set(texts) == {"old", "new"} and step < 99


def _write_often(folder, done):
    for number in range(150):
        write_thing(folder, str(number))
    done.set()


def test_readers_next_to_a_writer_never_see_a_mixture(tmp_path):
    write_thing(tmp_path / "thing", "start")
    context = processes.context()
    done = context.Event()
    writer = context.Process(target=_write_often, args=(tmp_path / "thing", done))
    writer.start()
    seen = set()
    while not done.is_set() and writer.is_alive():
        texts = read_thing(tmp_path / "thing")
        assert len(texts) == 1, "a mixture of two writes"
        seen |= texts
    writer.join()
    assert writer.exitcode == 0 and len(seen) > 1 and read_thing(tmp_path / "thing") == {"149"}


def test_files_are_checked_by_size_and_if_wanted_by_content(tmp_path):
    write_thing(tmp_path, "text")
    files = list_files(tmp_path, hashed=True)
    assert sorted(files) == ["a", "b", "inside/c", "thing.json"] and files["a"].size == 4
    assert list_files(tmp_path)["a"] == StoredFile(4, None)
    check_files(tmp_path, files, hint="MEND", hashed=True)
    (tmp_path / "a").write_text("TEXT")
    check_files(tmp_path, files, hint="MEND")
    with pytest.raises(CheckFailedError, match=r"a was changed .*; MEND$"):
        check_files(tmp_path, files, hint="MEND", hashed=True)
    (tmp_path / "inside/c").write_text("longer")
    with pytest.raises(CheckFailedError, match=r"inside/c has 6 bytes, 4 were written"):
        check_files(tmp_path, files, hint="MEND")
    (tmp_path / "a").unlink()
    with pytest.raises(CheckFailedError, match=r"has no a; MEND$"):
        check_files(tmp_path, files, hint="MEND")


def test_an_output_folder_replaces_only_what_promptcli_wrote(tmp_path):
    target = tmp_path / "out"

    def write(force):
        with atomic_folder(target, marker="marker", force=force) as new:
            (new / "marker").touch()

    write(False)
    with pytest.raises(UsageError, match="or give `force`"):
        write(False)
    write(True)
    (target / "marker").unlink()
    with pytest.raises(UsageError, match="holds no marker"):
        write(True)
    target = tmp_path / "nowhere" / "out"
    with pytest.raises(NotFoundError, match="make it first"):
        write(False)
