"""Intervals for shares against scipy and by simulation."""

import numpy as np
import pytest
from scipy.stats import binomtest, t

from evalkit.statistics.binomial import clopper_pearson, effective_sample, one_outcome_each, wilson

CASES = [(0, 1), (1, 1), (0, 14), (14, 14), (59, 59), (3, 20), (19, 20), (250, 1000)]


@pytest.mark.parametrize(("successes", "trials"), CASES)
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_two_sided_ends_equal_scipy(successes, trials, confidence):
    reference = binomtest(successes, trials)
    exact = reference.proportion_ci(confidence, method="exact")
    assert clopper_pearson(successes, trials, confidence) == pytest.approx((exact.low, exact.high))
    score = reference.proportion_ci(confidence, method="wilson")
    assert wilson(successes, trials, confidence) == pytest.approx((score.low, score.high), abs=1e-12)


@pytest.mark.parametrize(("successes", "trials"), CASES)
def test_one_sided_ends_equal_scipy(successes, trials):
    low, high = clopper_pearson(successes, trials, 0.95, sides=1)
    lower = binomtest(successes, trials, alternative="greater").proportion_ci(0.95, method="exact")
    upper = binomtest(successes, trials, alternative="less").proportion_ci(0.95, method="exact")
    assert (low, high) == pytest.approx((lower.low, upper.high))


def test_all_pass_bounds_of_the_contract():
    assert clopper_pearson(14, 14, 0.95, 1)[0] > 0.8 > clopper_pearson(13, 13, 0.95, 1)[0]
    assert clopper_pearson(59, 59, 0.95, 1)[0] > 0.95 > clopper_pearson(58, 58, 0.95, 1)[0]


def test_exact_coverage_is_never_below_the_confidence():
    for trials in (5, 14, 60):
        ends = [clopper_pearson(successes, trials, 0.95) for successes in range(trials + 1)]
        for share in np.linspace(0.01, 0.99, 50):
            from scipy.stats import binom

            covered = [low <= share <= high for low, high in ends]
            assert binom.pmf(np.arange(trials + 1), trials, share) @ np.array(covered) >= 0.95


def test_one_outcome_each():
    assert one_outcome_each(np.array([1.0, 0, 0]), np.array([1.0, 1, 0]))
    assert not one_outcome_each(np.array([2.0]), np.array([2.0]))
    assert not one_outcome_each(np.array([0.5]), np.array([1.0]))


def test_effective_sample_of_independent_trials_is_about_their_number():
    generator = np.random.default_rng(0)
    successes = generator.binomial(10, 0.3, 2000).astype(float)
    _, effective = effective_sample(successes, np.full(2000, 10.0), 0.025)
    assert effective == pytest.approx(20_000, rel=0.1)


def test_effective_sample_of_copies_is_the_number_of_clusters():
    outcomes = np.repeat([0.0, 1.0], 50)
    successes, effective = effective_sample(10 * outcomes, np.full(100, 10.0), 0.025)
    # 99 by the variance; less by Student's t, since 100 clusters, not 1,000 trials, say how large it is.
    assert effective == pytest.approx(99 * (t.ppf(0.975, 999) / t.ppf(0.975, 99)) ** 2)
    assert successes == pytest.approx(effective / 2)


def test_one_cluster_is_one_trial():
    assert effective_sample(np.array([3.0]), np.array([5.0]), 0.025) == (0.6, 1.0)


def test_all_right_counts_a_cluster_once():
    assert effective_sample(np.full(20, 8.0), np.full(20, 8.0), 0.025) == (20.0, 20.0)
    assert effective_sample(np.zeros(20), np.full(20, 8.0), 0.025) == (0.0, 20.0)
