"""Intervals for shares: exact (Clopper-Pearson), Wilson, and the effective n of clustered outcomes."""

import math
from typing import Literal

import numpy as np

from evalkit.metrics.accumulators import exact_sum
from evalkit.metrics.estimators import FloatArray


def clopper_pearson(
    successes: float, trials: float, confidence: float, sides: Literal[1, 2] = 2
) -> tuple[float, float]:
    """Exact binomial ends (Clopper & Pearson 1934), also for the fractional counts of an effective n.

    Args:
        successes, trials: 0 <= successes <= trials, trials > 0.
        confidence: of the interval (sides 2) or of each end taken alone (sides 1).
        sides: 1 or 2.
    """
    from scipy.stats import beta

    tail = (1 - confidence) / sides
    low = 0.0 if successes <= 0 else float(beta.ppf(tail, successes, trials - successes + 1))
    high = 1.0 if successes >= trials else float(beta.ppf(1 - tail, successes + 1, trials - successes))
    return low, high


def wilson(
    successes: float, trials: float, confidence: float, sides: Literal[1, 2] = 2
) -> tuple[float, float]:
    """Wilson score ends (Wilson 1927); narrower than exact ones, right on average rather than always."""
    from scipy.stats import norm

    z = float(norm.ppf(1 - (1 - confidence) / sides))
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    # At the edges the formula is exactly 0 or 1 but for rounding.
    return (0.0 if successes <= 0 else centre - half), (1.0 if successes >= trials else centre + half)


def one_outcome_each(successes: FloatArray, trials: FloatArray) -> bool:
    """Whether every cluster holds at most one trial that wholly succeeded or wholly failed."""
    single = bool(np.all((trials == 0) | (trials == 1)))
    return single and bool(np.all((successes == 0) | (successes == 1)))


def effective_sample(successes: FloatArray, trials: FloatArray, tail: float) -> tuple[float, float]:
    """Successes and trials that carry as much information as the clustered outcomes.

    The trials are p(1-p) over the clusters' variance of the share, at most the true number of trials, times
    (t(n-1) / t(clusters-1))^2 for what is not known of that variance (Korn & Graubard 1998, Confidence intervals for
    proportions with small expected number of positive counts estimated from survey data). Where all or none succeed, and in a single
    cluster, the variance says nothing: then a cluster counts as one trial.

    Args:
        successes, trials: of each cluster, shape (clusters,); at least one trial in all.
        tail: share of the distribution beyond each end of the interval, where t is taken.
    """
    from scipy.stats import t

    total = exact_sum(trials)
    share = exact_sum(successes) / total
    clusters = int(np.count_nonzero(trials))
    if share <= 0 or share >= 1 or clusters < 2:
        return share * clusters, float(clusters)
    residuals = successes - share * trials
    variance = clusters / (clusters - 1) * float(residuals @ residuals) / total**2
    effective = total if variance <= 0 else min(total, share * (1 - share) / variance)
    effective *= float(t.ppf(tail, total - 1) / t.ppf(tail, clusters - 1)) ** 2
    return share * effective, effective
