"""The weights that every interval and comparison shares."""

import numpy as np
import pytest

from evalkit.metrics.estimators import FloatArray, RatioEstimator
from evalkit.statistics import bootstrap
from evalkit.statistics.bootstrap import cluster_weights, jackknife_errors, random_groups, replicate_all
from evalkit.statistics.intervals import delta_error
from evalkit.statistics.paired import ChangeEstimator


def ratio(size: int, seed: int = 0) -> RatioEstimator:
    generator = np.random.default_rng(seed)
    tokens = np.ceil(generator.lognormal(3, 1, size))
    return RatioEstimator(
        tuple(f"{i:05}" for i in range(size)), 2 * tokens + generator.normal(0, 3, size), tokens
    )


def test_each_resample_draws_as_many_clusters_as_there_are():
    weights = cluster_weights(50, 300, seed=1)
    assert weights.shape == (300, 50)
    assert np.all(weights.sum(axis=1) == 50)
    assert weights.mean(axis=0) == pytest.approx(np.ones(50), abs=0.3)
    # A draw is binomial(50, 1/50): variance 0.98.
    assert weights.var() == pytest.approx(0.98, rel=0.03)


def test_weights_are_a_function_of_their_arguments(monkeypatch):
    expected = cluster_weights(7, 100, seed=1)
    assert np.array_equal(cluster_weights(7, 100, seed=1), expected)
    assert not np.array_equal(cluster_weights(7, 100, seed=2), expected)
    # Neither the size of the chunks nor how many rows are asked for changes the rows.
    monkeypatch.setattr(bootstrap, "_CHUNK_NUMBERS", 30)
    assert np.array_equal(cluster_weights(7, 100, seed=1), expected)
    assert np.array_equal(cluster_weights(7, 40, seed=1), expected[:40])


def test_replicates_of_many_are_those_of_each():
    estimators = [ratio(20), ratio(31), ratio(20, seed=4)]
    together = replicate_all(estimators, seed=5, resamples=50)
    for estimator, found in zip(estimators, together, strict=True):
        alone = estimator.replicates(cluster_weights(len(estimator.clusters), 50, seed=5))
        assert np.array_equal(found, alone)


def test_jackknife_error_by_definition():
    estimator = ratio(12)
    weights = cluster_weights(12, 3, seed=2)
    for row, found in zip(weights, jackknife_errors(estimator, weights), strict=True):
        drawn = [index for index, times in enumerate(row) for _ in range(int(times))]
        values = []
        for left_out in range(12):
            kept = [index for position, index in enumerate(drawn) if position != left_out]
            values.append(estimator.numerators[kept].sum() / estimator.denominators[kept].sum())
        spread = np.sum((np.array(values) - np.mean(values)) ** 2)
        assert found == pytest.approx(np.sqrt(11 / 12 * spread))


def test_groups_are_equal_in_size_and_drawn_by_the_seed() -> None:
    groups = random_groups(25_003, 10_000, seed=3)
    sizes = np.bincount(groups)
    assert (sizes.min(), sizes.max(), len(sizes)) == (2, 3, 10_000)
    assert np.array_equal(groups, random_groups(25_003, 10_000, seed=3))
    assert not np.array_equal(groups, random_groups(25_003, 10_000, seed=4))


def test_many_clusters_in_groups_keep_the_standard_error() -> None:
    """Against the delta method; 2,000 resamples know it within 1.6 %, 10,000 groups within 0.7 %."""
    estimator = ratio(60_000)
    (replicates,) = replicate_all([estimator], seed=5)
    error = delta_error(estimator)
    assert error is not None and len(replicates) == 2000
    assert replicates.std(ddof=1) == pytest.approx(error, rel=0.06)
    assert replicates.mean() == pytest.approx(estimator.value, abs=0.1 * error)


def test_an_estimator_that_cannot_be_grouped_sees_its_groups_weights() -> None:
    """The same numbers as by summing the groups first, but for rounding."""
    estimator = ratio(20_000)

    class Plain:
        clusters, n, value = estimator.clusters, estimator.n, estimator.value

        @staticmethod
        def replicates(weights: FloatArray) -> FloatArray:
            return estimator.replicates(weights)

    fast, slow = replicate_all([estimator, Plain()], seed=5, resamples=20)
    assert fast == pytest.approx(slow, rel=1e-12)


def test_changes_in_groups_pair_the_same_clusters() -> None:
    """What only one side has is left out, in groups as without."""
    ours, theirs = ratio(20_000), ratio(20_100, 1)
    shifted = RatioEstimator(ours.clusters, ours.numerators + 0.1 * ours.denominators, ours.denominators)
    change = ChangeEstimator.build(shifted, theirs, "absolute")
    assert len(change.clusters) == 20_000

    class Plain:
        clusters, n, value = change.clusters, change.n, change.value
        replicates = staticmethod(change.replicates)

    fast, slow = replicate_all([change, Plain()], seed=5, resamples=20)
    assert fast == pytest.approx(slow, rel=1e-9)
