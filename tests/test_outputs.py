"""Where results may go: regular files, checked before the work, never over another file unasked."""

import os

import pytest

from promptcli.errors import NotFoundError, UsageError
from promptcli.storage.files import check_output


def test_a_new_name_in_a_folder_is_allowed(tmp_path):
    check_output(tmp_path / "new.toml", force=False)
    (tmp_path / "there.toml").write_text("")
    check_output(tmp_path / "there.toml", force=True)


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_file_is_refused_even_with_force(force, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        ("/dev/null", "a device or a pipe, not a file"),
        (tmp_path / "pipe", "a device or a pipe, not a file"),
        (tmp_path, "a folder, not a file"),
    ):
        with pytest.raises(UsageError, match=message):
            check_output(type(tmp_path)(path), force=force)
    with pytest.raises(NotFoundError, match=r"no folder .*nowhere'; make it first"):
        check_output(tmp_path / "nowhere" / "a.toml", force=force, option="-o")


def test_a_file_that_is_there_takes_force(tmp_path):
    (tmp_path / "a.toml").write_text("mine")
    with pytest.raises(UsageError, match=r"^-o .*a.toml: the file is there; choose another name, or give --force$"):
        check_output(tmp_path / "a.toml", force=False, option="-o")
