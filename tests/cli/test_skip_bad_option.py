"""`--csv` and `--skip-bad` of embed and similarity."""

from pathlib import Path

import numpy as np
import pytest

from tests.comparing import refused


@pytest.fixture(autouse=True)
def place(here):
    Path("a.jsonl").write_text('{"text": "a cat"}\n{"text": 1}\n{"text": "rain"}\n{broken\n')
    Path("good.txt").write_text("a cat\nrain\n")


def test_embed_leaves_out_rows_that_cannot_be_read(run):
    refused(
        run("embed", "a.jsonl", "-q"), 2, "a.jsonl: line 4", "; --skip-bad leaves such rows out"
    )
    ran = run("embed", "a.jsonl", "--skip-bad", "-m", "mini-static")
    assert ran.code == 0 and "left out 2 rows that cannot be read: line 4" in ran.err
    assert run("embed", "good.txt", "-m", "mini-static").code == 0
    assert np.array_equal(np.load("a.jsonl.npy"), np.load("good.txt.npy"))
    parts = ("embed", "a.jsonl", "--shards", "2", "-o", "out", "-m", "mini-static")
    refused(run(*parts, "-q"), 2, "a.jsonl: line 4")
    ran = run(*parts, "--skip-bad")
    assert ran.code == 0 and "2 vectors of 256 dimensions in 2 parts" in ran.err


def test_how_a_table_is_written_is_typed(run):
    Path("a.csv").write_bytes("Export\nNr;Größe\n1;Café\n2;Tür\n".encode("cp1252"))
    words = ("embed", "a.csv:Größe", "-m", "mini-static", "-q")
    refused(run(*words), 2, "--csv: a.csv", "encoding=cp1252")
    assert run(*words, "--csv", "encoding=cp1252,delim=;,skip=1").code == 0
