"""Sample sizes against published figures and against what they promise."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from evalkit.gate.condition import Condition
from evalkit.gate.sample_size import deciding_n
from evalkit.metrics.result import Interval
from evalkit.statistics.binomial import clopper_pearson

AT_LEAST, AT_MOST = Condition("absolute", "min", "higher", 0.8), Condition("absolute", "max", "lower", 0.1)


def exact(low: float, high: float, method: str = "exact-binomial") -> Interval:
    return Interval(low, high, 0.95, 1, method)


@pytest.mark.parametrize(
    ("threshold", "share", "needed"),
    [
        (0.8, 1.0, 14),  # 0.8^13 = 0.055, 0.8^14 = 0.044
        (0.95, 1.0, 59),  # 0.95^58 = 0.051, 0.95^59 = 0.0485
        (0.8, 0.9, 135),
    ],
)
def test_shares_are_searched_exactly(threshold: float, share: float, needed: int) -> None:
    condition = Condition("absolute", "min", "higher", threshold)
    assert deciding_n(condition, share, exact(0.1, 1.0), 5, 5) == needed


@pytest.mark.parametrize(("threshold", "share"), [(0.8, 0.9), (0.8, 0.7), (0.1, 0.05), (0.1, 0.2)])
def test_the_named_size_decides_in_95_of_100(threshold: float, share: float) -> None:
    condition = Condition("absolute", "min", "higher", threshold)
    needed = deciding_n(condition, share, exact(0.01, 0.99), 5, 5)
    assert needed is not None
    draws = np.random.default_rng(7).binomial(needed, share, size=4000)
    decided = 0
    ends = {count: clopper_pearson(count, needed, 0.95, 1) for count in set(draws.tolist())}
    for count in draws.tolist():
        low, high = ends[count]
        decided += low >= threshold if share > threshold else high < threshold
    assert decided / 4000 > 0.935


def test_clusters_of_outcomes_are_counted_as_one_where_all_pass() -> None:
    found = exact(0.74, 1.0, "exact-binomial-effective-n")
    assert deciding_n(AT_LEAST, 1.0, found, 40, 10) == 56  # 14 clusters of 4


def test_other_statistics_shrink_with_the_square_root() -> None:
    z = NormalDist().inv_cdf(0.95)
    bounds = Interval(40 - z * 5, 40 + z * 5, 0.95, 1, "cluster-bootstrap")
    condition = Condition("absolute", "max", "lower", 45)
    # standard error 5 at n = 100; it must fall to 5 / (2 z).
    assert deciding_n(condition, 40, bounds, 100, 100) == math.ceil(100 * (2 * z * 5 / 5) ** 2)


def test_the_bound_on_the_thresholds_side_counts() -> None:
    condition = Condition("absolute", "max", "lower", 45)
    near = deciding_n(condition, 40, Interval(0, 46, 0.95, 1, "cluster-bootstrap"), 100, 100)
    assert near == deciding_n(condition, 40, Interval(39, 46, 0.95, 1, "cluster-bootstrap"), 100, 100)


@pytest.mark.parametrize(
    ("condition", "value", "bounds", "n"),
    [
        (AT_LEAST, 0.8, exact(0.7, 0.9), 10),  # exactly at the threshold
        (AT_LEAST, math.nan, exact(0.7, 0.9), 10),
        (AT_LEAST, 0.9, exact(0.7, 1.0), 0),
        (AT_MOST, 0.05, Interval(0.01, None, 0.95, 1, "cluster-bootstrap"), 10),
        (AT_MOST, 0.05, Interval(0.01, math.inf, 0.95, 1, "cluster-bootstrap"), 10),
        (AT_MOST, 0.1 - 1e-12, Interval(0.01, 0.3, 0.95, 1, "cluster-bootstrap"), 10),  # more than anyone has
        (Condition("absolute", "min", "higher", 0.0), 0.5, exact(0.1, 0.9), 10),
        (Condition("absolute", "min", "higher", 1.0), 0.9, exact(0.7, 1.0), 10),
    ],
)
def test_no_size_can_be_named(condition: Condition, value: float, bounds: Interval, n: int) -> None:
    assert deciding_n(condition, value, bounds, n, n) is None


def test_it_is_always_more_than_there_is() -> None:
    assert deciding_n(AT_LEAST, 1.0, exact(0.79, 1.0), 500, 500) == 501


def test_very_large_shares_use_the_normal_approximation() -> None:
    found = deciding_n(AT_LEAST, 0.801, exact(0.79, 0.81), 5000, 5000)
    assert found is not None and 1_500_000 < found < 2_000_000


@pytest.mark.parametrize(
    ("bounds", "value", "n", "clusters", "needed"),
    [
        # One outcome each: trials are n, whatever the clusters.
        (exact(0.1, 1.0), 1.0, 1, 1, 14),
        (exact(0.1, 1.0), 1.0, 10, 5, 14),
        (exact(0.1, 1.0), 1.0, 10, None, 14),
        # All fail: a cluster is one trial too. 0.8^13 = 0.055, 0.8^14 = 0.044: 14 clusters of 4.
        (exact(0.0, 0.3, "exact-binomial-effective-n"), 0.0, 40, 10, 56),
        (exact(0.7, 1.0, "exact-binomial-effective-n"), 1.0, 40, None, 41),
    ],
)
def test_trials_of_exact_bounds(
    bounds: Interval, value: float, n: int, clusters: int | None, needed: int
) -> None:
    condition = AT_LEAST if value else Condition("absolute", "min", "higher", 0.2)
    assert deciding_n(condition, value, bounds, n, clusters) == needed


def test_a_plain_bootstrap_of_a_share_of_one_is_not_searched_exactly() -> None:
    bounds = Interval(0.9, 1.0, 0.95, 1, "cluster-bootstrap")
    # Its error halves the distance already; an exact search would ask for 14.
    assert deciding_n(AT_LEAST, 1.0, bounds, 5, 5) == 6


def test_beyond_the_threshold_the_low_end_counts() -> None:
    z = NormalDist().inv_cdf(0.95)
    bounds = Interval(50 - z * 5, 50 + z * 9, 0.95, 1, "cluster-bootstrap")
    condition = Condition("absolute", "max", "lower", 45)
    assert deciding_n(condition, 50, bounds, 100, 100) == math.ceil(100 * (2 * z) ** 2)


def test_one_more_than_there_is_at_least() -> None:
    bounds = Interval(39.9, 40.1, 0.95, 1, "cluster-bootstrap")
    assert deciding_n(Condition("absolute", "max", "lower", 45), 40, bounds, 100, 100) == 101
