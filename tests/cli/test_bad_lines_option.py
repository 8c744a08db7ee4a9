"""`--bad-lines FILE` of embed, index build, add and sync, search and train."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.embed_running import refused

ROWS = '{"text": "a cat sleeps"}\n{"text": 1}\n{"text": "it is raining"}\n{broken\n'
BAD = ("--bad-lines", "bad.jsonl", "-m", "mini-static")
TOLD = "2 rows cannot be read: listed in bad.jsonl, and read as blank"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text(ROWS)


def numbers():
    return [json.loads(line)["number"] for line in Path("bad.jsonl").read_text().splitlines()]


def done(ran):
    assert ran.code == 0 and TOLD in ran.err, ran.err
    assert numbers() == [2, 4]
    Path("bad.jsonl").unlink()
    return ran


def test_embed(run):
    refused(run("embed", "a.jsonl", "-q"), 2, "a.jsonl: line 4", "give --bad-lines FILE to list")
    assert not list(Path().glob("*.npy"))
    done(run("embed", "a.jsonl", *BAD))
    Path("good.txt").write_text("a cat sleeps\n\nit is raining\n\n")
    assert run("embed", "good.txt", "-m", "mini-static").code == 0
    assert np.array_equal(np.load("a.jsonl.npy"), np.load("good.txt.npy"))
    again = done(run("embed", "a.jsonl", *BAD))
    assert "already there, unchanged" in again.err
    refused(run("embed", "a.jsonl", "-o", "bad.jsonl", *BAD), 2, "is the output")


def test_embed_in_parts(run):
    parts = ("embed", "a.jsonl", "--shards", "2", "-o", "out", *BAD)
    refused(run(*parts[:6], "-q"), 2, "a.jsonl: line 4", "give --bad-lines FILE to list")
    done(run(*parts, "--shard", "1"))
    rest = run(*parts)
    assert rest.code == 0 and "4 vectors of 256 dimensions in 2 parts" in rest.err
    assert not Path("bad.jsonl").exists() and "were counted before" in rest.err


def test_index_build_and_add(run):
    refused(run("index", "build", "a.jsonl", "-o", "x", "-q"), 2, "give --bad-lines FILE to list")
    ran = done(run("index", "build", "a.jsonl", "-o", "x", *BAD, "--json"))
    assert json.loads(ran.out)["rows"] == 2
    ran = run("index", "search", "x", "rain", "-k", "1", "--json")
    assert json.loads(ran.out)["id"] == 2
    add = ("index", "add", "x", "a.jsonl", "--allow-duplicates", "--json")
    refused(run(*add, "-q"), 2, "give --bad-lines FILE to list")
    assert json.loads(done(run(*add, *BAD)).out)["rows"] == 4
    run("embed", "a.jsonl", *BAD, "-o", "v.jsonl")
    refused(run("index", "build", "v.jsonl", "-o", "y", *BAD), 2, "--bad-lines is for sentences")


def test_index_sync_and_search(run):
    Path("in").mkdir()
    Path("a.jsonl").rename("in/a.jsonl")
    Path("in/other.bin").write_bytes(b"\0\1\xff\n" * 9)
    ran = done(run("index", "sync", "x", "in", *BAD))
    assert "skipped 1 file that cannot be read as text or tables: in/other.bin" in ran.err
    assert "2 rows added" in ran.err
    assert "0 to add, 0 to remove" in done(run("index", "sync", "x", "in", "--dry-run", *BAD)).err
    ran = done(run("search", "rain", "in", *BAD, "-k", "1", "--json"))
    assert json.loads(ran.out)["line"] == 3
    refused(run("search", "rain", "in/a.jsonl", "-q"), 2, "give --bad-lines FILE to list")


def test_train_leaves_out_rows_and_goes_on_without_them(run, monkeypatch):
    graded = [f"a cat {number},a dog {number},{number % 5}" for number in range(40)]
    graded[7] = "a cat,a dog,nine"
    graded[9] = "too, few"
    Path("g.csv").write_text("\n".join(["sentence1,sentence2,score", *graded]) + "\n")
    train = ("train", "sbert-regression", "--data", "g.csv", "--steps", "2", "--batch-size", "4")
    train += ("--name", "mine")
    refused(run(*train, "-q"), 2, "g.csv: line 11: 2 columns", "give --bad-lines FILE to list")
    assert run(*train, "--dry-run", "--bad-lines", "bad.jsonl").code == 0
    assert not Path("bad.jsonl").exists()
    ran = run(*train, "--bad-lines", "bad.jsonl")
    assert ran.code == 0, ran.err
    assert TOLD in ran.err
    assert numbers() == [11, 8]
