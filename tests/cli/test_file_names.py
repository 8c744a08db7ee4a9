"""Files whose names are no UTF-8: what is made of them is kept, and says where it came from as well as text can."""

import itertools
import os
from pathlib import Path

import pytest

from promptcli.data.vectors import read_vectors
from promptcli.models.registry import Registry
from tests.tiny import SENTENCES

TEXT, PAIRS = (os.fsdecode(name) for name in (b"caf\xe9.txt", b"caf\xe9.tsv"))


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path, tiny_folder):
    """Be in a folder with such files, and return the options of a tiny backbone."""
    monkeypatch.chdir(tmp_path)
    Path(TEXT).write_text("".join(f"{text} {number}\n" for number in range(2) for text in SENTENCES))
    rows = [f"{one}\t{other}\t{number % 5}\n" for number, (one, other) in enumerate(itertools.pairwise(SENTENCES))]
    Path(PAIRS).write_text("".join(["sentence1\tsentence2\tscore\n", *rows]))
    return ["--backbone", tiny_folder("bert"), "--offline", "-q"]


def test_vectors_and_indexes(run, small):
    out = os.fsdecode(b"v\xe9.npy")
    assert run("embed", TEXT, "-o", out, *small).code == 0
    assert read_vectors(Path(out)).manifest.input.path == "caf\\xe9.txt"
    assert run("index", "build", TEXT, "-o", "index", *small).code == 0
    assert run("index", "search", "index", SENTENCES[0], "--offline", "-q").out.split()[0] == "1"


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "--on", TEXT, "-m", "first-last-tfidf"),
        ("ditto-search", "--on", PAIRS),
        ("train", "simcse", "--data", TEXT, "--on", PAIRS, "--batch-size", "12", "--epochs", "1"),
    ],
    ids=lambda words: words[0],
)
def test_finished_work_is_saved(words, run, small, home):
    ran = run(*words, "--name", "made", *small)
    assert ran.code == 0, ran.err
    assert Registry(home).load("made").recipe
    assert "caf?.t" in (home / "models" / "made" / "promptcli.json").read_text(encoding="utf-8")


def test_a_pretrained_model_is_saved(run, small):
    shape = "--layers 1 --width 16 --heads 2 --vocab-size 200 --tokens 300 --batch-tokens 128 --positions 64"
    assert run("pretrain", TEXT, "-o", "made", *shape.split(), "-q").code == 0
    assert "caf?.txt" in Path("made", "README.md").read_text(encoding="utf-8")
