"""Uncertainty of a statistic over clusters: a two-sided interval and the one-sided bounds for the judge.

Both come from the same replicates. What can't be computed is None with the reason, never zero wide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evalkit.metrics.accumulators import exact_sum
from evalkit.metrics.estimators import (
    Estimator,
    FloatArray,
    IntervalMethod,
    MappedEstimator,
    Proportion,
    RatioEstimator,
)
from evalkit.metrics.result import Interval
from evalkit.statistics.binomial import clopper_pearson, effective_sample, one_outcome_each, wilson
from evalkit.statistics.bootstrap import (
    MOST_DRAWN,
    RESAMPLES,
    cluster_weights,
    jackknife_errors,
    replicate_all,
)

MIN_CLUSTERS = 10
PERCENTILE_CLUSTERS = 30
MAX_UNDEFINED_SHARE = 0.01
_ROUNDING = 1e-12
# Ends that are further out than the outermost resample.
_UNREACHED = (-math.inf, math.inf)

Sides = Literal[1, 2]


@dataclass(frozen=True)
class Question:
    """One statistic whose uncertainty is asked.

    Attributes:
        estimator: the statistic.
        method: how; see `IntervalMethod`.
        support: smallest and largest value that the statistic can take; the ends are clipped to it.
        log_scale: whether bootstrap-t works on the logarithm (perplexities).
    """

    estimator: Estimator
    method: IntervalMethod
    support: tuple[float, float] = (-math.inf, math.inf)
    log_scale: bool = False


@dataclass(frozen=True)
class Uncertainty:
    """The answer.

    Attributes:
        interval: two-sided; None where it can't be computed.
        bounds: the pair of one-sided ends, each at the confidence.
        reason: why the interval, or interval and bounds, are None; else None.
        undefined: bootstrap resamples on which the statistic has no value (above 1 % there is no interval).
    """

    interval: Interval | None
    bounds: Interval | None
    reason: str | None = None
    undefined: int = 0


@dataclass(frozen=True)
class _Ends:
    """Ends by sides, before they become intervals."""

    two: tuple[float, float]
    one: tuple[float, float]
    method: str
    resamples: int | None = None


class _NoIntervalError(Exception):
    """Carries the reason why there is no interval."""


def uncertainty(question: Question, *, confidence: float, seed: int) -> Uncertainty:
    """Interval and bounds of one statistic."""
    return uncertainties([question], confidence=confidence, seed=seed)[0]


def uncertainties(questions: Sequence[Question], *, confidence: float, seed: int) -> list[Uncertainty]:
    """Intervals and bounds of several statistics; equally many clusters share one set of bootstrap weights.

    Args:
        questions: what is asked.
        confidence: of the two-sided interval, and of each one-sided bound.
        seed: of the bootstrap.
    """
    wanted = [index for index, question in enumerate(questions) if _needs_bootstrap(question)]
    drawn = replicate_all([questions[index].estimator for index in wanted], seed=seed)
    replicates = dict(zip(wanted, drawn, strict=True))
    return [
        _answer(question, replicates.get(index), confidence, seed) for index, question in enumerate(questions)
    ]


def _needs_bootstrap(question: Question) -> bool:
    bootstrapped = question.method not in ("exact-binomial", "wilson", "fixed-population")
    return bootstrapped and len(question.estimator.clusters) >= MIN_CLUSTERS


def _answer(question: Question, replicates: FloatArray | None, confidence: float, seed: int) -> Uncertainty:
    undefined = 0 if replicates is None else int(np.isnan(replicates).sum())
    try:
        ends = _ends(question, replicates, confidence, seed)
    except _NoIntervalError as error:
        return Uncertainty(None, None, str(error), undefined)
    interval = _interval(ends, ends.two, 2, question.support, confidence, seed)
    bounds = _interval(ends, ends.one, 1, question.support, confidence, seed)
    reason = None
    if interval is None or bounds is None:
        clusters = len(question.estimator.clusters)
        reason = f"{ends.resamples} bootstrap resamples of {clusters} clusters don't reach a confidence of {confidence:.10g}"
    return Uncertainty(interval, bounds, reason, undefined)


def _ends(question: Question, replicates: FloatArray | None, confidence: float, seed: int) -> _Ends:
    value = question.estimator.value
    if value is None or not math.isfinite(value):
        raise _NoIntervalError("the value itself is undefined")
    if question.method == "fixed-population":
        return _Ends((value, value), (value, value), "fixed-population")
    if question.method in ("exact-binomial", "wilson"):
        return _counted(question.estimator, confidence, question.method)
    if question.method == "bounded-mean" and value == 0:
        return _scaled(_counted(question.estimator, confidence), question.estimator)
    if question.method == "bootstrap-and-exact":
        exact = _counted(question.estimator, confidence)
        if value in (0.0, 1.0):
            return exact
        drawn = _bootstrap(question, replicates, confidence, seed)
        return _Ends(
            two=(min(exact.two[0], drawn.two[0]), max(exact.two[1], drawn.two[1])),
            one=(min(exact.one[0], drawn.one[0]), max(exact.one[1], drawn.one[1])),
            method="cluster-bootstrap-and-exact-binomial",
            resamples=drawn.resamples,
        )
    return _bootstrap(question, replicates, confidence, seed)


def _scaled(ends: _Ends, estimator: Estimator) -> _Ends:
    factor = estimator.largest if isinstance(estimator, Proportion) else math.inf
    low, high = ends.two
    one_low, one_high = ends.one
    return _Ends((low * factor, high * factor), (one_low * factor, one_high * factor), ends.method)


def _counted(
    estimator: Estimator, confidence: float, kind: Literal["exact-binomial", "wilson"] = "exact-binomial"
) -> _Ends:
    """Ends for counted outcomes: by their number where each cluster has one, else by the effective one."""
    if not isinstance(estimator, Proportion):
        raise _NoIntervalError("not a share of counted outcomes")
    successes, trials = estimator.outcomes()
    single = one_outcome_each(successes, trials)
    share = exact_sum(successes) / exact_sum(trials)
    if not single and 0 < share < 1 and np.count_nonzero(trials) < MIN_CLUSTERS:
        raise _NoIntervalError(too_few(int(np.count_nonzero(trials))))
    formula = clopper_pearson if kind == "exact-binomial" else wilson

    def ends(sides: Sides) -> tuple[float, float]:
        counts = (exact_sum(successes), exact_sum(trials))
        if not single:
            counts = effective_sample(successes, trials, (1 - confidence) / sides)
        return formula(*counts, confidence, sides)

    return _Ends(ends(2), ends(1), kind if single else f"{kind}-effective-n")


def _bootstrap(question: Question, replicates: FloatArray | None, confidence: float, seed: int) -> _Ends:
    size = len(question.estimator.clusters)
    if replicates is None:
        raise _NoIntervalError(too_few(size))
    defined = np.sort(replicates[~np.isnan(replicates)])
    if defined.size < (1 - MAX_UNDEFINED_SHARE) * replicates.size:
        missing = replicates.size - defined.size
        raise _NoIntervalError(f"undefined on {missing} of {replicates.size} bootstrap resamples")
    if _same(float(defined[0]), float(defined[-1])):
        raise _NoIntervalError("no variation between the clusters: the interval would be zero wide")
    if size < PERCENTILE_CLUSTERS and question.method == "cluster-bootstrap":
        return _bootstrap_t(question, confidence, seed)
    ends = {
        sides: _percentile_ends(defined, min(size, MOST_DRAWN), (1 - confidence) / sides) for sides in (1, 2)
    }
    return _Ends(ends[2], ends[1], "cluster-bootstrap", RESAMPLES)


def _percentile_ends(ordered: FloatArray, clusters: int, tail: float) -> tuple[float, float]:
    """Percentiles, widened for a finite number of clusters as Student's t is against the normal.

    The expanded percentile interval of Hesterberg (2015, What Teachers Should Know About the Bootstrap,
    section 5.3): without it the interval is too narrow by sqrt((C-1)/C) and by the missing t quantile.
    """
    from scipy.stats import norm, t

    widened = float(norm.cdf(math.sqrt(clusters / (clusters - 1)) * t.ppf(tail, clusters - 1)))
    rank = math.floor(widened * (ordered.size + 1))
    return (float(ordered[rank - 1]), float(ordered[ordered.size - rank])) if rank else _UNREACHED


def _bootstrap_t(question: Question, confidence: float, seed: int) -> _Ends:
    """Studentised bootstrap (Efron & Tibshirani, section 12.5) with the jackknife error of each resample."""
    target = _Logarithm(question.estimator) if question.log_scale else question.estimator
    value, error, pivots = bootstrap_pivots(target, seed)
    if pivots is None:
        raise _NoIntervalError(few_pivots(len(target.clusters)))

    def ends(tail: float) -> tuple[float, float]:
        rank = math.floor(tail * (pivots.size + 1))
        if rank == 0:
            return _UNREACHED
        low, high = value - error * pivots[pivots.size - rank], value - error * pivots[rank - 1]
        return (math.exp(low), math.exp(high)) if question.log_scale else (float(low), float(high))

    return _Ends(ends((1 - confidence) / 2), ends(1 - confidence), "bootstrap-t", RESAMPLES)


def bootstrap_pivots(estimator: Estimator, seed: int) -> tuple[float, float, FloatArray | None]:
    """Value, jackknife standard error and the sorted pivots (value* - value) / error* of the resamples.

    Returns:
        None in place of the pivots where the error is undefined, or is so on too many resamples.
    """
    weights = cluster_weights(len(estimator.clusters), seed=seed)
    observed = np.ones((1, len(estimator.clusters)))
    value = float(estimator.replicates(observed)[0])
    error = float(jackknife_errors(estimator, observed)[0])
    errors = np.concatenate([jackknife_errors(estimator, rows) for rows in np.array_split(weights, 20)])
    with np.errstate(divide="ignore", invalid="ignore"):
        pivots = (estimator.replicates(weights) - value) / errors
    pivots = np.sort(pivots[np.isfinite(pivots)])
    enough = math.isfinite(error) and pivots.size >= (1 - MAX_UNDEFINED_SHARE) * len(weights)
    return value, error, pivots if enough else None


def few_pivots(clusters: int) -> str:
    """Why there are no pivots."""
    return f"only {clusters} clusters, and the standard error is undefined on too many resamples"


class _Logarithm(MappedEstimator):
    """The logarithm of a positive statistic."""

    def map(self, values: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithms: FloatArray = np.log(values)
        return logarithms


def delta_error(estimator: RatioEstimator) -> float | None:
    """Standard error of a ratio by the delta method, clusters as the independent units.

    sqrt(C/(C-1) * sum (y_c - r x_c)^2) / X for r = Y/X (Cochran, Sampling Techniques, section 6.4), times the
    transform's derivative. None with fewer than two clusters, and where they don't vary (never an error of
    0).
    """
    value, total = estimator.value, exact_sum(estimator.denominators)
    size = int(np.count_nonzero(estimator.denominators))
    if value is None or size < 2:
        return None
    ratio = exact_sum(estimator.numerators) / total
    residuals = estimator.numerators - ratio * estimator.denominators
    error = estimator.scale * math.sqrt(size / (size - 1) * float(residuals @ residuals)) / total
    if _same(ratio, ratio + error / estimator.scale):
        return None
    return error * value if estimator.transform == "exp" else error


def _interval(
    ends: _Ends,
    pair: tuple[float, float],
    sides: Sides,
    support: tuple[float, float],
    confidence: float,
    seed: int,
) -> Interval | None:
    if pair == _UNREACHED:
        return None
    low, high = max(pair[0], support[0]), min(pair[1], support[1])
    return Interval(
        low=low if math.isfinite(low) else None,
        high=high if math.isfinite(high) else None,
        confidence=confidence,
        sides=sides,
        method=ends.method,
        resamples=ends.resamples,
        seed=seed if ends.resamples is not None else None,
    )


def _same(low: float, high: float) -> bool:
    # Replicates of clusters that don't vary still differ by rounding.
    return low == high or high - low <= _ROUNDING * max(abs(low), abs(high)) < math.inf


def too_few(clusters: int) -> str:
    """Why there is neither an interval nor a p-value."""
    return f"only {clusters} independent clusters; an interval needs {MIN_CLUSTERS}"
