"""The weights that every interval and comparison shares."""

import numpy as np
import pytest

from evalkit.metrics.estimators import RatioEstimator
from evalkit.statistics import bootstrap
from evalkit.statistics.bootstrap import cluster_weights, jackknife_errors, replicate_all


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
