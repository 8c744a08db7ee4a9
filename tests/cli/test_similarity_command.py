import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.embed_fakes import vector
from tests.embed_running import ROWS, TEXT, fake_encoder, names, refused  # noqa: F401


def cosine(a, b):
    x, y = vector(a).astype(np.float64), vector(b).astype(np.float64)
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def test_similarity_of_two_sentences(run, fake):
    assert run("similarity", "a b", "c d") == (0, f"{cosine('a b', 'c d'):.4f}\n", "")
    assert fake[0][1] == "stored"
    code, out, _ = run("similarity", "a b", "a b", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["a"], found["b"]) == ("a b", "a b")
    assert found["similarity"] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("sentence", ["", "x" * 5000, "a/b", "."])
def test_any_sentence_that_is_no_file(run, sentence):
    assert run("similarity", sentence, "other") == (0, f"{cosine(sentence, 'other'):.4f}\n", "")


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


def test_two_pipes_lose_no_row(run):
    rows = [f"row {number} of many" for number in range(3000)]
    writers = []
    for name in ("a", "b"):
        os.mkfifo(name)
        writers.append(threading.Thread(target=Path(name).write_text, args=("\n".join(rows),), daemon=True))
        writers[-1].start()
    code, out, _ = run("similarity", "a", "b")
    for writer in writers:
        writer.join(timeout=300)
    assert (code, out.split()) == (0, ["1.0000"] * len(rows))


def test_a_mistyped_file_is_answered_with_the_nearest(run):
    Path("sentences.txt").write_text(TEXT)
    refused(run("embed", "sentence.txt"), 3, "cannot be opened", "did you mean sentences.txt?")


def test_a_pipe_is_embedded_to_standard_output(run):
    os.mkfifo("pipe")
    writer = threading.Thread(target=Path("pipe").write_text, args=(TEXT,), daemon=True)
    writer.start()
    code, out, _ = run("embed", "pipe")
    writer.join(timeout=300)
    assert code == 0 and [json.loads(line)["text"] for line in out.splitlines()] == ROWS
    os.mkfifo("pipe.npy")
    Path("a.txt").write_text(TEXT)
    refused(run("embed", "a.txt", "-o", "pipe.npy", "--force"), 2, "pipe.npy: a device or a pipe, not a file")


def test_what_looks_like_a_file_that_is_not_there_is_named(run):
    assert "sentences.tx: no such file; read as a sentence" in run("similarity", "sentences.tx", "a cat").err
    assert "no such file" not in run("similarity", "a cat", "Mr.", "--model", "last-avg").err
