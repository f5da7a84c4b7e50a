"""Labelled decisions: recall, false rejects, precision, cost and AUC at a threshold that the calibration part
chooses.

P(high risk) is the softmax over the labels' log-probabilities. The threshold lies halfway between the highest
score at which the recall of the high-risk label on the calibration part reaches the operating point and the next
lower calibration score: every threshold in between decides the calibration part alike, and the middle leaves new
decisions room on both sides. It is itself an estimate: every bootstrap resample chooses it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from evalkit.metrics.context import MetricContext, RiskSetup
from evalkit.metrics.estimators import FloatArray, NamedEstimator, group_clusters
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import SampleRecord

IndexArray = npt.NDArray[np.intp]
Statistic = Literal["recall", "false_reject_rate", "precision", "cost"]

# Weighted counts are whole numbers, the wanted recall times their sum isn't: a hair of rounding must not cost
# one.
_ROUNDING = 1e-9

_NO_COSTS = "the scenario declares no cost of wrong decisions (risk.costs)"


@dataclass(frozen=True, eq=False)
class _Scored:
    """Decisions sorted by falling score.

    Attributes:
        scores: P(high risk), falling, shape (decisions,).
        columns: cluster of each decision.
    """

    scores: FloatArray
    columns: IndexArray

    @classmethod
    def of(cls, scores: FloatArray, columns: IndexArray) -> "_Scored":
        order = np.argsort(-scores, kind="stable")
        return cls(scores[order], columns[order])

    def at_least(self, thresholds: FloatArray) -> IndexArray:
        """How many decisions reach each threshold."""
        return np.searchsorted(-self.scores, -thresholds, side="right")

    def cumulative(self, weights: FloatArray) -> FloatArray:
        """Weight of the highest 0, 1, ..., all decisions, shape (rows, decisions + 1)."""
        own = weights[:, self.columns]
        return np.concatenate([np.zeros((len(weights), 1)), np.cumsum(own, axis=1)], axis=1)


@dataclass(frozen=True, eq=False)
class ThresholdEstimator:
    """A share of the judged decisions at the threshold that the calibration ones choose.

    Attributes:
        clusters: sorted ids of all decisions' clusters.
        statistic: recall = flagged / high-risk ones; false_reject_rate = flagged / others;
            precision = high-risk ones / flagged; cost = cost of the wrong ones / all.
        recall: wanted on the calibration part.
        calibration: its high-risk decisions.
        thresholds: the threshold that each of them stands for, shape (calibration decisions,).
        positive, negative: the judged decisions, high-risk and others.
        costs: of a high-risk decision that isn't flagged, and of another one that is.
    """

    clusters: tuple[str, ...]
    statistic: Statistic
    recall: float
    calibration: _Scored
    thresholds: FloatArray
    positive: _Scored
    negative: _Scored
    costs: tuple[float, float] = (0.0, 0.0)

    @property
    def n(self) -> int:
        """Decisions in the denominator."""
        return round(float(self.outcomes()[1].sum()))

    @property
    def largest(self) -> float:
        """See `Proportion`."""
        return max(self.costs) if self.statistic == "cost" else 1.0

    @property
    def value(self) -> float | None:
        """The share on the whole evidence; None where it has no denominator or no threshold."""
        value = float(self.replicates(np.ones((1, len(self.clusters))))[0])
        return None if np.isnan(value) else value

    @property
    def threshold(self) -> float | None:
        """The chosen threshold on P(high risk); None without a high-risk calibration decision."""
        chosen = float(self._thresholds(np.ones((1, len(self.clusters))))[0])
        return None if np.isnan(chosen) else chosen

    def replicates(self, weights: FloatArray) -> FloatArray:
        """See `Estimator.replicates`; NaN where a resample has no high-risk calibration decision or no denominator."""
        thresholds = self._thresholds(weights)
        rows = np.arange(len(weights))
        true, false = self.positive.cumulative(weights), self.negative.cumulative(weights)
        hits = true[rows, self.positive.at_least(thresholds)]
        alarms = false[rows, self.negative.at_least(thresholds)]
        successes, trials = {
            "recall": (hits, true[:, -1]),
            "false_reject_rate": (alarms, false[:, -1]),
            "precision": (hits, hits + alarms),
            "cost": (
                self.costs[0] * (true[:, -1] - hits) + self.costs[1] * alarms,
                true[:, -1] + false[:, -1],
            ),
        }[self.statistic]
        with np.errstate(divide="ignore", invalid="ignore"):
            shares: FloatArray = successes / trials
        shares[(trials == 0) | np.isnan(thresholds)] = np.nan
        return shares

    def outcomes(self) -> tuple[FloatArray, FloatArray]:
        """See `Proportion.outcomes`, at the chosen threshold; of a cost, the decisions that cost something."""
        threshold = np.array([np.inf if self.threshold is None else self.threshold])
        size = len(self.clusters)

        def count(scored: _Scored, number: int | None = None) -> FloatArray:
            return np.bincount(scored.columns[:number], minlength=size).astype(np.float64)

        hits = count(self.positive, int(self.positive.at_least(threshold)[0]))
        alarms = count(self.negative, int(self.negative.at_least(threshold)[0]))
        positive, negative = count(self.positive), count(self.negative)
        costly = (positive - hits) * (self.costs[0] > 0) + alarms * (self.costs[1] > 0)
        return {
            "recall": (hits, positive),
            "false_reject_rate": (alarms, negative),
            "precision": (hits, hits + alarms),
            "cost": (costly, positive + negative),
        }[self.statistic]

    def _thresholds(self, weights: FloatArray) -> FloatArray:
        if not len(self.calibration.scores):
            return np.full(len(weights), np.nan)
        reached = self.calibration.cumulative(weights)[:, 1:]
        total = reached[:, -1]
        enough = reached >= (self.recall - _ROUNDING) * total[:, np.newaxis]
        thresholds: FloatArray = self.thresholds[np.argmax(enough, axis=1)]
        thresholds[total == 0] = np.nan
        return thresholds


@dataclass(frozen=True, eq=False)
class AucEstimator:
    """Area under the ROC curve of the judged decisions: P(a high-risk one scores higher), ties count half.

    Attributes:
        clusters: sorted ids of the judged decisions' clusters.
        positive, negative: the judged decisions, high-risk and others.
    """

    clusters: tuple[str, ...]
    positive: _Scored
    negative: _Scored

    @property
    def n(self) -> int:
        """Judged decisions."""
        return len(self.positive.scores) + len(self.negative.scores)

    @property
    def value(self) -> float | None:
        """The area; None where one of the two kinds is missing."""
        value = float(self.replicates(np.ones((1, len(self.clusters))))[0])
        return None if np.isnan(value) else value

    def replicates(self, weights: FloatArray) -> FloatArray:
        """See `Estimator.replicates`; NaN where a resample lacks one of the two kinds."""
        own = weights[:, self.positive.columns]
        negative = self.negative.cumulative(weights)
        total = negative[:, -1:]
        reach = np.searchsorted(-self.negative.scores, -self.positive.scores, side="right")
        above = np.searchsorted(-self.negative.scores, -self.positive.scores, side="left")
        beaten = total - (negative[:, reach] + negative[:, above]) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            areas: FloatArray = (own * beaten).sum(axis=1) / (own.sum(axis=1) * total[:, 0])
        return areas


def estimators(evidence: Evidence, context: MetricContext) -> list[NamedEstimator]:
    """risk/high_risk_recall, /false_reject_rate, /precision, /cost and /auc; empty where no decision was planned."""
    planned = evidence.columns.of_kind("risk").listed()
    if context.risk is None or not planned:
        return []
    return _of_decisions(planned, context.risk)


def _of_decisions(planned: Sequence[SampleRecord], setup: RiskSetup) -> list[NamedEstimator]:
    scored = [sample for sample in planned if sample.status == "ok"]
    coverage = len(scored) / len(planned)
    clusters, columns = group_clusters([sample.cluster for sample in scored])
    scores = high_risk_probability(scored, setup)
    high = np.array([sample.target == setup.high_risk for sample in scored], dtype=np.bool_)
    judged = np.array([sample.part == "judged" for sample in scored], dtype=np.bool_)

    def chosen(mask: npt.NDArray[np.bool_]) -> _Scored:
        return _Scored.of(scores[mask], columns[mask])

    calibration, positive, negative = chosen(high & ~judged), chosen(high & judged), chosen(~high & judged)
    thresholds = halfway_down(calibration.scores, scores[~judged])
    found = []
    costs = (0.0, 0.0)
    if setup.costs is not None:
        costs = (setup.costs["false_approve"], setup.costs["false_reject"])
    statistics: tuple[tuple[str, Statistic], ...] = (
        ("risk/high_risk_recall", "recall"),
        ("risk/false_reject_rate", "false_reject_rate"),
        ("risk/precision", "precision"),
        ("risk/cost", "cost"),
    )
    for name, statistic in statistics:
        if statistic == "cost" and setup.costs is None:
            found.append(NamedEstimator(name, reason=_NO_COSTS, coverage=coverage))
            continue
        estimator = ThresholdEstimator(
            clusters, statistic, setup.recall, calibration, thresholds, positive, negative, costs
        )
        details: dict[str, Any] = {
            "threshold": estimator.threshold,
            "calibration_high_risk": len(calibration.scores),
            "judged_high_risk": len(positive.scores),
            "judged_others": len(negative.scores),
        }
        if statistic == "cost":
            details["costs"] = setup.costs
        reason = None if estimator.value is not None else _why_undefined(estimator)
        found.append(
            NamedEstimator(
                name,
                estimator=estimator,
                reason=reason,
                coverage=coverage,
                details=details,
            )
        )
    found.append(_auc([sample for sample in scored if sample.part == "judged"], setup, coverage))
    return found


def _auc(judged: Sequence[SampleRecord], setup: RiskSetup, coverage: float) -> NamedEstimator:
    clusters, columns = group_clusters([sample.cluster for sample in judged])
    scores = high_risk_probability(judged, setup)
    high = np.array([sample.target == setup.high_risk for sample in judged], dtype=np.bool_)
    estimator = AucEstimator(
        clusters, _Scored.of(scores[high], columns[high]), _Scored.of(scores[~high], columns[~high])
    )
    reason = (
        None if estimator.value is not None else "the judged part lacks one of the two kinds of decisions"
    )
    return NamedEstimator("risk/auc", estimator=estimator, reason=reason, coverage=coverage)


def halfway_down(scores: FloatArray, among: FloatArray) -> FloatArray:
    """For each score the middle between it and the next lower one `among` them all; itself where none is lower."""
    rising = np.unique(among)
    below = np.searchsorted(rising, scores, side="left") - 1
    lower = np.where(below >= 0, rising[np.maximum(below, 0)], scores) if len(rising) else scores
    middle: FloatArray = scores - (scores - lower) / 2
    # Two neighbouring floats have no middle: never fall onto the lower one, which would let it in.
    return np.where(middle > lower, middle, scores)


def high_risk_probability(scored: Sequence[SampleRecord], setup: RiskSetup) -> FloatArray:
    """Softmax over the labels' log-probabilities, at the high-risk label; shape (decisions,)."""
    logprobs = np.array([sample.label_logprobs for sample in scored], dtype=np.float64)
    logprobs = logprobs.reshape(len(scored), len(setup.labels))
    # Written with differences, so that equal labels give equal scores whatever their size.
    own = logprobs[:, [setup.labels.index(setup.high_risk)]]
    with np.errstate(over="ignore"):
        probability: FloatArray = 1 / np.exp(logprobs - own).sum(axis=1)
    return probability


def _why_undefined(estimator: ThresholdEstimator) -> str:
    if not len(estimator.calibration.scores):
        return "the calibration part holds no scored high-risk decision, so no threshold can be chosen"
    return {
        "recall": "the judged part holds no scored high-risk decision",
        "false_reject_rate": "the judged part holds no scored decision of the other labels",
        "precision": "no judged decision reaches the threshold",
        "cost": "the judged part holds no scored decision",
    }[estimator.statistic]
