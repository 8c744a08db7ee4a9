"""The threshold of near-duplicates that is proposed, on rows whose true links are known."""

import numpy as np
import pytest

import promptcli as pc
from promptcli.data.demo import SENTENCES_FILE
from promptcli.data.vectors.precision import unit
from promptcli.index.array_rows import ArrayRows
from promptcli.index.false_links import _BoundedTail, propose_threshold
from promptcli.index.vector_index import VectorIndex


def rows_with_repeats(repeats, count=2000, width=48, seed=0):
    """Random unit vectors; the last ones are the first with a little noise."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(count, width))
    if repeats:
        noise = 0.2 * generator.normal(size=(repeats, width))
        rows[-repeats:] = rows[:repeats] + noise
    return unit(rows.astype(np.float32))


def links_from(units, threshold):
    """Return the pairs whose cosine is at least the threshold."""
    return np.argwhere(np.triu(units @ units.T >= threshold, 1))


@pytest.mark.parametrize("factory", ["Flat", "HNSW32"])
@pytest.mark.parametrize("seed", range(3))
def test_true_links_are_found_and_few_false_ones(factory, seed):
    units = rows_with_repeats(80, seed=seed)
    index = VectorIndex.build(ArrayRows(units, range(2000), None), factory)
    links = links_from(units, propose_threshold(index))
    true = links[:, 1] - links[:, 0] == 1920
    assert true.sum() >= 78 and (~true).sum() <= 0.15 * len(links)


@pytest.mark.parametrize("seed", range(3))
def test_without_true_links_few_are_found(seed):
    units = rows_with_repeats(0, seed=seed)
    index = VectorIndex.build(ArrayRows(units, range(2000), None), "Flat")
    assert len(links_from(units, propose_threshold(index))) <= 20  # of 2 million pairs


@pytest.mark.parametrize("size", [2, 10, 40])
def test_rows_that_repeat_many_others_hide_no_link(size):
    generator = np.random.default_rng(size)
    groups = np.repeat(np.arange(2400 // size), size)
    centres = generator.normal(size=(2400 // size, 48))
    noise = 0.4 * generator.normal(size=(2400, 48))
    alone = generator.normal(size=(600, 48))
    units = unit(np.concatenate([centres[groups] + noise, alone]).astype(np.float32))
    index = VectorIndex.build(ArrayRows(units, range(3000), None), "Flat")
    first, second = links_from(units, propose_threshold(index)).T
    labels = np.concatenate([groups, -1 - np.arange(600)])
    true = labels[first] == labels[second]
    assert true.sum() >= 0.9 * 1200 * (size - 1) and (~true).sum() <= 0.05 * len(true)


def test_sentences_without_clear_repeats_have_a_threshold_below_copies():
    lines = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()
    units = unit(pc.load("mini-static").encode(lines))
    proposed = propose_threshold(VectorIndex.build(ArrayRows(units, range(len(lines)), None)))
    assert 0.9 < proposed < 0.94
    found = [(lines[one], lines[other]) for one, other in links_from(units, proposed)]
    assert ("Hummingbirds can fly backwards!", "Hummingbirds are able to fly backwards.") in found
    assert 3 <= len(found) <= 10


def test_the_tail_of_chance_ends_at_one_and_repeats_move_it_little():
    others = 0.3 + np.random.default_rng(0).exponential(0.05, 2000)
    grid = np.linspace(0.3, 1, 50)
    alone = _BoundedTail.of(np.sort(others), 0.1)
    with_repeats = _BoundedTail.of(np.sort(np.concatenate([others, np.full(40, 0.97)])), 0.1)
    assert alone.share_above(grid)[[0, -1]] == pytest.approx([0.1, 0])
    assert alone.scale == pytest.approx(0.05, rel=0.1)
    assert with_repeats.scale == pytest.approx(alone.scale, rel=0.15)
    assert (np.diff(alone.share_above(grid)) <= 0).all()


def test_the_command_says_its_threshold_and_takes_the_old_one_for_few_rows(
    tmp_path, monkeypatch, run
):
    monkeypatch.chdir(tmp_path)
    lines = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()[:400]
    repeats = [f"{line} Yes." for line in lines[:30]]
    for name, texts in (("many", [*lines, *repeats]), ("few", lines[:3] * 2)):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8")
        pc.build_index(f"{name}.txt", name, "mini-static")
    ran = run("index", "dups", "many", "--json")
    [proposed] = [float(word.strip(":")) for word in ran.err.split() if word.startswith("0.")][:1]
    assert 0.3 < proposed < 1 and "--threshold" in ran.err
    assert ran.out == run("index", "dups", "many", "--json", "--threshold", proposed).out
    ran = run("index", "dups", "few")
    assert "0.95" in ran.err and ran.out == run("index", "dups", "few", "--threshold", 0.95).out
