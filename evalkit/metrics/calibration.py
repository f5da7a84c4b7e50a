"""Whether P(high risk) means what it says: expected calibration error, Brier score, and the reliability curve.

All on the judged decisions; `evalkit.metrics.token_calibration` asks the same of tokens. The calibration error
compares, in bins of equally many decisions, the mean probability with the observed rate. Noise can't cancel inside an
absolute value, so its plain value lies above the truth: by sqrt(2/pi) standard errors of a bin where the model is calibrated, less elsewhere (Broecker 2012,
Estimating reliability and resolution of probability forecasts, section 3). A bootstrap replicate carries the
noise twice. The value stays the plain one, comparable with other tools; the low ends of interval and bounds
give the replicates' largest excess back, the high ends keep it, so both err on the side of caution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalkit.metrics.classification import high_risk_probability
from evalkit.metrics.context import MetricContext, RiskSetup
from evalkit.metrics.estimators import (
    FloatArray,
    IndexArray,
    NamedEstimator,
    RatioEstimator,
    group_clusters,
    group_names,
)
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import SampleRecord
from evalkit.statistics.binomial import clopper_pearson, effective_sample, one_outcome_each

_HALF_NORMAL = math.sqrt(2 / math.pi)
_NONE_JUDGED = "the judged part holds no scored decision"


@dataclass(frozen=True, eq=False)
class CalibrationErrorEstimator:
    """Mean absolute difference of probability and outcome over bins, weighted by the bins' decisions.

    Attributes:
        clusters: sorted ids of the judged decisions' clusters.
        decisions: judged decisions of each cluster and bin, shape (clusters, bins).
        residuals: their sums of probability - outcome, same shape.
    """

    clusters: tuple[str, ...]
    decisions: FloatArray
    residuals: FloatArray

    @property
    def n(self) -> int:
        """Judged decisions."""
        return round(float(self.decisions.sum()))

    @property
    def value(self) -> float | None:
        """The error; None without a decision."""
        value = float(self.replicates(np.ones((1, len(self.clusters))))[0])
        return None if math.isnan(value) else value

    def grouped(self, groups: IndexArray, size: int) -> "CalibrationErrorEstimator":
        """See `Groupable`."""
        decisions, residuals = np.zeros((2, size, self.decisions.shape[1]))
        np.add.at(decisions, groups, self.decisions)
        np.add.at(residuals, groups, self.residuals)
        return CalibrationErrorEstimator(group_names(size), decisions, residuals)

    def replicates(self, weights: FloatArray) -> FloatArray:
        """See `Estimator.replicates`. The bins stay those of the whole evidence."""
        total = (weights @ self.decisions).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            errors: FloatArray = np.abs(weights @ self.residuals).sum(axis=1) / total
        return errors

    def excess(self, variances: FloatArray) -> float:
        """How far the plain value of a calibrated model lies above zero.

        Args:
            variances: of each bin's residual sum where outcomes are independent, shape (bins,).
        """
        # Outcomes of one cluster go together: the larger of both variances.
        clustered = (self.residuals**2).sum(axis=0)
        return _HALF_NORMAL * float(np.sqrt(np.maximum(variances, clustered)).sum()) / max(self.n, 1)


def estimators(evidence: Evidence, context: MetricContext) -> list[NamedEstimator]:
    """calibration/ece and /brier of the judged decisions; empty where no decision was planned."""
    planned = evidence.columns.of_kind("risk").listed()
    if context.risk is None or not planned:
        return []
    judged = [sample for sample in planned if sample.status == "ok" and sample.part == "judged"]
    coverage = sum(sample.status == "ok" for sample in planned) / len(planned)
    if not judged:
        names = ("calibration/ece", "calibration/brier")
        return [NamedEstimator(name, reason=_NONE_JUDGED, coverage=coverage) for name in names]
    return _of_decisions(judged, context.risk, context.confidence, coverage)


def equal_mass_bins(scores: FloatArray, bins: int) -> IndexArray:
    """The bin of each score: bins of equally many, lowest first; equal scores share a bin, so some may be empty.

    Args:
        scores: shape (decisions,), in any order.
        bins: how many.
    """
    below = np.searchsorted(np.sort(scores), scores, side="left")
    return (below * bins // len(scores)).astype(np.intp)


def calibration_error(
    name: str,
    units: tuple[tuple[str, ...], IndexArray],
    scores: FloatArray,
    outcomes: FloatArray,
    *,
    bins: int,
    confidence: float,
    coverage: float | None,
    slice: str | None = None,
) -> NamedEstimator:
    """The calibration error of some decisions or tokens, with its reliability curve.

    Args:
        name: of the metric.
        units: sorted clusters, and the index of each unit's cluster.
        scores, outcomes: probability of each unit, and 1 where it came true, else 0.
        bins: of the curve, with equally many units each.
        confidence: of the curve's intervals.
        coverage, slice: of the result.
    """
    clusters, columns = units
    cells = columns * bins + (bin_of := equal_mass_bins(scores, bins))

    def by_cell(values: FloatArray) -> FloatArray:
        sums = np.bincount(cells, values, len(clusters) * bins).astype(np.float64)
        return sums.reshape(len(clusters), bins)

    error = CalibrationErrorEstimator(clusters, by_cell(np.ones_like(scores)), by_cell(scores - outcomes))
    spread = np.bincount(bin_of, scores * (1 - scores), bins).astype(np.float64)
    calibrated = error.excess(spread)
    curve = _curve(error.decisions, by_cell(scores), by_cell(outcomes), confidence)
    details: dict[str, Any] = {"bins": curve, "expected_if_calibrated": calibrated}
    return NamedEstimator(
        name,
        slice=slice,
        estimator=error,
        coverage=coverage,
        details=details,
        bias=math.sqrt(2) * calibrated,
    )


def _of_decisions(
    judged: Sequence[SampleRecord], setup: RiskSetup, confidence: float, coverage: float
) -> list[NamedEstimator]:
    names = [sample.cluster for sample in judged]
    scores = high_risk_probability(judged, setup)
    outcomes = np.array([sample.target == setup.high_risk for sample in judged], dtype=np.float64)
    error = calibration_error(
        "calibration/ece",
        group_clusters(names),
        scores,
        outcomes,
        bins=setup.bins,
        confidence=confidence,
        coverage=coverage,
    )
    squared = RatioEstimator.from_units(names, (scores - outcomes) ** 2, np.ones_like(scores))
    rate = math.fsum(outcomes) / len(outcomes)
    brier = NamedEstimator(
        "calibration/brier",
        estimator=squared,
        coverage=coverage,
        details={"of_the_base_rate": rate * (1 - rate)},
    )
    return [error, brier]


def _curve(
    decisions: FloatArray, confidences: FloatArray, outcomes: FloatArray, confidence: float
) -> list[dict[str, Any]]:
    """The reliability curve: each bin that holds a decision, with an interval of the observed rate."""
    curve = []
    for trials, scores, successes in zip(decisions.T, confidences.T, outcomes.T, strict=True):
        n = math.fsum(trials)
        if n == 0:
            continue
        single = one_outcome_each(successes, trials)
        counts = (math.fsum(successes), n)
        if not single:
            counts = effective_sample(successes, trials, (1 - confidence) / 2)
        low, high = clopper_pearson(*counts, confidence)
        curve.append(
            {
                "confidence": math.fsum(scores) / n,
                "accuracy": math.fsum(successes) / n,
                "n": round(n),
                "low": low,
                "high": high,
            }
        )
    return curve
