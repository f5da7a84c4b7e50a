"""The seeded cluster bootstrap: one function draws the weights that every interval and comparison uses."""

from collections.abc import Iterator, Sequence

import numpy as np

from evalkit.metrics.estimators import Estimator, FloatArray

RESAMPLES = 2000

# Weights are drawn in chunks of about this many numbers (32 MB), so that 20,000 clusters fit in memory.
_CHUNK_NUMBERS = 1 << 22


def cluster_weights(n_clusters: int, resamples: int = RESAMPLES, *, seed: int) -> FloatArray:
    """How often each cluster is drawn in each resample: n_clusters draws with replacement.

    Args:
        n_clusters: at least 1.
        resamples: rows.
        seed: of numpy's default generator; equal arguments give equal weights.

    Returns:
        Shape (resamples, n_clusters), whole numbers; each row sums to n_clusters.
    """
    return np.concatenate(list(weight_chunks(n_clusters, resamples, seed=seed)))


def weight_chunks(n_clusters: int, resamples: int = RESAMPLES, *, seed: int) -> Iterator[FloatArray]:
    """The rows of `cluster_weights`, a bounded number at a time."""
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK_NUMBERS // n_clusters)
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        draws = generator.integers(0, n_clusters, size=(size, n_clusters))
        draws += np.arange(size)[:, np.newaxis] * n_clusters
        counts = np.bincount(draws.ravel(), minlength=size * n_clusters)
        yield counts.reshape(size, n_clusters).astype(np.float64)


def replicate_all(
    estimators: Sequence[Estimator], *, seed: int, resamples: int = RESAMPLES
) -> list[FloatArray]:
    """Bootstrap replicates of several estimators; those with equally many clusters share their weights.

    Returns:
        One array of shape (resamples,) an estimator, in order.
    """
    parts: list[list[FloatArray]] = [[] for _ in estimators]
    by_size: dict[int, list[int]] = {}
    for index, estimator in enumerate(estimators):
        by_size.setdefault(len(estimator.clusters), []).append(index)
    for size, members in by_size.items():
        if size == 0:
            for index in members:
                parts[index].append(np.full(resamples, np.nan))
            continue
        for weights in weight_chunks(size, resamples, seed=seed):
            for index in members:
                parts[index].append(estimators[index].replicates(weights))
    return [np.concatenate(part) for part in parts]


def jackknife_errors(estimator: Estimator, weights: FloatArray) -> FloatArray:
    """Standard error of the estimator on each resample, by deleting one draw at a time.

    The variance for a resample with weights w over C draws is (C-1)/C * sum over clusters c of
    w_c * (theta without one draw of c - their mean)^2 (Efron & Tibshirani, An Introduction to the Bootstrap,
    section 11.5).

    Args:
        estimator: any.
        weights: shape (rows, clusters), each row summing to C.

    Returns:
        Shape (rows,); NaN where a deletion leaves the statistic undefined.
    """
    rows, size = weights.shape
    deleted = weights[:, np.newaxis, :] - np.eye(size)[np.newaxis]
    # A cluster that wasn't drawn can't be deleted; its row is masked below, so any valid weights will do.
    deleted = np.maximum(deleted, 0.0)
    values = estimator.replicates(deleted.reshape(rows * size, size)).reshape(rows, size)
    drawn = weights > 0
    values = np.where(drawn, values, 0.0)
    draws = weights.sum(axis=1)
    mean = (weights * values).sum(axis=1) / draws
    spread = (weights * np.where(drawn, values - mean[:, np.newaxis], 0.0) ** 2).sum(axis=1)
    errors: FloatArray = np.sqrt((draws - 1) / draws * spread)
    return errors
