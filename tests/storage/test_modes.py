"""Who may read what is written: the umask decides, what was private stays so, and what is
unfinished is its owner's.
"""

import os
import stat
from pathlib import Path

import pytest
import torch

from promptcli.models.entries import Entry, Registry
from promptcli.recipe import Recipe
from promptcli.storage.files import atomic_path, temporary_folder, write_folder, write_text
from promptcli.storage.tensors import save_tensors


@pytest.fixture(params=[0o022, 0o002, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_new_has_the_umask_s_mode(umask, tmp_path):
    write_text(tmp_path / "text", "one")
    save_tensors({"one": torch.ones(1)}, tmp_path / "tensors.safetensors")
    with write_folder(tmp_path / "folder") as folder:
        save_tensors({"one": torch.ones(1)}, folder / "tensors.safetensors")
    entry = Registry(tmp_path / "home").save(Entry("new", Recipe(), {"one": torch.ones(1)}))
    for path in sorted(tmp_path.rglob("*")):
        if path.suffix != ".lock":
            assert mode(path) == (0o777 if path.is_dir() else 0o666) & ~umask, path
    assert entry.files


@pytest.mark.parametrize("private", [0o600, 0o640, 0o444])
def test_what_is_replaced_keeps_its_mode(private, tmp_path):
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.touch()
    folder.mkdir()
    file.chmod(private)
    folder.chmod(private | 0o300)
    write_text(file, "new")
    with write_folder(folder) as new:
        (new / "new").touch()
    assert file.read_text() == "new" and mode(file) == private
    assert (folder / "new").exists() and mode(folder) == private | 0o300


def test_what_is_unfinished_may_be_read_by_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with (
        temporary_folder(),
        temporary_folder(tmp_path / "x"),
        atomic_path(tmp_path / "y") as path,
        write_folder(tmp_path / "z"),
    ):
        path.touch()
        hidden = list(tmp_path.glob("**/.*.tmp"))
        assert len(hidden) == 4 and {mode(place) for place in hidden} == {0o700}
