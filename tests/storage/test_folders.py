"""Stored folders: replaced completely or not at all, whenever a process is killed or another one
reads.
"""

import os

import pytest

from promptcli.errors import CheckFailedError, NotFoundError
from promptcli.storage import files
from promptcli.storage.files import (
    StoredFile,
    atomic_folder,
    check_files,
    delete_leftovers,
    folders_with,
    list_files,
    read_folder,
    write_folder,
)
from promptcli.storage.locks import try_lock
from promptcli.storage.typed_documents import read_document, to_json
from tests import processes
from tests.comparing import refusal
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

    def read(inside):
        texts = [(inside / name).read_text() for name in NAMES]
        return {*texts, read_document(inside / "thing.json", dict[str, str], hint="")["text"]}

    return read_folder(folder, read)


def moved_away(folder):
    """Return the place to which a writer moves a folder that it replaces."""
    above = folder.with_name(f".{folder.name}.0a1b2c3d.tmp") / "replaced"
    above.mkdir(parents=True)
    return above / folder.name


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
    with refusal(r"a was changed .*; MEND$", CheckFailedError):
        check_files(tmp_path, files, hint="MEND", hashed=True)
    (tmp_path / "inside/c").write_text("longer")
    with refusal(r"inside/c has 6 bytes, 4 were written", CheckFailedError):
        check_files(tmp_path, files, hint="MEND")
    (tmp_path / "a").unlink()
    with refusal(r"has no a; MEND$", CheckFailedError):
        check_files(tmp_path, files, hint="MEND")


def test_an_output_folder_replaces_only_what_promptcli_wrote(tmp_path):
    target = tmp_path / "out"

    def write(force):
        with atomic_folder(target, marker="marker", force=force) as new:
            (new / "marker").touch()

    write(False)
    with refusal("or force=True replaces it"):
        write(False)
    write(True)
    (target / "marker").unlink()
    with refusal("holds no marker"):
        write(True)
    target = tmp_path / "nowhere" / "out"
    with refusal("make it first", NotFoundError):
        write(False)


def test_no_lock_of_another_program_stops_a_reader(tmp_path):
    write_thing(tmp_path / "thing", "text")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert try_lock(descriptor)
    assert read_thing(tmp_path / "thing") == {"text"} and folders_with("thing.json", tmp_path) == {
        "thing"
    }
    os.close(descriptor)


def test_a_thing_that_is_replaced_while_it_is_read_is_read_again(tmp_path):
    folder, looks = tmp_path / "thing", []
    write_thing(folder, "0")

    def read(inside):
        first = (inside / "a").read_text()
        looks.append(first)
        if len(looks) < 3:
            write_thing(folder, str(len(looks)))
        return {first, (inside / "b").read_text()}

    assert read_folder(folder, read) == {"2"} and looks == ["0", "1", "2"]


def test_a_reader_finds_no_thing_between_two_states_missing(tmp_path, monkeypatch):
    """The reader opens the folder in the moment in which the old one has gone and the new one has
    not come.
    """
    folder, looking = tmp_path / "thing", files._identity
    write_thing(folder, "text")

    def looked(path):
        monkeypatch.setattr(files, "_identity", looking)
        folder.rename(moved_away(folder))
        return looking(path)

    monkeypatch.setattr(files, "_identity", looked)
    assert read_thing(folder) == {"text"}


def test_what_a_killed_writer_moved_away_comes_back_and_a_users_own_folder_stays(tmp_path):
    folder, own = tmp_path / "thing", tmp_path / ".thing.old"
    write_thing(folder, "text")
    own.mkdir()
    folder.rename(moved_away(folder))
    assert read_thing(folder) == {"text"}
    moved_away(folder).mkdir()  # a writer was killed before it deleted the old one
    moved_away(tmp_path / "other").mkdir()
    write_thing(folder, "new")
    assert sorted(os.listdir(tmp_path)) == [".other.0a1b2c3d.tmp", ".thing.old", "thing"]
    assert folders_with("a", tmp_path) == {"thing"}
    delete_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".thing.old", "other", "thing"]
    folder.rename(tmp_path / "away")
    with pytest.raises(NotFoundError):
        read_folder(folder, _missing)
    assert own.exists()


def _missing(folder):
    assert not folder.exists()
    raise NotFoundError("no thing")


def test_an_output_folder_that_appears_in_the_meantime_stays(tmp_path):
    target = tmp_path / "out"
    with (
        refusal("or force=True replaces it"),
        atomic_folder(target, marker="m", force=False) as new,
    ):
        (new / "m").touch()
        target.mkdir()
        (target / "m").write_text("another's")
    assert (target / "m").read_text() == "another's" and os.listdir(tmp_path) == ["out"]
