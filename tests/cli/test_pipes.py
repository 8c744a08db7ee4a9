"""A pipe in the place of a file: every line arrives, since it is read once."""

import os
import threading
from pathlib import Path

import pytest

from tests.tiny import SENTENCES

#: Read at once, a pipe gives 64 KiB; these lines are more.
LINES = [f"{sentence} {number}" for number in range(250) for sentence in SENTENCES]


@pytest.fixture
def pipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    content = "".join(f"{line}\n" for line in LINES)
    threading.Thread(target=Path("pipe").write_text, args=(content,), daemon=True).start()
    return "pipe"


def test_index_build_keeps_every_line(pipe, run, tiny_folder):
    ran = run("index", "build", pipe, "-o", "index", "--backbone", tiny_folder("bert"), "--model", "static-avg", "-q")
    assert ran.code == 0, ran.err
    assert f"{len(LINES):,} of 16 numbers" in ran.out


def test_fit_counts_every_line(pipe, run, tiny_folder):
    ran = run("fit", "--on", pipe, "--name", "x", "--backbone", tiny_folder("bert"), "-m", "first-last-tfidf")
    assert ran.code == 0 and f"fitted on {len(LINES):,} sentences" in ran.err, ran.err


def test_train_sees_every_line(pipe, run, tiny_folder, tmp_path):
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\ne\tf\t3\n")
    steps = -(-len(LINES) // 1000)
    ran = run("train", "simcse", "--data", pipe, "--on", "pairs.tsv", "--batch-size", 1000, "--epochs", 1, "--json",
              "--backbone", tiny_folder("bert"), "--set", "max-length=8", "-q")  # fmt: skip
    assert ran.code == 0, ran.err
    assert f'"steps": {steps}' in ran.out
