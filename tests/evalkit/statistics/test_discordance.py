"""McNemar, sign test and the bootstrap's p-value against scipy, hand-made tables and the interval itself."""

import numpy as np
import pytest
from scipy.stats import binomtest

from evalkit.metrics.estimators import RatioEstimator, ShareEstimator
from evalkit.statistics.discordance import discordance, exact_p
from evalkit.statistics.paired import bootstrap_test, paired_change


def share(outcomes: list[int], trials: list[int] | None = None) -> ShareEstimator:
    names = [f"c{index:03d}" for index in range(len(outcomes))]
    return ShareEstimator.from_units(names, outcomes, trials or [1] * len(outcomes))


@pytest.mark.parametrize(("above", "below"), [(0, 0), (1, 0), (3, 9), (9, 3), (12, 12), (0, 6), (40, 61)])
def test_the_exact_p_value_is_scipys(above: int, below: int) -> None:
    expected = 1.0 if above + below == 0 else binomtest(above, above + below, 0.5).pvalue
    assert exact_p(above, below) == pytest.approx(expected, rel=1e-12)


def test_mcnemar_counts_the_pairs_that_differ() -> None:
    """8 pairs only the candidate passes, 2 only the baseline: p = 2 P(Binomial(10, 1/2) <= 2) = 0.109375."""
    ours, theirs = [1] * 8 + [0] * 2 + [1] * 20, [0] * 8 + [1] * 2 + [1] * 20
    found = discordance(share(ours), share(theirs))
    assert (found.method, found.above, found.below, found.equal) == ("mcnemar-exact", 8, 2, 20)
    assert found.p == pytest.approx(0.109375, rel=1e-12)


def test_several_outcomes_a_cluster_make_it_a_sign_test() -> None:
    found = discordance(share([3, 1, 2], [3, 3, 3]), share([2, 2, 2], [3, 3, 3]))
    assert (found.method, found.above, found.below, found.equal) == ("sign-test-exact", 1, 1, 1)


def test_ratios_are_compared_by_their_clusters_own_value() -> None:
    names = ["a", "b", "c"]
    ours = RatioEstimator.from_units(names, [1.0, 2.0, 9.0], [1.0, 2.0, 3.0], "exp")
    theirs = RatioEstimator.from_units(["b", "c", "d"], [4.0, 3.0, 1.0], [2.0, 3.0, 1.0], "exp")
    found = discordance(ours, theirs)
    assert (found.above, found.below, found.equal) == (1, 1, 0)


def test_what_cannot_be_paired_has_a_reason() -> None:
    assert discordance(share([1, 1], [1, 0]), share([1, 1], [0, 1])).reason is not None
    assert discordance(share([0, 1], [1, 1]), share([0, 1], [0, 1])).reason is not None


@pytest.mark.parametrize("clusters", [12, 24, 40, 120])
@pytest.mark.parametrize("shift", [0.0, 0.02, 0.1, 0.3])
def test_the_bootstrap_p_value_agrees_with_the_interval(clusters: int, shift: float) -> None:
    """p < 5 % exactly where the 95 % interval leaves 0 out (but for a p within a resample of 5 %)."""
    for seed in range(6):
        random = np.random.default_rng(1000 * seed + clusters)
        names = [f"c{index:03d}" for index in range(clusters)]
        base = random.lognormal(0, 0.4, clusters)
        ours = RatioEstimator.from_units(
            names, base + shift + random.normal(0, 0.2, clusters), [1.0] * clusters
        )
        theirs = RatioEstimator.from_units(names, base, [1.0] * clusters)
        interval = paired_change(ours, theirs, "absolute", 0.95, seed).interval
        found = bootstrap_test(ours, theirs, seed)
        assert interval is not None and interval.low is not None and interval.high is not None
        assert found.p is not None and 0 < found.p <= 1
        if abs(found.p - 0.05) > 0.002:
            assert (found.p < 0.05) == (not interval.low <= 0 <= interval.high)


def test_no_difference_anywhere_is_p_1_and_few_clusters_have_none() -> None:
    assert bootstrap_test(share([1, 0] * 20), share([1, 0] * 20), 1).p == 1.0
    few = bootstrap_test(share([1, 0, 1]), share([0, 0, 1]), 1)
    assert few.p is None and few.reason is not None and "3 independent clusters" in few.reason
    always = bootstrap_test(share([1] * 40), share([0] * 40), 1)
    assert always.p is None and always.reason is not None
