"""`--bad-lines FILE` of index build, add and sync, and search."""

import json
from pathlib import Path

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
