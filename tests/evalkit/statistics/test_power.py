"""Power against brute force: every outcome judged by its own exact bound, and simulated samples."""

import numpy as np
import pytest
from scipy.stats import binom, norm

from evalkit.statistics.binomial import clopper_pearson
from evalkit.statistics.power import (
    POWER,
    assured_power,
    assured_ratio,
    binomial_power,
    deciding_trials,
    error_of_bound,
    error_ratio,
)


@pytest.mark.parametrize(
    ("trials", "threshold", "share"),
    [(20, 0.8, 0.95), (50, 0.1, 0.05), (30, 0.5, 0.7), (1, 0.9, 0.95), (59, 0.95, 1.0), (400, 0.1, 0.2)],
)
def test_binomial_power_counts_the_outcomes_whose_bound_decides(
    trials: int, threshold: float, share: float
) -> None:
    expected = 0.0
    for successes in range(trials + 1):
        low, high = clopper_pearson(successes, trials, 0.95, 1)
        decided = low > threshold if share > threshold else high < threshold
        expected += float(binom.pmf(successes, trials, share)) * decided
    assert binomial_power(trials, threshold, share, 0.95) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("threshold", "share"), [(0.8, 0.9), (0.1, 0.05), (0.95, 1.0), (0.9, 0.8)])
def test_deciding_trials_have_the_power_and_are_the_first_in_reach(threshold: float, share: float) -> None:
    trials = deciding_trials(threshold, share, 0.95)
    assert trials is not None
    assert binomial_power(trials, threshold, share, 0.95) >= POWER
    assert binomial_power(trials - 1, threshold, share, 0.95) < POWER


def test_59_passes_show_that_more_than_95_percent_pass() -> None:
    """The rule of 59: 0.95^59 < 0.05 < 0.95^58."""
    assert deciding_trials(0.95, 1.0, 0.95) == 59


@pytest.mark.parametrize(("threshold", "share"), [(1.0, 0.9), (0.0, 0.5), (0.7, 0.7)])
def test_some_thresholds_are_never_decided(threshold: float, share: float) -> None:
    assert deciding_trials(threshold, share, 0.95) is None


def test_normal_power_is_that_of_simulated_means() -> None:
    random = np.random.default_rng(5)
    error, distance = 0.1, 0.25
    means = 1.0 + distance + error * random.standard_normal(200_000)
    decided = np.mean(means - error * norm.ppf(0.95) > 1.0)
    assert assured_power(distance, error, 0.0, 0.95) == pytest.approx(float(decided), abs=0.004)


def test_the_error_ratio_gives_the_power() -> None:
    ratio = error_ratio(0.3, 0.2, 0.9)
    assert assured_power(0.3, 0.2 / np.sqrt(ratio), 0.0, 0.9) == pytest.approx(POWER, abs=1e-12)


def test_the_error_behind_a_bound() -> None:
    assert error_of_bound(2.0, 2.0 - 0.5 * float(norm.ppf(0.95)), 0.95) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("doubt", "confidence"), [(0.0, 0.95), (0.1, 0.95), (0.1, 0.9), (0.17, 0.99), (0.0, 0.8)]
)
def test_the_assured_size_reaches_its_power(doubt: float, confidence: float) -> None:
    ratio = assured_ratio(0.3, 2.0, doubt, confidence)
    assert ratio is not None
    assert assured_power(0.3, 2.0 / np.sqrt(ratio), doubt, confidence) == pytest.approx(POWER, abs=1e-12)


def test_without_doubt_the_size_is_the_plain_one() -> None:
    assert assured_ratio(0.3, 2.0, 0.0, 0.9) == pytest.approx(error_ratio(0.3, 2.0, 0.9))


def test_doubt_as_large_as_the_distance_leaves_no_size() -> None:
    assert assured_ratio(0.3, 2.0, 0.3 / 1.64, 0.95) is None
    assert assured_ratio(0.0, 2.0, 0.0, 0.95) is None


def test_assured_power_is_that_of_a_true_value_drawn_again_and_again() -> None:
    random = np.random.default_rng(5)
    truth = random.normal(0.5, 0.2, 200_000)
    decided = (random.normal(truth, 0.15) - 1.6448536 * 0.15 > 0).mean()
    assert assured_power(0.5, 0.15, 0.2, 0.95) == pytest.approx(float(decided), abs=0.004)
