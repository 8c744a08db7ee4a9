"""How rare a cosine is: against fresh pairs, and against scipy's distribution."""

import numpy as np
import pytest
from scipy.stats import binom, genpareto

from promptcli.data.demo import SENTENCES_FILE
from promptcli.data.vectors.precision import unit
from promptcli.errors import UsageError
from promptcli.evaluation.rarity import (
    HIGHEST,
    PAIRS,
    UNKNOWN,
    Rarity,
    RowSample,
    _draw_pairs,
    _Tail,
    check_least,
)
from promptcli.models.loading import load


def random_units(count=3000, width=24, seed=0):
    """Unit vectors with a common direction and topics: their cosines are skewed, as a model's."""
    generator = np.random.default_rng(seed)
    topics = generator.normal(size=(40, width))
    rows = topics[generator.integers(0, 40, count)] * 0.5 + generator.normal(size=(count, width))
    return unit((rows + 0.5).astype(np.float32))


def in_bytes(units):
    """Return vectors with 255 steps in each dimension."""
    scale = np.abs(units).max(axis=0) / 127
    return unit((np.round(units / scale) * scale).astype(np.float32))


def sentences():
    return list(dict.fromkeys(SENTENCES_FILE.read_text(encoding="utf-8").splitlines()))[:1200]


def encoded(name, count=1200):
    return unit(load(name).encode(sentences()[:count]))


@pytest.fixture(scope="module")
def rows():
    static = encoded("mini-static")
    centred = (static - static.mean(axis=0)).astype(np.float64)
    scales, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    whitened = centred @ (directions[:, -64:] / np.sqrt(scales[-64:]))
    return {
        "unit": random_units(),
        "static": static,
        "torch": encoded("mini", 500),
        "whitened": unit(whitened.astype(np.float32)),
        "int8": in_bytes(static),
    }


def check_shares(units):
    """Fail unless 100,000 fresh pairs exceed what is stated at three rarities as often as stated.

    The share of 2,000 pairs that exceed a cosine is known within its binomial interval (99.9%).
    """
    rarity = Rarity.of_rows(units[np.random.default_rng(1).permutation(len(units))[:2000]])
    generator = np.random.default_rng(2)
    first, second = generator.integers(0, len(units), (2, 100_000))
    fresh = np.einsum("nd,nd->n", units[first], units[second])[first != second]
    grid = np.linspace(-1, 1, 4001)
    for percent in (90, 99, 99.9):
        share = 1 - percent / 100
        cosine = grid[np.searchsorted(-rarity.share_above(grid), -share)]
        low, high = binom.interval(0.999, PAIRS, share)
        assert max(low - 1, 0) / PAIRS <= (fresh >= cosine).mean() <= (high + 1) / PAIRS


@pytest.mark.parametrize("kind", ["unit", "static", "torch", "whitened", "int8"])
def test_the_stated_share_holds_on_fresh_pairs(kind, rows):
    check_shares(rows[kind])


def test_the_tail_is_a_generalised_pareto_distribution():
    true = genpareto(-0.2, scale=0.1)
    excess = true.rvs(2000, random_state=np.random.default_rng(0))
    common = np.random.default_rng(1).uniform(-1, 0, 9 * len(excess))
    tail = _Tail.of(np.sort(np.concatenate([common, excess])))
    assert (tail.shape, tail.scale) == pytest.approx((-0.2, 0.1), abs=0.06)
    fitted = genpareto(tail.shape, tail.start, tail.scale)
    cosines = np.linspace(tail.start, 1, 50)
    assert tail.share_above(cosines) == pytest.approx(0.1 * fitted.sf(cosines))


@pytest.mark.parametrize("rows", [2, 3, 50, 64, 2000, 5_000_000])
def test_pairs_are_of_two_rows_and_no_pair_is_drawn_twice(rows):
    first, second = _draw_pairs(rows, PAIRS)
    assert len(first) == min(PAIRS, rows * (rows - 1) // 2)
    assert (first >= 0).all() and (first < second).all() and (second < rows).all()
    assert len(set(zip(first.tolist(), second.tolist(), strict=True))) == len(first)


def test_few_rows_tell_nothing_and_copies_count_once():
    units = random_units(49)
    for few in (units[:0], units[:1], units[:3], units, np.repeat(units, 40, axis=0)):
        assert Rarity.of_rows(few).percents([0.5, 1]) == [None, None]
    assert Rarity.of_rows(np.zeros((60, 4), np.float32)).rows == 0
    more = random_units(300)
    with_copies = np.concatenate([np.repeat(more[:1], 5000, axis=0), more[1:]])
    once, often = Rarity.of_rows(more), Rarity.of_rows(with_copies)
    assert (once.rows, often.rows) == (300, 300)
    assert often.cosines == pytest.approx(once.cosines)


def test_a_rarity_rises_with_the_cosine_and_is_never_all():
    percents = Rarity.of_rows(random_units()).percents(np.linspace(-1, 1, 200))
    assert percents == sorted(percents) and percents[0] == 0 and percents[-1] == HIGHEST
    alike = Rarity(np.full(PAIRS, 0.3), 100)
    assert alike.percents([0.2, 0.3, 0.4]) == [0, 0, HIGHEST]


def test_a_sample_of_blocks_has_rows_of_all_of_them():
    units = random_units(9000)
    sample = RowSample(most=500)
    for start in range(0, 9000, 100):
        sample.add(units[start : start + 100])
    places = [int(np.flatnonzero((units == row).all(axis=1))[0]) for row in sample._vectors]
    assert len(set(places)) == 500 and 3500 < np.mean(places) < 5500
    assert sample.rarity().rows == 500
    assert RowSample().rarity() is UNKNOWN


@pytest.mark.parametrize("percent", [-1, 100, 99.995])
def test_a_rarity_that_no_answer_can_have_is_refused(percent):
    with pytest.raises(UsageError, match=r"99\.99"):
        check_least(percent, "both")
    with pytest.raises(UsageError, match="words"):
        check_least(99, "words")
    check_least(HIGHEST, "meaning")
