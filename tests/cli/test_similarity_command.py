"""``similarity`` on the fake encoder."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.embed_fakes import vector
from tests.embed_running import ROWS, TEXT, fake_encoder, refused  # noqa: F401


def cosine(a, b):
    x, y = vector(a).astype(np.float64), vector(b).astype(np.float64)
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def test_similarity_of_two_sentences(run, fake):
    for sentence in ("a b", "", "x" * 5000, "a/b", "."):
        assert run("similarity", sentence, "c d") == (0, f"{cosine(sentence, 'c d'):.4f}\n", "")
    assert fake[0][1] == "stored"
    same = run("similarity", "a b", "a b", "--json").json
    assert same == {"a": "a b", "b": "a b", "similarity": pytest.approx(1, abs=1e-6)}


def test_similarity_of_two_files(run):
    Path("a.txt").write_text(TEXT)
    Path("b.jsonl").write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(4)))
    code, out, _ = run("similarity", "a.txt", "b.jsonl")
    assert code == 0
    assert out.split() == [f"{cosine(row, f'row {i}'):.4f}" for i, row in enumerate(ROWS)]
    rows = [json.loads(line) for line in run("similarity", "a.txt", "b.jsonl", "--json")[1].splitlines()]
    assert [(row["a"], row["b"]) for row in rows] == [(row, f"row {i}") for i, row in enumerate(ROWS)]


def test_similarity_of_what_does_not_fit(run, fake):
    Path("a.txt").write_text(TEXT)
    Path("b.txt").write_text("one\n")
    Path("c.txt").write_bytes(b"1\n2\n3\n\xff\n")
    refused(run("similarity", "a.txt", "b.txt"), 2, "a.txt has 4 rows and b.txt has 1")
    refused(run("similarity", "a.txt", "a sentence"), 2, "'a sentence' is not a file")
    refused(run("similarity", "a.txt", "c.txt"), 2, "c.txt: line 4")
    refused(run("similarity", "caf\udce9", "tea"), 2, "not UTF-8")
    assert not fake


def test_what_looks_like_a_file_that_is_not_there_is_named(run):
    assert "sentences.tx: no such file; read as a sentence" in run("similarity", "sentences.tx", "a cat").err
    assert "no such file" not in run("similarity", "a cat", "Mr.", "--model", "last-avg").err
