import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from promptcli.evaluation import statistics
from promptcli.evaluation.statistics import (
    cosine,
    holm,
    percentile_interval,
    spearman,
    two_sided_p_value,
)


def resamples_of(size, number, seed):
    """Yield the rows of each resample."""
    for counts in statistics.resample_counts(size, number, seed):
        for column in counts.T:
            yield np.repeat(np.arange(size), column.astype(int))


def scipy_spearman(x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = spearmanr(x, y).statistic
    return 0.0 if np.isnan(value) else value


def columns(low, high):
    """Two lists of one length; few distinct values, so that ties are common."""
    value = st.integers(low, high).map(float)
    return st.lists(st.tuples(value, value), min_size=1, max_size=40).map(
        lambda rows: tuple(zip(*rows, strict=True))
    )


@given(columns(0, 6))
def test_spearman_equals_scipy(lists):
    x, y = map(np.array, lists)
    assert spearman(x, y) == pytest.approx(scipy_spearman(x, y), abs=1e-12)


@given(columns(0, 8), st.integers(0, 1000))
def test_bootstrap_equals_scipy_on_the_drawn_pairs(lists, seed):
    x, y = map(np.array, lists)
    for counts in statistics.resample_counts(len(x), 3, seed):
        one, other, gold = map(statistics.ResampledRanks, (x, -x, y))
        got = statistics.resampled_spearman([one, other], gold, counts)
        drawn = [np.repeat(np.arange(len(x)), column.astype(int)) for column in counts.T]
        expected = np.array([scipy_spearman(x[rows], y[rows]) for rows in drawn])
        assert got == pytest.approx(np.stack([expected, -expected]), abs=1e-12)


@pytest.mark.parametrize("resamples", [1, 64, 65, 200])
def test_every_resample_draws_as_many_pairs_as_there_are(resamples):
    counts = np.concatenate(list(statistics.resample_counts(37, resamples, seed=1)), axis=1)
    assert counts.shape == (37, resamples)
    assert (counts.sum(axis=0) == 37).all()
    assert abs(counts[:, :].mean() - 1) < 1e-12
    if resamples == 200:
        assert counts.var() == pytest.approx(1 - 1 / 37, rel=0.1)


@pytest.fixture
def few(monkeypatch):
    """Draw 100 resamples by the seed 9."""
    monkeypatch.setattr(statistics, "RESAMPLES", 100)
    monkeypatch.setattr(statistics, "BOOTSTRAP_SEED", 9)


@pytest.mark.usefixtures("few")
def test_interval_is_the_percentile_of_explicit_resamples():
    generator = np.random.default_rng(0)
    gold = generator.integers(0, 20, size=120) / 4
    scores = gold + generator.normal(size=120) * 2
    draws = [scipy_spearman(scores[drawn], gold[drawn]) for drawn in resamples_of(120, 100, seed=9)]
    (interval,) = statistics.bootstrap_intervals(scores[None], gold)
    assert interval == pytest.approx(tuple(np.percentile(draws, [2.5, 97.5])), abs=1e-12)
    assert interval[0] < spearman(scores, gold) < interval[1]
    assert statistics.bootstrap_intervals(np.stack([-scores, scores]), gold)[1] == interval


def test_paired_bootstrap_sees_a_real_difference_and_no_other():
    generator = np.random.default_rng(1)
    gold = generator.integers(0, 26, size=400) / 5
    good = gold + generator.normal(size=400)
    noisy = gold + generator.normal(size=400) * 3
    twin = gold + generator.normal(size=400)
    draws = statistics.resampled_averages([np.stack([good, noisy, twin])], [gold])
    real, chance = draws[0] - draws[1], draws[0] - draws[2]
    # no floor of 2 in 1,001
    assert (
        percentile_interval(real)[0] > 0
        and two_sided_p_value(real) == two_sided_p_value(-real) < 1e-5
    )
    low, high = percentile_interval(chance)
    assert low < 0 < high
    assert two_sided_p_value(chance) > 0.05 and two_sided_p_value(np.zeros(9)) == 1


def test_p_values_are_corrected_by_holms_steps():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0] and holm([]) == []


@given(st.integers(1, 8), st.integers(1, 5), st.integers(0, 99))
def test_cosine_equals_the_definition(rows, width, seed):
    generator = np.random.default_rng(seed)
    a, b = generator.normal(size=(2, rows, width)).astype(np.float32)
    rows = zip(a.astype(float), b.astype(float), strict=True)
    expected = [float(np.dot(x, y) / np.linalg.norm(x) / np.linalg.norm(y)) for x, y in rows]
    assert cosine(a, b) == pytest.approx(expected, abs=1e-6)


def test_cosine_of_nan_and_of_zero_is_zero():
    a = np.array([[np.nan, np.nan], [0, 0], [np.nan, 3]], dtype=np.float32)
    b = np.array([[1, 2], [1, 2], [4, 3]], dtype=np.float32)
    assert cosine(a, b).tolist() == pytest.approx([0, 0, 0.6])


def test_a_constant_has_no_correlation():
    assert spearman(np.ones(5), np.arange(5.0)) == 0
    assert spearman(np.array([0, 1, np.nan]), np.arange(3.0)) == 0
    assert statistics.bootstrap_intervals(np.ones((1, 5)), np.arange(5.0)) == [(0, 0)]


@pytest.mark.usefixtures("few")
def test_average_interval_equals_a_plain_loop():
    generator = np.random.default_rng(0)
    gold = [generator.integers(0, 6, size).astype(float) for size in (9, 14)]
    scores = [generator.normal(size=(2, len(values))) for values in gold]
    means = np.zeros((2, 100))
    for task in range(2):
        for column, rows in enumerate(resamples_of(len(gold[task]), 100, 9 + task)):
            for system in range(2):
                means[system, column] += (
                    spearmanr(scores[task][system][rows], gold[task][rows])[0] / 2
                )
    found = statistics.average_intervals(scores, gold)
    assert found == [
        pytest.approx(np.percentile(row, [2.5, 97.5]).tolist(), abs=1e-9) for row in means
    ]
