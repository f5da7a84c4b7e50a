"""Intervals: two methods that must agree, small samples, and what can't be computed."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from evalkit.metrics.estimators import RatioEstimator, ShareEstimator
from evalkit.statistics.binomial import clopper_pearson
from evalkit.statistics.bootstrap import cluster_weights
from evalkit.statistics.intervals import Question, delta_error, uncertainties, uncertainty


def ratio(size: int, seed: int = 0, transform="exp", spread: float = 1.0) -> RatioEstimator:
    generator = np.random.default_rng(seed)
    tokens = np.ceil(generator.lognormal(3, spread, size))
    nll = tokens * generator.normal(2, 0.3, size) + generator.normal(0, 1.5, size) * np.sqrt(tokens)
    return RatioEstimator(tuple(f"{i:05}" for i in range(size)), nll, tokens, transform)


def ask(estimator, method="cluster-bootstrap", **changes):
    return uncertainty(Question(estimator, method, **changes), confidence=0.95, seed=11)


@pytest.mark.parametrize("transform", ["identity", "exp"])
def test_bootstrap_and_delta_method_agree(transform):
    estimator = ratio(800, transform=transform)
    replicates = estimator.replicates(cluster_weights(800, seed=3))
    assert replicates.std(ddof=1) == pytest.approx(delta_error(estimator), rel=0.1)
    answer = ask(estimator)
    half = (answer.interval.high - answer.interval.low) / 2
    assert half == pytest.approx(1.96 * delta_error(estimator), rel=0.1)


def test_bounds_are_one_sided_and_inside_the_interval():
    answer = ask(ratio(200))
    assert (answer.interval.sides, answer.bounds.sides) == (2, 1)
    assert (
        answer.interval.low < answer.bounds.low < ratio(200).value < answer.bounds.high < answer.interval.high
    )


def test_equal_seeds_give_equal_intervals_and_the_seed_is_reported():
    first, second = ask(ratio(100)), ask(ratio(100))
    assert first == second
    assert (first.interval.seed, first.interval.resamples) == (11, 2000)
    other = uncertainty(Question(ratio(100), "cluster-bootstrap"), confidence=0.95, seed=12)
    assert other.interval != first.interval


@pytest.mark.parametrize(
    ("size", "method"), [(9, None), (10, "bootstrap-t"), (29, "bootstrap-t"), (30, "cluster-bootstrap")]
)
def test_method_by_number_of_clusters(size, method):
    answer = ask(ratio(size), log_scale=True, support=(1.0, math.inf))
    if method is None:
        assert (answer.interval, answer.bounds) == (None, None)
        assert answer.reason == "only 9 independent clusters; an interval needs 10"
    else:
        assert answer.interval.method == method
        assert answer.interval.low < ratio(size).value < answer.interval.high


def test_percentile_method_never_uses_bootstrap_t():
    assert ask(ratio(15), "percentile").interval.method == "cluster-bootstrap"


def test_no_variation_is_no_interval():
    same = RatioEstimator(tuple("abcdefghijklm"), np.full(13, 4.0), np.full(13, 2.0))
    answer = ask(same)
    assert answer.interval is None and answer.bounds is None
    assert "zero wide" in answer.reason
    assert delta_error(same) is None


def test_undefined_resamples_are_counted_and_too_many_are_no_interval():
    rare = RatioEstimator(
        tuple(f"{i:02}" for i in range(40)), np.arange(40.0), np.r_[np.ones(3), np.zeros(37)]
    )
    answer = ask(rare, "percentile")
    assert answer.interval is None
    assert answer.undefined == pytest.approx(2000 * math.exp(-3), rel=0.3)
    assert answer.reason == f"undefined on {answer.undefined} of 2000 bootstrap resamples"
    few = RatioEstimator(
        tuple(f"{i:02}" for i in range(40)), np.arange(40.0), np.r_[np.ones(5), np.zeros(35)]
    )
    answer = ask(few, "percentile")
    assert answer.interval is not None and 0 < answer.undefined <= 20


def test_an_end_that_is_infinite_is_none():
    class HalfInfinite:
        clusters = tuple(f"{i:02}" for i in range(40))
        n = 40
        value = 5.0

        def replicates(self, weights):
            values = 5.0 + weights[:, 0]
            values[weights[:, 1] > 1] = np.inf
            return values

    answer = ask(HalfInfinite(), "percentile")
    assert answer.interval.low == 5.0
    assert answer.interval.high is None


def test_exact_binomial_for_single_outcomes():
    share = ShareEstimator.from_units(list("abcdefghijklmn"), [1] * 14, [1] * 14)
    answer = ask(share, "exact-binomial")
    assert (answer.bounds.low, answer.bounds.high) == clopper_pearson(14, 14, 0.95, 1)
    assert answer.bounds.method == "exact-binomial"
    assert answer.bounds.resamples is None


def test_exact_binomial_respects_clusters():
    generator = np.random.default_rng(0)
    own = generator.beta(1, 1, 60)
    share = ShareEstimator.from_units(
        [f"c{i:02}" for i in range(60)], generator.binomial(20, own).astype(float), np.full(60, 20.0)
    )
    answer = ask(share, "exact-binomial")
    naive = clopper_pearson(share.numerators.sum(), 1200, 0.95)
    assert answer.interval.method == "exact-binomial-effective-n"
    assert answer.interval.high - answer.interval.low > 2.5 * (naive[1] - naive[0])
    boot = ask(share)
    assert answer.interval.low == pytest.approx(boot.interval.low, abs=0.02)


def test_exact_binomial_needs_counted_outcomes():
    answer = ask(ratio(40), "exact-binomial")
    assert answer.interval is None and answer.reason == "not a share of counted outcomes"


def test_fixed_population_is_its_own_bound():
    answer = ask(ratio(5), "fixed-population")
    assert answer.bounds.low == answer.bounds.high == ratio(5).value
    assert answer.bounds.method == "fixed-population"


def test_support_clips_the_ends():
    answer = ask(ratio(12, spread=2.0), support=(7.0, 7.5))
    assert answer.interval.low >= 7.0 and answer.interval.high <= 7.5


def test_undefined_value():
    empty = RatioEstimator((), np.zeros(0), np.zeros(0))
    assert ask(empty).reason == "the value itself is undefined"
    assert uncertainties([], confidence=0.95, seed=1) == []


def coverage(size: int, repetitions: int, spread: float) -> float:
    covered = 0
    for seed in range(repetitions):
        question = Question(ratio(size, seed, spread=spread), "cluster-bootstrap", (1.0, math.inf), True)
        interval = uncertainty(question, confidence=0.95, seed=seed).interval
        covered += interval is not None and interval.low <= math.exp(2) <= interval.high
    return covered / repetitions


@pytest.mark.parametrize("size", [12, 30])
def test_coverage_of_small_samples(size):
    assert coverage(size, 150, 1.0) >= 0.88


@pytest.mark.slow
@pytest.mark.parametrize(("size", "lowest", "highest"), [(30, 0.92, 1.0), (1000, 0.93, 0.97)])
def test_coverage_with_log_normal_lengths(size, lowest, highest):
    assert lowest <= coverage(size, 1000, 1.0) <= highest


def clustered_outcomes(seed: int, share: float, clusters: int = 200, each: int = 8) -> ShareEstimator:
    """Outcomes that go together within a cluster: each cluster has a rate of its own, beta with mean `share`."""
    generator = np.random.default_rng(seed)
    own = generator.beta(4 * share, 4 * (1 - share), clusters)
    names = [f"c{index:03}" for index in range(clusters)]
    return ShareEstimator.from_units(
        names, generator.binomial(each, own).astype(float), np.full(clusters, float(each))
    )


def binomial_coverage(method, share: float, repetitions: int, **shape) -> float:
    answers = [
        uncertainty(Question(clustered_outcomes(seed, share, **shape), method), confidence=0.95, seed=seed)
        for seed in range(repetitions)
    ]
    return float(np.mean([one.interval.low <= share <= one.interval.high for one in answers]))


def test_wilson_of_single_outcomes_is_scipys_and_of_clusters_is_wider():
    single = ShareEstimator.from_units([f"c{i:02}" for i in range(40)], [1] * 31 + [0] * 9, [1] * 40)
    answer = ask(single, "wilson")
    reference = binomtest(31, 40).proportion_ci(0.95, method="wilson")
    assert (answer.interval.low, answer.interval.high) == pytest.approx((reference.low, reference.high))
    assert answer.interval.method == "wilson"
    clustered = clustered_outcomes(1, 0.6)
    successes, trials = clustered.numerators.sum(), clustered.denominators.sum()
    naive = binomtest(int(successes), int(trials)).proportion_ci(0.95, method="wilson")
    found = ask(clustered, "wilson").interval
    assert found.method == "wilson-effective-n"
    assert found.high - found.low > 1.4 * (naive.high - naive.low)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize(("clusters", "exact", "wilson"), [(200, 0.95, 0.93), (30, 0.94, 0.92)])
def test_coverage_of_shares_of_clustered_outcomes(share, clusters, exact, wilson):
    """1,000 repetitions: outcomes of one cluster go together, so that naive counts would cover about 80 %.

    An effective number is an estimate: exact is what holds for single outcomes, see test_binomial.
    """
    assert binomial_coverage("exact-binomial", share, 1000, clusters=clusters) >= exact
    assert wilson <= binomial_coverage("wilson", share, 1000, clusters=clusters) <= 0.97


@pytest.mark.parametrize(
    ("method", "size", "confidence", "interval", "bounds"),
    [
        ("cluster-bootstrap", 12, 0.9996, False, False),
        ("cluster-bootstrap", 12, 0.9994, False, True),
        ("cluster-bootstrap", 12, 0.998, True, True),
        ("cluster-bootstrap", 30, 0.999, False, False),
        ("cluster-bootstrap", 30, 0.998, False, True),
        ("cluster-bootstrap", 500, 0.999, False, True),
        ("cluster-bootstrap", 500, 0.9999, False, False),
        ("bootstrap-and-exact", 12, 0.995, False, True),
        ("bootstrap-and-exact", 500, 0.998, True, True),
        ("bootstrap-and-exact", 500, 0.9999, False, False),
    ],
)
def test_a_confidence_that_no_resample_reaches_has_no_ends(method, size, confidence, interval, bounds):
    """The outermost of 2,000 resamples is a bound at 0.9995 at best: it stood for any higher confidence too."""
    outcomes = (np.arange(size) % 3 == 0).astype(np.float64)
    estimator = ShareEstimator(tuple(f"{i:05}" for i in range(size)), outcomes, np.ones(size))
    answer = uncertainty(Question(estimator, method, support=(0, 1)), confidence=confidence, seed=11)
    assert (answer.interval is not None, answer.bounds is not None) == (interval, bounds)
    says = f"2000 bootstrap resamples of {size} clusters don't reach a confidence of {confidence}"
    assert answer.reason == (None if interval else says)
