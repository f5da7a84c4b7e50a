"""Compare two models on the samples that both hold: the change of every metric with its paired interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evalkit.gate.comparison import ComparedMetric, Comparison, Difference
from evalkit.gate.families import evidence_kinds
from evalkit.gate.pairing import KINDS, Pairing, pair
from evalkit.metrics.context import MetricContext
from evalkit.metrics.estimators import Estimator, MetricKey, NamedEstimator
from evalkit.metrics.evaluate import build_estimators
from evalkit.metrics.resampled import SLICE
from evalkit.metrics.result import Interval, MetricResult
from evalkit.runs.evidence import Evidence
from evalkit.runs.results_io import Results
from evalkit.statistics.paired import ChangeKind, PairedChange, paired_changes


def compare(
    candidate: Evidence,
    baseline: Evidence,
    ctx: MetricContext,
    candidate_results: Results,
    baseline_results: Results,
) -> Comparison:
    """Measure both models on their common samples, and the change of every metric that both have.

    Args:
        candidate, baseline: all evidence of both models.
        ctx: settings of the evaluation; its confidence and seed are those of the intervals.
        candidate_results, baseline_results: of the same evidence; they say which metrics there are and how
            each was measured.

    Raises:
        InputError: an id is recorded twice.
    """
    pairing = pair(candidate, baseline, ctx.dialogues)
    same_model = candidate_results.model_digest == baseline_results.model_digest
    ours = _by_key(build_estimators(pairing.candidate, ctx))
    theirs = _by_key(build_estimators(pairing.baseline, ctx))
    others = {_key(metric): metric for metric in baseline_results.metrics}
    shared = [
        _Shared(metric, other, ours.get(_key(metric)), theirs.get(_key(metric)), same_model)
        for metric in candidate_results.metrics
        if (other := others.get(_key(metric))) is not None
    ]
    changes = _changes(shared, ctx)
    return Comparison(
        run_id=candidate_results.run_id,
        plan_sha256=candidate_results.plan_sha256,
        model_digest=candidate_results.model_digest,
        baseline_model_digest=baseline_results.model_digest,
        baseline_complete=baseline_results.complete,
        baseline_counts=baseline_results.counts,
        pairs={kind: pairing.counts(kind) for kind in KINDS},
        metrics=tuple(
            _compared(item, changes.get(index, {}), pairing, ctx) for index, item in enumerate(shared)
        ),
    )


@dataclass(frozen=True)
class _Shared:
    """One metric that both models have, and what measures it on the paired samples."""

    metric: MetricResult
    other: MetricResult
    ours: NamedEstimator | None
    theirs: NamedEstimator | None
    same_model: bool

    @property
    def problem(self) -> str | None:
        """Why there is no change to speak of, or None."""
        return (
            _not_comparable(self.metric, self.other, self.same_model)
            or _unmeasured("candidate", self.ours)
            or _unmeasured("baseline", self.theirs)
        )


def _changes(shared: Sequence[_Shared], ctx: MetricContext) -> dict[int, dict[ChangeKind, PairedChange]]:
    """Both changes of each metric, by its place; all intervals come from one set of resamples."""
    kinds: tuple[ChangeKind, ...] = ("absolute", "relative")
    places: list[tuple[int, ChangeKind, float]] = []
    asked: list[tuple[Estimator, Estimator, ChangeKind]] = []
    for index, item in enumerate(shared):
        if item.problem is not None or item.ours is None or item.theirs is None:
            continue
        # A metric without a problem has both estimators.
        assert item.ours.estimator is not None and item.theirs.estimator is not None
        for kind in kinds:
            places.append((index, kind, item.ours.widen))
            asked.append((item.ours.estimator, item.theirs.estimator, kind))
    found: dict[int, dict[ChangeKind, PairedChange]] = {}
    answers = paired_changes(asked, ctx.confidence, ctx.seed)
    for (index, kind, widen), change in zip(places, answers, strict=True):
        # What a predictor gets wrong it may get wrong differently for either model: no smaller change is clear.
        found.setdefault(index, {})[kind] = _widened(change, widen)
    return found


def _compared(
    item: _Shared, changes: Mapping[ChangeKind, PairedChange], pairing: Pairing, ctx: MetricContext
) -> ComparedMetric:
    metric, problem, absolute = item.metric, item.problem, changes.get("absolute")
    return ComparedMetric(
        name=metric.name,
        k=metric.k,
        slice=metric.slice,
        unit=metric.unit,
        direction=metric.direction,
        candidate=None if absolute is None else absolute.candidate,
        baseline=None if absolute is None else absolute.baseline,
        absolute=_difference(absolute, problem),
        relative=_difference(changes.get("relative"), problem),
        n=0 if absolute is None else absolute.n,
        clusters=0 if absolute is None else absolute.clusters,
        coverage=_coverage(metric, item.ours, item.theirs, pairing, ctx),
        signature=metric.signature,
        baseline_signature=item.other.signature,
        action=metric.action,
    )


def _not_comparable(metric: MetricResult, other: MetricResult, same_model: bool) -> str | None:
    if same_model:
        return "candidate and baseline are the same model (equal model_digest)"
    if metric.signature != other.signature:
        return f"measured in different ways: {metric.signature} and {other.signature}"
    if metric.value is None:
        return f"the candidate has no value: {metric.reason}"
    if other.value is None:
        return f"the baseline has no value: {other.reason}"
    return None


def _unmeasured(side: str, named: NamedEstimator | None) -> str | None:
    if named is None or named.estimator is None:
        reason = "not measured on the paired samples" if named is None else named.reason
        return f"the {side} has no value: {reason}"
    return None


def _difference(change: PairedChange | None, problem: str | None) -> Difference:
    if change is None:
        return Difference(None, problem or "not compared")
    return Difference(
        value=change.value,
        reason=change.reason,
        interval=change.interval,
        bounds=change.bounds,
        interval_reason=change.interval_reason,
    )


def _widened(change: PairedChange, by: float) -> PairedChange:
    if by == 0 or change.baseline is None:
        return change
    if change.kind == "relative":
        by = by / abs(change.baseline) if change.baseline else math.inf
    return replace(change, interval=_wider(change.interval, by), bounds=_wider(change.bounds, by))


def _wider(interval: Interval | None, by: float) -> Interval | None:
    if interval is None:
        return None
    low = None if interval.low is None else interval.low - by
    high = None if interval.high is None else interval.high + by
    return replace(interval, low=low, high=high)


def _coverage(
    metric: MetricResult,
    ours: NamedEstimator | None,
    theirs: NamedEstimator | None,
    pairing: Pairing,
    ctx: MetricContext,
) -> float | None:
    """The smallest of: paired among planned, and what each model's metric covers of the paired samples."""
    # Re-weighted texts are all texts.
    tag = None if ctx.resample is not None and metric.slice == SLICE else metric.slice
    shares = [pairing.coverage(evidence_kinds(metric.name), tag)]
    shares += [named.coverage for named in (ours, theirs) if named is not None]
    known = [share for share in shares if share is not None]
    return min(known) if len(known) == len(shares) else None


def _key(metric: MetricResult) -> MetricKey:
    return MetricKey(metric.name, metric.k, metric.slice)


def _by_key(named: Sequence[NamedEstimator]) -> dict[MetricKey, NamedEstimator]:
    return {item.key: item for item in named}
