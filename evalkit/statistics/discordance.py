"""Exact tests on pairs: how often one model is ahead of the other, cluster by cluster.

McNemar's test (1947) for one yes-or-no outcome a cluster, the sign test for everything else that has a value a cluster.
Both are the exact binomial test on the pairs that differ; pairs that are equal say nothing about the direction.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from evalkit.metrics.estimators import Estimator, FloatArray, Proportion, RatioEstimator
from evalkit.statistics.binomial import one_outcome_each

PairedMethod = Literal[
    "mcnemar-exact", "sign-test-exact", "paired-cluster-bootstrap", "paired-cluster-bootstrap-t"
]


@dataclass(frozen=True)
class PairedTest:
    """One two-sided test that two models don't differ.

    Attributes:
        method: which.
        p: None where it can't be computed; then `reason` says why.
        above, below, equal: clusters in which the candidate's value is larger, smaller, the same; None for a
            bootstrap.
    """

    method: PairedMethod
    p: float | None
    reason: str | None = None
    above: int | None = None
    below: int | None = None
    equal: int | None = None


def exact_p(above: int, below: int) -> float:
    """Two-sided exact binomial p-value of `above` against `below` pairs at even chances; 1 where no pair differs."""
    from scipy.stats import binom

    return min(1.0, 2 * float(binom.cdf(min(above, below), above + below, 0.5)))


def discordance(candidate: Estimator, baseline: Estimator) -> PairedTest:
    """McNemar's test where each common cluster has one yes-or-no outcome, else the sign test on the clusters' values.

    Clusters, not samples, are compared, since samples of one cluster aren't independent; where the data name no
    clusters, a cluster is a sample.

    Args:
        candidate, baseline: the same statistic of two models.
    """
    ours, theirs = _parts(candidate), _parts(baseline)
    if ours is None or theirs is None:
        return PairedTest("sign-test-exact", None, "the metric has no value of a single cluster")
    common = sorted(set(candidate.clusters) & set(baseline.clusters))
    values, trials = _on(candidate, ours, common)
    other_values, other_trials = _on(baseline, theirs, common)
    shown = (trials > 0) & (other_trials > 0)
    if not shown.any():
        return PairedTest("sign-test-exact", None, "no cluster has a value of both models")
    single = isinstance(candidate, Proportion) and isinstance(baseline, Proportion)
    single = single and one_outcome_each(values, trials) and one_outcome_each(other_values, other_trials)
    if single and not np.array_equal(trials > 0, other_trials > 0):
        reason = "each model has a denominator of its own, so the outcomes don't pair up"
        return PairedTest("mcnemar-exact", None, reason)
    shares = values[shown] / trials[shown]
    other_shares = other_values[shown] / other_trials[shown]
    above = int(np.count_nonzero(shares > other_shares))
    below = int(np.count_nonzero(shares < other_shares))
    method: PairedMethod = "mcnemar-exact" if single else "sign-test-exact"
    return PairedTest(
        method, exact_p(above, below), above=above, below=below, equal=len(shares) - above - below
    )


def _parts(estimator: Estimator) -> tuple[FloatArray, FloatArray] | None:
    """Numerator and denominator of each cluster; None for a statistic that isn't a ratio of sums."""
    if isinstance(estimator, RatioEstimator):
        return estimator.numerators, estimator.denominators
    return estimator.outcomes() if isinstance(estimator, Proportion) else None


def _on(
    estimator: Estimator, parts: tuple[FloatArray, FloatArray], clusters: list[str]
) -> tuple[FloatArray, FloatArray]:
    position = {cluster: index for index, cluster in enumerate(estimator.clusters)}
    columns = np.array([position[cluster] for cluster in clusters], dtype=np.intp)
    return parts[0][columns], parts[1][columns]
