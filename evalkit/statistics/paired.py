"""Paired comparison of two models: both statistics under the same cluster weights, then their change."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from evalkit.metrics.estimators import (
    Estimator,
    FloatArray,
    Groupable,
    IndexArray,
    Proportion,
    group_names,
)
from evalkit.metrics.result import Interval
from evalkit.statistics.binomial import clopper_pearson
from evalkit.statistics.bootstrap import Spread, replicate_all
from evalkit.statistics.discordance import PairedMethod, PairedTest
from evalkit.statistics.intervals import (
    MAX_UNDEFINED_SHARE,
    MIN_CLUSTERS,
    PERCENTILE_CLUSTERS,
    Question,
    Uncertainty,
    bootstrap_pivots,
    few_pivots,
    too_few,
    uncertainties,
)

ChangeKind = Literal["relative", "absolute"]


@dataclass(frozen=True)
class PairedChange:
    """How far the candidate lies from the baseline on the clusters that both have.

    Attributes:
        kind: relative is (candidate - baseline) / |baseline|, absolute is candidate - baseline.
        value, reason: exactly one is None where the change is undefined.
        candidate, baseline: the two values on the common clusters.
        n: units in the candidate's denominator; clusters: common ones.
        interval, bounds: two-sided, and the pair of one-sided ends; None with `interval_reason`.
        only_candidate, only_baseline: clusters that the other side lacks; they are left out.
        undefined: bootstrap resamples on which the change has no value.
    """

    kind: ChangeKind
    value: float | None
    reason: str | None
    candidate: float | None
    baseline: float | None
    n: int
    clusters: int
    interval: Interval | None = None
    bounds: Interval | None = None
    interval_reason: str | None = None
    only_candidate: int = 0
    only_baseline: int = 0
    undefined: int = 0


def paired_change(
    candidate: Estimator, baseline: Estimator, kind: ChangeKind, confidence: float, seed: int
) -> PairedChange:
    """The change from baseline to candidate with its paired interval.

    Args:
        candidate, baseline: the same statistic of two models; only common clusters count.
        kind: relative or absolute.
        confidence: of the two-sided interval, and of each one-sided bound.
        seed: of the bootstrap.
    """
    return paired_changes([(candidate, baseline, kind)], confidence, seed)[0]


def paired_changes(
    asked: Sequence[tuple[Estimator, Estimator, ChangeKind]], confidence: float, seed: int
) -> list[PairedChange]:
    """Several changes at once; those over equally many clusters share one set of bootstrap weights.

    Args:
        asked: candidate, baseline and kind of each, as in `paired_change`.
        confidence: of the two-sided intervals, and of each one-sided bound.
        seed: of the bootstrap.
    """
    changes = [ChangeEstimator.build(*one) for one in asked]
    # A value is a pass over all clusters: it is computed once.
    values = [change.value for change in changes]
    questions = [
        Question(change, "cluster-bootstrap")
        for change, value in zip(changes, values, strict=True)
        if value is not None
    ]
    answers = iter(uncertainties(questions, confidence=confidence, seed=seed))
    return [
        _undefined_change(change) if value is None else _changed(change, value, next(answers), confidence)
        for change, value in zip(changes, values, strict=True)
    ]


def _undefined_change(change: "ChangeEstimator") -> PairedChange:
    return _described(change, None, change.reason())


def _changed(change: "ChangeEstimator", value: float, answer: Uncertainty, confidence: float) -> PairedChange:
    interval, bounds, why = answer.interval, answer.bounds, answer.reason
    if interval is None and change.never_differ():
        interval, bounds, why = change.concordant(confidence, 2), change.concordant(confidence, 1), None
    return replace(
        _described(change, value, None),
        interval=interval,
        bounds=bounds,
        interval_reason=why,
        undefined=answer.undefined,
    )


def _described(change: "ChangeEstimator", value: float | None, reason: str | None) -> PairedChange:
    common = len(change.clusters)
    return PairedChange(
        kind=change.kind,
        value=value,
        reason=reason,
        candidate=change.candidate_value,
        baseline=change.baseline_value,
        n=change.n,
        clusters=common,
        only_candidate=len(change.candidate.clusters) - common,
        only_baseline=len(change.baseline.clusters) - common,
    )


def bootstrap_test(candidate: Estimator, baseline: Estimator, seed: int) -> PairedTest:
    """Whether the two differ, by the same resamples as the interval of their absolute change.

    p is twice the smallest tail at which the one-sided interval still holds 0, so that p < 1 - confidence exactly
    where the two-sided interval leaves 0 out: the expanded percentile interval from 30 clusters on, bootstrap-t below.

    Args:
        candidate, baseline: the same statistic of two models; only common clusters count.
        seed: of the bootstrap.
    """
    change = ChangeEstimator.build(candidate, baseline, "absolute")
    size = len(change.clusters)
    method: PairedMethod = (
        "paired-cluster-bootstrap" if size >= PERCENTILE_CLUSTERS else "paired-cluster-bootstrap-t"
    )
    if change.value is None:
        return PairedTest(method, None, change.reason())
    if size < MIN_CLUSTERS:
        return PairedTest(method, None, too_few(size))
    (replicates,) = replicate_all([change], seed=seed)
    if np.isnan(replicates).mean() > MAX_UNDEFINED_SHARE:
        return PairedTest(method, None, f"undefined on {np.isnan(replicates).sum()} resamples")
    if np.ptp(replicates[~np.isnan(replicates)]) == 0:
        equal = change.value == 0
        return PairedTest(
            method, 1.0 if equal else None, None if equal else "the change doesn't vary between the clusters"
        )
    if size >= PERCENTILE_CLUSTERS:
        tail = _expanded_tail(_tail(replicates[~np.isnan(replicates)], 0.0), size)
    else:
        value, error, pivots = bootstrap_pivots(change, seed)
        if pivots is None or error == 0:
            return PairedTest(method, None, few_pivots(size))
        tail = _tail(pivots, value / error)
    return PairedTest(method, min(1.0, 2 * tail))


def _tail(replicates: FloatArray, at: float) -> float:
    """The smaller share of replicates on one side of `at`, never zero (Davison & Hinkley 1997, section 4.4)."""
    beyond = min(np.count_nonzero(replicates <= at), np.count_nonzero(replicates >= at))
    return (1 + float(beyond)) / (1 + replicates.size)


def _expanded_tail(tail: float, clusters: int) -> float:
    """The tail whose expanded percentile (see `evalkit.statistics.intervals`) is the plain one at `tail`."""
    from scipy.stats import norm, t

    return float(t.cdf(norm.ppf(tail) / math.sqrt(clusters / (clusters - 1)), clusters - 1))


@dataclass(frozen=True)
class ChangeEstimator:
    """The change as an estimator over the common clusters; both sides see the same weights."""

    candidate: Estimator
    baseline: Estimator
    kind: ChangeKind
    clusters: tuple[str, ...]
    candidate_columns: IndexArray
    baseline_columns: IndexArray

    @classmethod
    def build(cls, candidate: Estimator, baseline: Estimator, kind: ChangeKind) -> "ChangeEstimator":
        if candidate.clusters == baseline.clusters:
            common = candidate.clusters
            every = _every(len(common))
            return cls(candidate, baseline, kind, common, every, every)
        common = tuple(sorted(set(candidate.clusters) & set(baseline.clusters)))
        return cls(
            candidate,
            baseline,
            kind,
            common,
            _columns(candidate.clusters, common),
            _columns(baseline.clusters, common),
        )

    @property
    def n(self) -> int:
        return self.candidate.n

    @property
    def candidate_value(self) -> float | None:
        return self._value_of(self.candidate, self.candidate_columns)

    @property
    def baseline_value(self) -> float | None:
        return self._value_of(self.baseline, self.baseline_columns)

    @property
    def value(self) -> float | None:
        candidate, baseline = self.candidate_value, self.baseline_value
        if candidate is None or baseline is None or (self.kind == "relative" and baseline == 0):
            return None
        difference = candidate - baseline
        change = difference / abs(baseline) if self.kind == "relative" else difference
        return change if math.isfinite(change) else None

    def reason(self) -> str:
        """Why the value is None."""
        if not self.clusters:
            return "candidate and baseline have no sample in common"
        for side, value in (("candidate", self.candidate_value), ("baseline", self.baseline_value)):
            if value is None:
                return f"the {side}'s value is undefined"
            if not math.isfinite(value):
                return f"the {side}'s value isn't finite"
        return "the baseline is 0: a relative change is undefined; use max_increase or max_decrease"

    def grouped(self, groups: IndexArray, size: int) -> Estimator:
        """See `evalkit.metrics.estimators.Groupable`; what only one side has stays out, as ever."""
        if not isinstance(self.candidate, Groupable) or not isinstance(self.baseline, Groupable):
            return Spread(self, groups)

        def side(estimator: Groupable, columns: IndexArray, count: int) -> Estimator:
            if len(columns) == count:
                return estimator.grouped(groups, size)
            # Clusters that the other side lacks go into a group of their own, which is never drawn.
            full = np.full(count, size, dtype=np.intp)
            full[columns] = groups
            return estimator.grouped(full, size + 1)

        drawn = np.arange(size, dtype=np.intp)
        return ChangeEstimator(
            side(self.candidate, self.candidate_columns, len(self.candidate.clusters)),
            side(self.baseline, self.baseline_columns, len(self.baseline.clusters)),
            self.kind,
            group_names(size),
            drawn,
            drawn,
        )

    def replicates(self, weights: FloatArray) -> FloatArray:
        candidate = self._replicates_of(self.candidate, self.candidate_columns, weights)
        baseline = self._replicates_of(self.baseline, self.baseline_columns, weights)
        with np.errstate(divide="ignore", invalid="ignore"):
            difference = candidate - baseline
            if self.kind == "absolute":
                return difference
            relative: FloatArray = np.where(baseline == 0, np.nan, difference / np.abs(baseline))
        return relative

    def never_differ(self) -> bool:
        """Whether both are shares and no common cluster has a different outcome."""
        if not (isinstance(self.candidate, Proportion) and isinstance(self.baseline, Proportion)):
            return False
        ours, theirs = self.candidate.outcomes(), self.baseline.outcomes()
        return all(
            np.array_equal(a[self.candidate_columns], b[self.baseline_columns])
            for a, b in zip(ours, theirs, strict=True)
        )

    def concordant(self, confidence: float, sides: Literal[1, 2]) -> Interval:
        """Bounds on the difference when no cluster differed: the exact bound on how often one would."""
        _, most = clopper_pearson(0, len(self.clusters), confidence, sides)
        if isinstance(self.candidate, Proportion):
            most *= self.candidate.largest
        if self.kind == "relative":
            most /= abs(self.baseline_value or 1.0)
        return Interval(-most, most, confidence, sides, "exact-binomial-no-discordant-cluster")

    def _value_of(self, estimator: Estimator, columns: IndexArray) -> float | None:
        if len(columns) == len(estimator.clusters):
            return estimator.value
        if not self.clusters:
            return None
        observed = np.ones((1, len(self.clusters)))
        value = float(self._replicates_of(estimator, columns, observed)[0])
        return None if math.isnan(value) else value

    @staticmethod
    def _replicates_of(estimator: Estimator, columns: IndexArray, weights: FloatArray) -> FloatArray:
        if len(columns) == len(estimator.clusters):
            return estimator.replicates(weights)
        full = np.zeros((len(weights), len(estimator.clusters)))
        full[:, columns] = weights
        return estimator.replicates(full)


@lru_cache(maxsize=8)
def _every(size: int) -> IndexArray:
    """All columns: one array for the changes of all metrics, which mustn't change it."""
    return np.arange(size, dtype=np.intp)


def _columns(clusters: tuple[str, ...], common: tuple[str, ...]) -> IndexArray:
    position = {cluster: index for index, cluster in enumerate(clusters)}
    return np.array([position[cluster] for cluster in common], dtype=np.intp)
