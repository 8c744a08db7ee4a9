"""An index keeps how rare a cosine is, and leaves rows out by it."""

import json

import numpy as np
import pytest

import promptcli as pc
from promptcli.data.demo import SENTENCES_FILE
from promptcli.index import delete_from_index
from promptcli.index.kept_rarity import RARITY
from promptcli.index.stored import load, read_manifest

LINES = list(dict.fromkeys(SENTENCES_FILE.read_text(encoding="utf-8").splitlines()))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("\n".join(LINES[:300]), encoding="utf-8")
    pc.build_index("lines.txt", "built", "mini-static")
    return tmp_path


def make_old(folder):
    """Take the rarity out of an index, as an earlier version left it."""
    manifest = json.loads((folder / "index.json").read_text())
    del manifest["files"][RARITY]
    (folder / "index.json").write_text(json.dumps(manifest))
    (folder / RARITY).unlink()


def test_what_is_kept_is_drawn_again_after_each_change(folder):
    kept = load(folder / "built").index.rarity
    units = pc.load("mini-static").encode(LINES[:300])
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    assert kept.rows == 300 and len(kept.cosines) > 1990
    everything = (units @ units.T)[np.triu_indices(300, 1)]
    assert np.mean(kept.cosines) == pytest.approx(np.mean(everything), abs=0.02)
    (folder / "more.txt").write_text("\n".join(LINES[300:400]), encoding="utf-8")
    pc.add_to_index("built", "more.txt")
    assert load(folder / "built").index.rarity.rows == 400
    delete_from_index("built", [str(row) for row in range(360)])
    assert load(folder / "built").index.rarity.rows == 40
    pc.sync_index("synced", ["lines.txt"], "mini-static")
    assert load(folder / "synced").index.rarity.rows == 300


def test_a_hit_says_how_rare_its_cosine_is_and_common_ones_are_left_out(folder, run):
    [(_, hits)] = pc.search_index("built", LINES[0], 300)
    rarity = load(folder / "built").index.rarity
    assert [hit.rarity for hit in hits] == rarity.percents([hit.score for hit in hits])
    [(_, rare)] = pc.search_index("built", LINES[0], 300, min_rarity=99)
    assert rare and [hit.id for hit in rare] == [hit.id for hit in hits if hit.rarity >= 99]
    [(_, worded)] = pc.search_index("built", LINES[0], by="words")
    assert {hit.rarity for hit in worded} == {None}
    lines = pc.search(LINES[0], ["lines.txt"], 300, min_rarity=99)
    assert [line.text for line in lines] == [hit.text for hit in rare]
    assert [line.rarity for line in lines] == pytest.approx([hit.rarity for hit in rare], abs=0.2)
    ran = run("index", "search", "built", LINES[0], "-k", 1)
    assert ran.out.split()[:3] == ["1", "1.0000", "99.99%"]
    assert run("search", LINES[0], "lines.txt", "-k", 1).out.split()[:2] == ["1.0000", "99.99%"]
    ran = run("index", "search", "built", "qqqq", "--min-rarity", 99.9)
    assert (ran.code, ran.out) == (0, "") and "99.9%" in ran.err


def test_an_index_in_memory_knows_it_too():
    encoder = pc.load("mini-static")
    index = pc.SentenceIndex.build(LINES[:60], encoder)
    assert index.search(LINES[0], 1)[0].rarity == 99.99
    index.delete(range(20))
    assert index.search(LINES[30], 1)[0].rarity is None


@pytest.mark.parametrize("command", ["index search", "search"])
def test_few_rows_say_that_they_cannot_know(command, folder, run):
    (folder / "three.txt").write_text("\n".join(LINES[:3]), encoding="utf-8")
    pc.build_index("three.txt", "three", "mini-static")
    words = ("three", LINES[0]) if command == "index search" else (LINES[0], "three.txt")
    ran = run(*command.split(), *words)
    assert ran.code == 0 and "%" not in ran.out and "too few" not in ran.err
    ran = run(*command.split(), *words, "--min-rarity", 99)
    assert (ran.code, ran.out) == (2, "") and "3 different rows" in ran.err


def test_an_index_of_an_earlier_version_goes_on_and_says_what_to_type(folder, run):
    make_old(folder / "built")
    ran = run("index", "search", "built", LINES[0], "-k", 1)
    assert ran.code == 0 and "%" not in ran.out
    assert "`promptcli index compact built`" in ran.err
    assert run("index", "search", "built", LINES[0], "--min-rarity", 99).code == 2
    assert run("index", "compact", "built").code == 0
    assert RARITY in read_manifest(folder / "built").files
    ran = run("index", "search", "built", LINES[0], "-k", 1)
    assert "99.99%" in ran.out and "compact" not in ran.err
