"""A few kills of real processes at moments drawn at random; ``benchmarks/kills.py`` does a thousand of all commands."""

import contextlib
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from promptcli.data.vectors import read_vectors
from promptcli.index.stored import load
from tests.processes import Program
from tests.tiny import SENTENCES

OUTPUTS = {"embed": "v.npy", "index": "index"}
COMMANDS = {"embed": ("embed", "text.txt"), "index": ("index", "build", "text.txt")}


def contents(folder):
    """Return what is there, by name: manifests, which hold times of day, and locks by their names alone."""
    return {
        str(path.relative_to(folder)): None if path.suffix in (".json", ".lock") or path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("made", COMMANDS)
def test_whenever_a_process_is_killed_nothing_is_half_written(made, run, tiny_folder, tmp_path, monkeypatch):
    def at(name):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        Path("text.txt").write_text("".join(f"{text} {number}\n" for number in range(60) for text in SENTENCES))
        return folder

    words = [*COMMANDS[made], "-o", OUTPUTS[made], "--backbone", tiny_folder("bert"), "--offline", "-q"]

    def begin():
        running = Program(*words, before=Path("begun").touch)
        while not Path("begun").exists():
            assert running.poll() is None
            time.sleep(0.001)
        return running, time.perf_counter()

    unbroken = at("unbroken")
    running, began = begin()
    assert running.wait() == 0
    took, whole = time.perf_counter() - began, contents(unbroken)
    drawn = random.Random(made)
    for number, sent in enumerate([signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]):
        folder = at(f"{made}-{number}")
        running, _ = begin()
        time.sleep(drawn.uniform(0, took))
        with contextlib.suppress(ProcessLookupError):  # it was faster this time
            running.send_signal(sent)
        out, err = running.communicate()
        assert running.returncode in (0, -sent, 128 + sent) and b"Traceback" not in err
        assert not out or running.returncode == 0
        if Path("v.npy").exists():
            np.testing.assert_array_equal(read_vectors(Path("v.npy")).matrix, read_vectors(unbroken / "v.npy").matrix)
        if Path("index", "index.json").exists():
            assert load(Path("index")).index.rows == 60 * len(SENTENCES)
        if sent == signal.SIGTERM:
            assert not list(folder.rglob("*.tmp"))
        assert run(*words, "--force").code == 0
        assert contents(folder) == whole
