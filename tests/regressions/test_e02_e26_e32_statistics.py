"""Public faults E02 and E26-E32 of evaluation harnesses: uncertainty and comparison. One named test each."""

import numpy as np
import pytest
from scipy.stats import norm

from evalkit.metrics.estimators import RatioEstimator, ShareEstimator
from evalkit.metrics.evaluate import evaluate
from evalkit.runs.evidence import Evidence
from evalkit.statistics.bootstrap import cluster_weights
from evalkit.statistics.intervals import Question, delta_error, uncertainty
from evalkit.statistics.paired import paired_change
from tests.evalkit.metrics.samples import context, text_record

NAMES = tuple(f"{index:04}" for index in range(400))


def ask(estimator, method="cluster-bootstrap"):
    return uncertainty(Question(estimator, method), confidence=0.95, seed=1)


def test_e02_bootstrap_error_is_the_spread_of_the_replicates():
    generator = np.random.default_rng(0)
    estimator = RatioEstimator(NAMES, generator.normal(2, 1, 400), np.ones(400), "exp")
    spread = estimator.replicates(cluster_weights(400, seed=1)).std(ddof=1)
    assert spread == pytest.approx(delta_error(estimator), rel=0.1)
    interval = ask(estimator).interval
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * delta_error(estimator), rel=0.1)


def test_e26_pairing_finds_what_two_separate_intervals_hide():
    generator = np.random.default_rng(1)
    baseline = generator.random(400) < 0.6
    candidate = baseline | (generator.random(400) < 0.08)
    ours, theirs = (ShareEstimator(NAMES, side.astype(float), np.ones(400)) for side in (candidate, baseline))
    paired = paired_change(ours, theirs, "absolute", 0.95, 1)
    assert paired.interval.low > 0
    error = np.hypot(delta_error(ours), delta_error(theirs))
    assert 2 * norm.sf(paired.value / error) > 0.05


def test_e27_an_error_that_cannot_be_computed_is_null_never_zero():
    constant = RatioEstimator(NAMES, np.full(400, 0.7), np.ones(400))
    assert delta_error(constant) is None
    assert ask(constant).interval is None and ask(constant).reason
    found = evaluate(Evidence(samples=(text_record("a"),)), context())
    assert all(item.interval is None or item.interval.low < item.interval.high for item in found)


def test_e28_the_error_is_that_of_the_reported_estimator():
    # Long and short texts differ: the error of the token-weighted mean, not of the mean over texts.
    generator = np.random.default_rng(2)
    tokens = np.where(np.arange(400) % 10 == 0, 200.0, 5.0)
    nll = tokens * np.where(tokens > 100, 1.0, 3.0) + generator.normal(0, 1, 400)
    estimator = RatioEstimator(NAMES, nll, tokens)
    spread = estimator.replicates(cluster_weights(400, seed=1)).std(ddof=1)
    assert delta_error(estimator) == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize("size", [1, 2, 9])
def test_e29_too_few_clusters_give_no_interval(size):
    few = RatioEstimator(NAMES[:size], np.arange(float(size)), np.ones(size))
    assert ask(few).interval is None and ask(few).bounds is None


def test_e29_one_outcome_of_one_gives_a_wide_interval_not_a_sure_pass():
    one = ShareEstimator(("a",), np.ones(1), np.ones(1))
    assert ask(one, "exact-binomial").bounds.low == pytest.approx(0.05)


def test_e30_copies_within_a_cluster_add_no_certainty():
    generator = np.random.default_rng(3)
    outcomes = (generator.random(60) < 0.7).astype(float)
    single = ShareEstimator(NAMES[:60], outcomes, np.ones(60))
    copied = ShareEstimator.from_units(
        [name for name in NAMES[:60] for _ in range(9)], np.repeat(outcomes, 9), np.ones(540)
    )
    for method in ("cluster-bootstrap", "exact-binomial"):
        narrow, wide = ask(copied, method).interval, ask(single, method).interval
        assert narrow.high - narrow.low == pytest.approx(wide.high - wide.low, rel=0.03)


def test_e31_no_precision_is_lost_on_large_values():
    large = RatioEstimator(NAMES[:3], np.array([1e8, 1e8 + 1, 1e8 + 2]), np.ones(3))
    small = RatioEstimator(NAMES[:3], np.array([0.0, 1.0, 2.0]), np.ones(3))
    assert delta_error(large) == pytest.approx(delta_error(small), rel=1e-6)


def test_e32_intervals_are_seeded_and_say_so():
    estimator = RatioEstimator(NAMES, np.random.default_rng(4).normal(2, 1, 400), np.ones(400))
    assert ask(estimator) == ask(estimator)
    assert (ask(estimator).interval.seed, ask(estimator).interval.resamples) == (1, 2000)
