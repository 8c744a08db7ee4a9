"""A disk that is full or fails: one line, exit 1, what was there before untouched, no temporary
file left.
"""

import errno
import gc
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors import SafetensorError

from tests.tiny import SENTENCES

TINY = "--backbone bert --offline -q"
SHORT = "--name short --batch-size 32 --steps 2"
PLAN = (
    "--layers 1 --width 16 --heads 2 --vocab-size 120 --tokens 700 --batch-tokens 128 --positions"
    " 64 -q"
)

#: An output, an entry, a checkpoint and an entry, a checkpoint and an output.
COMMANDS = {
    "embed": f"embed text.txt -o v.npy --force {TINY}",
    "fit": f"fit --on text.txt --name white -m whitening --transform whitening:2 --force {TINY}",
    "train": (
        f"train simcse --data text.txt --on pairs.tsv --batch-size 32 --epochs 1 --force {TINY}"
    ),
    "pretrain": f"pretrain text.txt -o made {PLAN}",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory, bert_folder):
    """A folder in which each command has been run once."""
    from promptcli.cli.command_line import main

    folder = tmp_path_factory.mktemp("written")
    shutil.copytree(bert_folder, folder / "bert")
    texts = [f"{text} {number}" for number in range(8) for text in SENTENCES]
    pairs = [
        f"{one}\t{two}\t{n % 5}\n"
        for n, (one, two) in enumerate(zip(texts[:8], texts[8:16], strict=True))
    ]
    (folder / "text.txt").write_text("".join(f"{text}\n" for text in texts))
    (folder / "pairs.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(pairs))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PROMPTCLI_HOME", str(folder / "home"))
        for name in ("embed", "fit", "train"):  # which replace what they wrote
            with pytest.raises(SystemExit) as ended:
                main(shlex.split(COMMANDS[name]))
            assert not ended.value.code, name
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files but for locks, logs and the state of unfinished runs."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
        and not path.name.endswith(".lock")
        and "runs" not in path.parts
        and path.name != "filler"
    }


def fails_well(ran, folder: Path, before: dict[str, bytes], *said: str) -> None:
    assert ran.code == 1 and not ran.out, ran
    assert (
        ran.err.startswith("promptcli: ")
        and ran.err.count("\n") == 1
        and "Traceback" not in ran.err
    )
    assert any(text in ran.err for text in said), ran.err
    after = contents(folder)
    assert not [name for name in after if name.endswith(".tmp")]
    grown = ("home/cache", "made")  # scores that are already known, and an unfinished run
    assert {
        name: content for name, content in after.items() if not name.startswith(grown)
    } == before


@pytest.fixture
def copied(written, tmp_path, monkeypatch):
    """A copy of the folder, the current one."""
    folder = shutil.copytree(written, tmp_path / "disk")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PROMPTCLI_HOME", str(folder / "home"))
    return folder


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_device_that_fails_is_told_in_one_line(name, number, copied, run, monkeypatch):
    before = contents(copied)

    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    fails_well(
        run(*shlex.split(COMMANDS[name])), copied, before, "disk full: ", os.strerror(number)
    )


#: A command that makes a folder, how many files it can write, and what it says is left.
FOLDERS = {
    "no part": (f"embed text.txt --shards 2 -o new {TINY}", 0, "nothing was changed"),
    "one part": (f"embed text.txt --shards 2 -o new {TINY}", 4, "finished parts are kept"),
    "examples": ("examples new -q", 4, "some of the files are written"),
    "train": (f"train dcpcse --data text.txt --on pairs.tsv {SHORT} {TINY}", 0, "nothing was"),
    "trained": (f"train dcpcse --data text.txt --on pairs.tsv {SHORT} {TINY}", 8, "--resume"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_what_a_full_disk_leaves_is_said(name, copied, run, monkeypatch):
    command, writes, said = FOLDERS[name]
    before = {path for path in copied.rglob("*") if path.suffix != ".lock"}
    synced = []
    sync = os.fsync

    def fail(descriptor):
        synced.append(descriptor)
        if len(synced) > writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    ran = run(*shlex.split(command))
    assert ran.code == 1 and ran.err.startswith("promptcli: disk full: "), ran.err
    assert said in ran.err
    after = {path for path in copied.rglob("*") if path.suffix != ".lock"}
    assert (after == before) == ("nothing" in said), after - before


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A separate file system in memory, if this user may mount one."""
    folder = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("left", [0, 40], ids="{} KiB left".format)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_told_in_one_line(name, left, written, disk, run, monkeypatch):
    # an index of the test before, mapped and deleted, would make room when it is let go
    gc.collect(1)
    folder = shutil.copytree(written, disk / "here")
    try:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PROMPTCLI_HOME", str(folder / "home"))
        before, free = contents(folder), os.statvfs(folder)
        (folder / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - left * 1024))
        ran = run(*shlex.split(COMMANDS[name]))
        if ran.code == 0:  # there was room enough
            assert left and not list(folder.rglob("*.tmp"))
        else:
            fails_well(ran, folder, before, "disk full: ", "No space left on device")
    finally:
        monkeypatch.chdir("/")
        shutil.rmtree(folder)


def test_what_safetensors_raises_is_a_full_disk(copied, run, monkeypatch):
    before = contents(copied)

    def full(*_, **__):
        raise SafetensorError(
            'Error while serializing: I/O error: Os { code: 28, kind: StorageFull, message: "" }'
        )

    monkeypatch.setattr("safetensors.torch.save_file", full)
    fails_well(run(*shlex.split(COMMANDS["fit"])), copied, before, "disk full: ")
