"""Paired comparison: the same weights on both sides."""

import numpy as np
import pytest
from scipy.stats import bootstrap

from evalkit.metrics.estimators import RatioEstimator, ShareEstimator
from evalkit.statistics.binomial import clopper_pearson
from evalkit.statistics.intervals import Question, uncertainty
from evalkit.statistics.paired import paired_change

SIZE = 200
CLUSTERS = tuple(f"{i:05}" for i in range(SIZE))


def pair(seed=0, shift=0.01):
    generator = np.random.default_rng(seed)
    tokens = np.ceil(generator.lognormal(3, 1, SIZE))
    nll = tokens * generator.normal(2, 0.5, SIZE)
    other = nll + tokens * generator.normal(shift, 0.02, SIZE)
    return RatioEstimator(CLUSTERS, other, tokens), RatioEstimator(CLUSTERS, nll, tokens)


def change(candidate, baseline, kind="absolute"):
    return paired_change(candidate, baseline, kind, 0.95, 3)


def test_values():
    candidate, baseline = pair()
    absolute, relative = change(candidate, baseline), change(candidate, baseline, "relative")
    assert absolute.value == candidate.value - baseline.value
    assert relative.value == pytest.approx(absolute.value / baseline.value)
    assert (absolute.candidate, absolute.baseline) == (candidate.value, baseline.value)
    assert absolute.clusters == SIZE


def test_pairing_makes_the_interval_narrow():
    candidate, baseline = pair()
    paired = change(candidate, baseline).interval
    alone = uncertainty(Question(candidate, "cluster-bootstrap"), confidence=0.95, seed=3).interval
    assert (paired.high - paired.low) < 0.15 * (alone.high - alone.low)
    assert paired.low > 0


@pytest.mark.parametrize("kind", ["absolute", "relative"])
def test_the_interval_is_scipys_paired_bootstrap(kind):
    """SciPy resamples the same rows of all arrays; ours is wider by its factor for 200 clusters, half a per cent."""
    candidate, baseline = pair(shift=0.05)

    def statistic(ours, theirs, tokens, axis):
        first, second = (side.sum(axis) / tokens.sum(axis) for side in (ours, theirs))
        return first - second if kind == "absolute" else (first - second) / np.abs(second)

    data = (candidate.numerators, baseline.numerators, candidate.denominators)
    reference = bootstrap(
        data, statistic, paired=True, n_resamples=9999, method="percentile", vectorized=True, random_state=5
    ).confidence_interval
    found = change(candidate, baseline, kind).interval
    width = reference.high - reference.low
    assert found.low == pytest.approx(reference.low, abs=0.05 * width)
    assert found.high == pytest.approx(reference.high, abs=0.05 * width)


def test_relative_change_divides_by_the_absolute_baseline():
    down = RatioEstimator(CLUSTERS, np.full(SIZE, -1.0) - np.arange(SIZE) / 1e4, np.ones(SIZE))
    up = RatioEstimator(CLUSTERS, down.numerators / 2, np.ones(SIZE))
    assert change(up, down, "relative").value == pytest.approx(0.5)
    assert change(down, up, "relative").value == pytest.approx(-1.0)


def test_only_common_clusters_count():
    candidate, baseline = pair()
    half = RatioEstimator(CLUSTERS[:150], candidate.numerators[:150], candidate.denominators[:150])
    late = RatioEstimator(CLUSTERS[50:], baseline.numerators[50:], baseline.denominators[50:])
    found = change(half, late)
    expected = (
        candidate.numerators[50:150].sum() / candidate.denominators[50:150].sum()
        - baseline.numerators[50:150].sum() / baseline.denominators[50:150].sum()
    )
    assert found.value == pytest.approx(expected)
    assert (found.clusters, found.only_candidate, found.only_baseline) == (100, 50, 50)
    assert found.interval.low < found.value < found.interval.high


def test_nothing_in_common():
    candidate, _ = pair()
    other = RatioEstimator(("x",), np.ones(1), np.ones(1))
    found = change(candidate, other)
    assert (found.value, found.reason) == (None, "candidate and baseline have no sample in common")
    assert found.interval is None


def test_zero_baseline_has_no_relative_change():
    zero = RatioEstimator(CLUSTERS, np.zeros(SIZE), np.ones(SIZE))
    found = change(pair()[0], zero, "relative")
    assert found.value is None and "the baseline is 0" in found.reason
    assert change(pair()[0], zero).value is not None


def test_undefined_side_is_named():
    empty = RatioEstimator(CLUSTERS, np.zeros(SIZE), np.zeros(SIZE))
    assert change(pair()[0], empty).reason == "the baseline's value is undefined"
    assert change(empty, pair()[0]).reason == "the candidate's value is undefined"


def test_shares_that_never_differ_get_the_exact_bound_on_a_difference():
    all_pass = ShareEstimator(CLUSTERS[:59], np.ones(59), np.ones(59))
    found = change(all_pass, all_pass)
    assert found.value == 0.0
    _, most = clopper_pearson(0, 59, 0.95, 1)
    assert (found.bounds.low, found.bounds.high) == (-most, most)
    assert found.bounds.method == "exact-binomial-no-discordant-cluster"


def test_other_statistics_that_never_differ_have_no_interval():
    _, baseline = pair()
    found = change(baseline, baseline)
    assert found.value == 0.0
    assert found.interval is None and "zero wide" in found.interval_reason


def test_few_clusters():
    candidate, baseline = pair()
    few = [
        RatioEstimator(CLUSTERS[:9], side.numerators[:9], side.denominators[:9])
        for side in (candidate, baseline)
    ]
    found = change(*few)
    assert found.value is not None
    assert found.interval is None and "only 9 independent clusters" in found.interval_reason
